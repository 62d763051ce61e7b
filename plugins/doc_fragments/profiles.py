# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Options of the modules that read single dumps on the controller."""

from __future__ import annotations


class ModuleDocFragment:
    """Where dumps and images come from, where the result goes and, in SOURCE, what a dump does not say itself."""

    DOCUMENTATION = r"""
requirements:
  - symbolic (Python library, on the controller)
  - pydemumble (Python library, on the controller)
  - jinja2 (Python library, on the controller)
  - numpy (Python library, on the controller)
options:
  archive:
    description:
      - Directory or address of an archive to take images from, by their build-ids and, where the dump is a capture, by
        their checksums.
      - Not needed for a capture that lies in an archive.
      - All relative paths start at the directory that C(ansible) was started in.
    type: path
  binary_path:
    description:
      - Further places to look for the program and its libraries. A directory may have the layout of pprof
        (C(BUILD_ID/NAME)), of debug files (C(.build-id/ab/cdef.debug)), of a root file system, or just the files.
      - By default, the directories of the environment variable E(PPROF_BINARY_PATH).
      - Without either, a dump outside an archive is read with the controller's own files. That is right only if the
        program ran there, since a dump alone does not say which build of a file was mapped.
    type: list
    elements: path
    default: []
  symcaches:
    description:
      - Directory for prepared debug information, which makes the next run fast.
      - By default that of the archive, or C(~/.cache/offheap/symcaches) without one. Check mode keeps nothing.
    type: path
  measure:
    description:
      - What to count. V(inuse_space) and V(inuse_objects) are what was live at the time of the dump. V(alloc_space) and
        V(alloc_objects) are everything since the start, which jemalloc counts only with C(prof_accum:true).
      - Of a source that does not count live memory, V(inuse_space) and V(inuse_objects) show its own numbers. The
        result calls them C(allocated) or C(grown) and says that they are not live.
    type: str
    choices: [inuse_space, inuse_objects, alloc_space, alloc_objects]
    default: inuse_space
  limit:
    description: How many rows to show and to return. V(0) shows all of them and returns the first 100.
    type: int
    default: 0
  dest:
    description: File to write, on the controller. Its directory is created if missing.
    type: path
  force:
    description: Replace O(dest) if it has other content. If V(false), the task fails in that case.
    type: bool
    default: false
  show:
    description: Print the result while the task runs, at any verbosity. By default only without O(dest).
    type: bool
"""

    SOURCE = r"""
options:
  source_measure:
    description:
      - What the numbers of a dump are, where the dump does not say it itself (collapsed stacks, some profiles of
        tcmalloc). V(live) is memory that was allocated and not freed, V(allocated) what was allocated since a moment,
        freed or not, V(grown) what was mapped or faulted in.
      - Only the same is compared, and only V(live) is ever called live.
    type: str
    choices: [live, allocated, grown]
  source_unit:
    description: What the numbers of collapsed stacks count.
    type: str
    choices: [bytes, objects]
  source_interval:
    description:
      - How many bytes lie between two samples, such as V(512KiB), where the dump does not say it itself. V(1) means
        that every allocation was recorded.
      - With V(0), nobody knows, and all errors are unknown, too.
    type: str
    default: "0"
"""
