# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What memory the process has left, by its control group and those above it, and what the agent does near its end.

The files of the control groups are ours, mounted over the kernel's where the process alone sees them.
"""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.agent import client
from ansible_collections.offheap.profiler.tests.agent.service import Service

Start = Callable[..., Service]
MIB = 1 << 20
_LIBC = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNS, _MS_BIND, _MS_REC, _MS_PRIVATE = 0x20000, 4096, 16384, 1 << 18
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def in_groups(directory: Path, own: str, groups: Mapping[str, Mapping[str, str]]) -> Callable[[], None]:
    """What a child does to find itself in the group that ``own``, as /proc/self/cgroup, says; ``groups`` has the files
    of each, by their path below /sys/fs/cgroup."""
    root = directory / "groups"
    for group, files in groups.items():
        (root / group).mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (root / group / name).write_text(f"{text}\n")
    (directory / "cgroup").write_text(own)

    def mount(source: Path, target: str, flags: int) -> None:
        if _LIBC.mount(os.fsencode(source), target.encode(), None, flags, None):
            raise OSError(ctypes.get_errno(), "mount", target)

    def enter() -> None:
        if _LIBC.unshare(_CLONE_NEWNS):
            raise OSError(ctypes.get_errno(), "unshare")
        mount(Path("none"), "/", _MS_REC | _MS_PRIVATE)
        mount(root, "/sys/fs/cgroup", _MS_BIND)
        mount(directory / "cgroup", "/proc/self/cgroup", _MS_BIND)

    return enter


def limit(most: str, used: int, files: int = 0) -> dict[str, str]:
    return {"memory.max": most, "memory.current": str(used), "memory.stat": f"anon 1\ninactive_file {files}"}


def old_limit(most: int, used: int, files: int = 0) -> dict[str, str]:
    stat = f"cache 1\ninactive_file 7\ntotal_inactive_file {files}"
    return {"memory.limit_in_bytes": str(most), "memory.usage_in_bytes": str(used), "memory.stat": stat}


@pytest.mark.parametrize(
    ("own", "groups"),
    [
        ("0::/a/b.service\n", {"a/b.service": limit(str(30 * MIB), 20 * MIB, 2 * MIB)}),
        (
            "0::/a.slice/b.service\n",
            {"a.slice/b.service": limit("max", 20 * MIB), "a.slice": limit(str(40 * MIB), 28 * MIB)},
        ),
        ("0::/\n", {"": limit(str(30 * MIB), 18 * MIB)}),
        (
            "4:memory:/a/b.service\n1:name=systemd:/x:memory:/y\n0::/a/b.service\n",
            {"memory/a/b.service": old_limit(30 * MIB, 20 * MIB, 2 * MIB), "unified/a/b.service": {}},
        ),
        # In a container that sees the host's names, and only its own group.
        ("4:memory:/docker/1\n", {"memory": old_limit(30 * MIB, 18 * MIB)}),
    ],
    ids=["limit", "slice", "root of a container", "version 1", "container, version 1"],
)
def test_its_limit(
    own: str, groups: Mapping[str, Mapping[str, str]], start: Start, workload: Path, tmp_path: Path
) -> None:
    service = start(workload, "leak", "30", popen={"preexec_fn": in_groups(tmp_path, own, groups)})
    assert service.ask("stats")["memory"]["left"] == 12 * MIB


def test_without_a_limit_it_has_what_the_host_has(start: Start, workload: Path, tmp_path: Path) -> None:
    groups = {"a": limit("max", 20 * MIB), "memory/b": old_limit((1 << 63) - 4096, 20 * MIB)}
    service = start(workload, "leak", "30", popen={"preexec_fn": in_groups(tmp_path, "4:memory:/b\n0::/a\n", groups)})
    assert service.ask("stats")["memory"]["left"] > 64 * MIB


def test_near_its_end_a_dump_comes_without_the_lives(start: Start, workload: Path, tmp_path: Path) -> None:
    """The copy of the book must not be what the process is killed for."""
    enter = in_groups(tmp_path, "0::/a\n", {"a": limit(str(30 * MIB), 0)})
    service = start(workload, "leak", "30", popen={"preexec_fn": enter})
    service.wait_until_active()
    path = service.ask("dump")["path"]
    assert Path(f"{path}.lives").exists()
    (tmp_path / "groups" / "a" / "memory.current").write_text(str(30 * MIB - 65536))
    path = service.ask("dump")["path"]
    assert json.loads(Path(f"{path}.json").read_text())["memory"]["left"] == 65536
    assert not Path(f"{path}.lives").exists()
    assert f"cannot write {path}.lives: Cannot allocate memory" in service.ask("status")["problem"]


def test_near_its_end_there_is_no_dump_of_the_sampler(
    start: Start, workload: Path, library: Path, tmp_path: Path
) -> None:
    enter = in_groups(tmp_path, "0::/a\n", {"a": limit(str(30 * MIB), 30 * MIB)})
    prefix = tmp_path / "spool" / "jeprof"
    service = start(workload, "leak", "30", preload=[library], prefix=prefix, popen={"preexec_fn": enter})
    service.wait_until_active()
    with pytest.raises(client.AgentError, match=r"the sampler could not write .*: too little memory is left"):
        service.ask("dump")
