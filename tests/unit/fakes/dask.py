# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A dask.distributed cluster on this machine: a scheduler and workers in processes of their own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ansible_collections.offheap.profiler.tests.conftest import COLLECTIONS

_CLI = "import sys; from distributed.cli import dask_{0}; sys.exit(dask_{0}.main())"
_SECONDS = 60


@contextmanager
def scheduler(directory: Path, collections: Path = COLLECTIONS, protocol: str = "tcp") -> Iterator[str]:
    """The address of a scheduler without workers."""
    told = directory / "scheduler.json"
    options = ("--port=0", f"--host={protocol}://127.0.0.1", "--no-dashboard", f"--scheduler-file={told}")
    with _running(directory, "scheduler", *options, PYTHONPATH=str(collections)):
        address: str = json.loads(_once_there(told))["address"]
        yield address


@contextmanager
def worker(directory: Path, address: str, name: str, collections: Path = COLLECTIONS) -> Iterator[None]:
    """A worker of one thread, once it is known there, which is restarted when it dies."""
    import distributed

    with (
        _running(
            directory,
            "worker",
            address,
            f"--name={name}",
            "--nthreads=1",
            "--no-dashboard",
            f"--local-directory={directory}",
            PYTHONPATH=str(collections),
        ),
        distributed.Client(address, set_as_default=False) as client,  # type: ignore[no-untyped-call]
    ):
        deadline = time.monotonic() + _SECONDS
        while name not in {one["name"] for one in client.scheduler_info(n_workers=-1)["workers"].values()}:
            if time.monotonic() > deadline:
                raise TimeoutError(f"no worker {name} at {address}")
            time.sleep(0.05)
        yield


def dies() -> None:
    """Work that ends its worker."""
    os.kill(os.getpid(), signal.SIGKILL)


def dies_at_first(flag: Path) -> bool:
    """Work that ends its worker unless there is this file."""
    if not flag.exists():
        flag.touch()
        dies()
    return True


@contextmanager
def _running(directory: Path, kind: str, *arguments: str, **environment: str) -> Iterator[None]:
    # Work that has ended two workers is given up.
    failures = {"DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "1"}
    known = {**os.environ, **failures, "HOME": str(directory), "NO_PROXY": "127.0.0.1", **environment}
    with (directory / f"{kind}.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", _CLI.format(kind), *arguments], cwd=directory, env=known, stdout=log, stderr=log
        )
    try:
        yield
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()
        process.wait()


def _once_there(path: Path) -> str:
    deadline = time.monotonic() + _SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(FileNotFoundError):
            if text := path.read_text():
                return text
        time.sleep(0.05)
    raise TimeoutError(f"{path} does not appear")
