# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A file system of a service's user in its /tmp, which answers nobody: not even SIGKILL ends who asks it (fuse(4))."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.host import procfs
from ansible_collections.offheap.profiler.plugins.module_utils.runtimes import hotspot_attach, hotspot_protocol
from ansible_collections.offheap.profiler.tests.agent import hanging_disk
from ansible_collections.offheap.profiler.tests.unit.fakes import programs

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount it")


class Silent(hanging_disk.HangingDisk):
    """Hangs whoever looks for a file there."""

    def _answer(self, operation: int, node: int, argument: bytes) -> bytes:
        if operation == hanging_disk._LOOKUP and not self._free.is_set():
            self.waiting.set()
            self._free.wait()
        return super()._answer(operation, node, argument)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Silent]:
    (tmp_path / "disk").mkdir()
    disk = Silent(tmp_path / "disk")
    yield disk
    disk.close()


def test_root_waits_for_no_child_that_it_holds(disk: Silent) -> None:
    """As for a JVM, of which only its /tmp is needed here."""
    line = f"mount --bind {disk.path} /tmp && exec sleep 60"
    with subprocess.Popen(["unshare", "--mount", "sh", "-c", line]) as process:
        programs.settled(process, "sleep")
        disk.hangs()
        jvm = hotspot_protocol.Jvm(process.pid, process.pid, procfs.start_ticks(process.pid), 0, 0, (), True)
        began = time.monotonic()
        with pytest.raises(hotspot_protocol.HotspotError, match="did not answer in time"):
            hotspot_attach.command(jvm, "VM.version", 0.5)
        assert disk.waiting.is_set() and time.monotonic() - began < 30
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        disk.let_go()
        (held,) = {int(child) for child in children} - {process.pid}
        os.waitpid(held, 0)
        process.kill()
