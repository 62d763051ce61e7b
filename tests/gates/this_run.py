# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What a run of the gates has on this machine, so that the next one can remove it if this one is killed.

A run has a directory with a lock, which the kernel releases however the run ends. All temporary files of its gates lie
there, and all of its processes have the directory's path in their environment. The labs of its gates have the names of
the gates, and whoever boots one holds the lock of that name.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLACE = Path("/tmp")  # the paths of sockets lie below it, and may have 107 bytes
PREFIX = "oh-"
#: the lab that a test boots beside that of its gate
SECOND_LAB = "ittwo"
STAGES = Path("/dev/shm")  # see bare.sh


@contextlib.contextmanager
def directory(labs: Iterable[str], say: Callable[[str], None]) -> Iterator[Path]:
    """Remove what killed runs have left, and yield the directory of this one, which goes with it."""
    with contextlib.ExitStack() as alive:
        with _one_at_a_time():
            for left in PLACE.glob(f"{PREFIX}*"):
                with held(left / "lock") as dead:
                    if dead:
                        say(f"a run was killed: removing what it left, which is in {left}")
                        _remove(left)
            _remove_stages()
            _take_down(labs, say)
            own = Path(tempfile.mkdtemp(prefix=PREFIX, dir=PLACE))
            own.chmod(0o1777)  # as /tmp: tests also run programs as other users
            alive.enter_context(held(own / "lock"))
        try:
            yield own
        finally:
            with _one_at_a_time():
                _remove(own)


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    with (PLACE / "offheap-runs.lock").open("a") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _remove(directory: Path) -> None:
    end_processes(directory)
    shutil.rmtree(directory)


@contextlib.contextmanager
def held(lock: Path) -> Iterator[bool]:
    """Hold the lock, unless somebody else does: whether it is ours."""
    with lock.open("a") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def end_processes(directory: Path) -> None:
    """Kill what belongs to the run of this directory, and wait until it is gone."""
    while pids := processes_of(directory):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def processes_of(directory: Path) -> list[int]:
    """Live processes, but for this one, that have the directory in their environment or on their command line."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            texts = [(process / name).read_bytes() for name in ("environ", "cmdline")]
        except OSError:  # it has ended, or is another user's
            continue
        if int(process.name) != os.getpid() and any(os.fsencode(directory) in text for text in texts):
            found.append(int(process.name))
    return found


def _remove_stages() -> None:
    """Remove the directories on which a killed bare.sh wanted to mount: each has its process in its name."""
    for stage in STAGES.glob("offheap-bare.*.*"):
        if not Path("/proc", stage.name.split(".")[1]).exists():
            stage.rmdir()


def _take_down(labs: Iterable[str], say: Callable[[str], None]) -> None:
    """Take down the labs of these names that nobody uses."""
    for name in labs:
        if not Path(f"/var/cache/offheap-lab/run-{name}").exists():
            continue
        with held(lab_lock(name)) as unused:
            if unused:
                say(f"taking down the lab {name}, which a killed run left")
                environment = {**os.environ, "OFFHEAP_LAB_NAME": name}
                subprocess.run([ROOT / "tests" / "lab" / "lab", "down"], env=environment, check=True)


def lab_lock(name: str) -> Path:
    """Whoever boots the lab of this name for tests holds a lock on this file."""
    return PLACE / f"offheap-lab-{name}.tests"
