# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What AppArmor lets a confined process do with a file, as the kernel itself says.

The question is written to a file of its file system, and the answer read from there: aa_query_label(3), whose command,
class of files and permissions these are (libapparmor's kernel.c, apparmor.h).

This module is private to the collection.
"""

from __future__ import annotations

import os
import re

from ansible_collections.offheap.profiler.plugins.module_utils.host import security_module

#: What a profile must let our libraries do: be loaded, write dumps and answer, and read what they look at.
LINES = (
    "/opt/offheap/** mr,",
    "/var/lib/offheap/** rw,",
    "/run/offheap/** rw,",
    "@{PROC}/@{pid}/** r,",
    "@{PROC}/sys/kernel/random/boot_id r,",
    "/sys/fs/cgroup/** r,",
    "/sys/kernel/mm/transparent_hugepage/enabled r,",
)
_ACCESS = "/sys/kernel/security/apparmor/.access"
_ENFORCED = re.compile(r"(.+) \((?:enforce|kill)\)\Z")
_OF_FILES = b"\2"
_TO_READ, _TO_MAP_CODE = 1 << 2, 1 << 16
_ANSWER = re.compile(rb"allow 0x([0-9a-f]{8})\ndeny 0x([0-9a-f]{8})\n")


def forbids(label: str, path: str) -> bool:
    """Whether a process may not load the library at ``path``; ``label`` is as in procfs.security_label.

    False where nobody can tell, and where the profile only complains.
    """
    confined = _ENFORCED.match(label)
    if confined is None:
        return False
    question = b"label\0" + os.fsencode(confined[1]) + b"\0" + _OF_FILES + os.fsencode(path)
    answer = _ANSWER.match(security_module.asked(_ACCESS, question))
    if answer is None:
        return False
    allowed = int(answer[1], 16) & ~int(answer[2], 16)
    return bool((_TO_READ | _TO_MAP_CODE) & ~allowed)
