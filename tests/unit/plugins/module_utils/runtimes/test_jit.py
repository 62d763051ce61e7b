# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What a process's mappings say of compiled code."""

from __future__ import annotations

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.host import procfs
from ansible_collections.offheap.profiler.plugins.module_utils.runtimes import jit


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("7f00-7f01 r-xp 0 00:00 0", True),
        ("7f00-7f01 rwxp 0 00:00 0   /memfd:doublemapper (deleted)", True),
        ("7f00-7f01 rw-p 0 00:00 0", False),
        ("7f00-7f01 r-xp 0 00:00 0   [vdso]", False),
        ("7f00-7f01 r-xp 0 08:01 12  /usr/lib/libz.so.1", False),
    ],
)
def test_whether_there_is_compiled_code(line: str, expected: bool) -> None:
    assert jit.has_code(procfs.parse_maps(line.encode() + b"\n")) is expected
