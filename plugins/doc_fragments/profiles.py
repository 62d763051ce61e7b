# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Options of the modules that read single dumps on the controller."""

from __future__ import annotations


class ModuleDocFragment:
    """Where dumps and images come from, and where the result goes."""

    DOCUMENTATION = r"""
requirements:
  - symbolic (Python library, on the controller)
  - pydemumble (Python library, on the controller)
  - jinja2 (Python library, on the controller)
  - numpy (Python library, on the controller)
options:
  archive:
    description:
      - Directory of an archive to take images from, by their build-ids.
      - Not needed for a capture that lies in an archive.
      - Relative paths, here and everywhere, begin at the directory that C(ansible) was started in.
    type: path
  binary_path:
    description:
      - Where else to look for the program and its libraries. A directory may have the layout of pprof
        (C(BUILD_ID/NAME)), of debug files (C(.build-id/ab/cdef.debug)), of a root file system, or just the files.
      - Without it, the directories of the environment variable E(PPROF_BINARY_PATH).
      - Without both, a dump outside of an archive is read with the files of the controller itself, which is right only
        where the program ran on it. A dump alone does not say which build of a file was mapped.
    type: list
    elements: path
    default: []
  symcaches:
    description:
      - Directory for prepared debug information, which makes the next reading fast.
      - By default that of the archive, else C(~/.cache/offheap/symcaches). In check mode nothing is kept.
    type: path
  measure:
    description:
      - What to count. V(inuse_space) and V(inuse_objects) are what was live at the time of the dump, V(alloc_space) and
        V(alloc_objects) all since the start, which jemalloc counts with C(prof_accum:true) only.
    type: str
    choices: [inuse_space, inuse_objects, alloc_space, alloc_objects]
    default: inuse_space
  limit:
    description: How many rows to show and to return. All are shown when V(0), and none but the first 100 returned.
    type: int
    default: 0
  dest:
    description: File to write, on the controller. Its directory is made when it does not exist.
    type: path
  force:
    description: Replace O(dest) when it has other content. When V(false), the task fails then.
    type: bool
    default: false
  show:
    description: Print the result while the task runs, whatever the verbosity. By default when there is no O(dest).
    type: bool
"""
