# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""All of a host's memory in parts that add up."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.host import host_memory

KIB = 1 << 10


def test_the_parts_add_up_and_what_is_left_is_said(tmp_path: Path) -> None:
    """Shared memory is counted as cached by the kernel, and once here."""
    lines = {
        "MemTotal": 1000,
        "MemFree": 300,
        "MemAvailable": 500,
        "Buffers": 10,
        "Cached": 200,
        "Shmem": 50,
        "AnonPages": 250,
        "Slab": 70,
        "SReclaimable": 40,
        "SUnreclaim": 30,
        "PageTables": 6,
        "VmallocTotal": 34359738367,
        "VmallocUsed": 4,
        "HugePages_Total": 3,
    }
    (tmp_path / "meminfo").write_text("".join(f"{name}: {size:10} kB\n" for name, size in lines.items()))
    found = host_memory.read(str(tmp_path))
    assert found is not None
    told = {name: size // KIB for name, size in found.items() if size}
    assert told.pop("total") == 1000 and told.pop("available") == 500
    assert told == {
        "free": 300,
        "processes": 250,
        "files": 160,
        "shared-memory": 50,
        "slab-reclaimable": 40,
        "slab": 30,
        "page-tables": 6,
        "vmalloc": 4,
        "rest": 160,
    }


def test_what_connections_and_zram_hold_has_names(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 1000 kB\nMemFree: 300 kB\nMemAvailable: 500 kB\n")
    (tmp_path / "net").mkdir()
    (tmp_path / "net/sockstat").write_text("sockets: used 9\nTCP: inuse 3 alloc 3 mem 20\nUDP: inuse 0 mem 5\n")
    for number, used in enumerate((4096, 8192)):
        (tmp_path / f"block/zram{number}").mkdir(parents=True)
        (tmp_path / f"block/zram{number}/mm_stat").write_text(f"100000 2000 {used} 0 9999 0 0 0\n")
    found = host_memory.read(str(tmp_path), str(tmp_path))
    assert found is not None
    assert found["sockets"] == 25 * os.sysconf("SC_PAGE_SIZE")
    assert found["zram"] == 4096 + 8192
    assert found["rest"] == 700 * KIB - found["sockets"] - found["zram"]


@pytest.mark.parametrize("text", [None, "", "MemTotal: many kB\n", "MemTotal: 1 kB\nMemFree: 1 kB\n"])
def test_a_host_that_does_not_say(text: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "meminfo").write_text(text)
    assert host_memory.read(str(tmp_path)) is None


def test_this_host_is_accounted_for() -> None:
    """Three quarters of what this machine has are in a part with a name."""
    found = host_memory.read()
    assert found is not None and abs(found["rest"]) < 0.25 * found["total"]
