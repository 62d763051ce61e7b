# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A program with jemalloc and the agent preloaded, as the drop-in does it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ansible_collections.offheap.profiler.plugins.module_utils.agent import client
from ansible_collections.offheap.profiler.plugins.module_utils.formats import dump_name

UNIT = "tried.service"


class Service:
    """Settings in lower case are OFFHEAP_*; ``conf`` goes behind MALLOC_CONF, ``preload`` replaces LD_PRELOAD,
    ``environment`` is added, ``popen`` goes to Popen."""

    def __init__(
        self,
        directory: Path,
        library: Path,
        jemalloc: Path,
        program: Path | str,
        arguments: tuple[str, ...],
        settings: dict[str, Any],
        emulator: Sequence[str] = (),
    ) -> None:
        self.spool, self.run = directory / "spool", directory / "run"
        self.spool.mkdir(exist_ok=True)
        (self.run / UNIT).mkdir(parents=True, exist_ok=True)
        self.errors = directory / "stderr"
        conf = settings.pop("conf", "lg_prof_sample:12")
        preload = settings.pop("preload", [jemalloc, library])
        popen = settings.pop("popen", {})
        added = settings.pop("environment", {})
        defaults = {
            "executable": program,
            "unit": UNIT,
            "socket_dir": self.run / UNIT,
            "start_delay": 0,
            "minimum_free": 0,
        }
        self.environment = {
            "PATH": os.environ["PATH"],
            "LD_PRELOAD": ":".join(map(str, preload)),
            "MALLOC_CONF": f"prof:true,prof_active:false,prof_prefix:{self.spool}/jeprof,{conf}".rstrip(","),
            **{f"OFFHEAP_{key.upper()}": str(value) for key, value in {**defaults, **settings}.items()},
            **added,
        }
        if emulator:  # which is a program of this machine, and hands its environment on
            emulator = [*emulator, "-E", f"LD_PRELOAD={self.environment.pop('LD_PRELOAD')}"]
        with self.errors.open("ab") as errors:
            self.process = subprocess.Popen(
                [*emulator, str(program), *arguments],
                env=self.environment,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                **{"stdin": subprocess.DEVNULL, **popen},
            )
        self.pid = self.process.pid

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.kill()
        for stream in (self.process.stdin, self.process.stdout):
            if stream:
                stream.close()
        self.process.wait()
        Path(f"/tmp/.java_pid{self.pid}").unlink(missing_ok=True)  # a JVM that is killed leaves it

    def do(self, command: str) -> str:
        """Its one line of answer to a line on its standard input."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(f"{command}\n".encode())
        self.process.stdin.flush()
        answer: str = self.process.stdout.readline().decode().strip()
        assert answer, f"it ended while it did {command!r}: {self.stderr()}"
        return answer

    def result(self, timeout: float = 30.0) -> tuple[int, str]:
        """Exit status and stdout."""
        output, _errors = self.process.communicate(timeout=timeout)
        return self.process.returncode, output.decode()

    def stderr(self) -> str:
        return self.errors.read_text()

    def agents(self) -> list[client.AgentSocket]:
        return client.find(UNIT, str(self.run))

    def agent(self, pid: int | None = None, timeout: float = 15.0) -> client.AgentSocket:
        """The agent of the process, once its socket is there."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            for agent in self.agents():
                if agent.pid == (pid or self.pid):
                    return agent
            if pid is None and self.process.poll() is not None:
                raise AssertionError(f"ended with {self.process.returncode}: {self.stderr()}")
            time.sleep(0.02)
        raise AssertionError(f"no socket: {self.stderr()}")

    @contextlib.contextmanager
    def connected(self, timeout: float = 30.0) -> Iterator[client.Connection]:
        with self._connection(timeout) as connection:
            yield connection

    def _connection(self, timeout: float) -> client.Connection:
        """A program that starts itself again leaves the socket of the first one for a moment."""
        deadline = time.monotonic() + 15
        while True:
            try:
                return client.Connection(self.agent(), timeout)
            except client.AgentGone:
                if time.monotonic() > deadline or self.process.poll() is not None:
                    raise
                time.sleep(0.02)

    def ask(self, command: str, **arguments: int) -> dict[str, Any]:
        with self.connected() as connection:
            return connection.request(command, **arguments)

    def wait_until_active(self, timeout: float = 15.0) -> None:
        deadline = time.monotonic() + timeout
        while not self.ask("status")["active"]:
            assert time.monotonic() < deadline, "sampling does not go on"
            time.sleep(0.02)

    def dumps(self) -> list[Path]:
        """The dumps of the spool, by start, pid and number."""
        return sorted((path for path in self.spool.iterdir() if parsed(path)[1]), key=parsed)

    def tasks(self, pid: int | None = None) -> list[str]:
        return tasks_of(pid or self.pid)


def tasks_of(pid: int) -> list[str]:
    """The names of its threads, without those that end meanwhile."""
    names = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            names.append((task / "comm").read_text().strip())
    return names


def parsed(path: Path) -> tuple[str, int, int]:
    """Start, pid and number in a dump's name; zeros for another file."""
    name = dump_name.parse(path.name)
    return (name.start or "", name.pid, name.sequence) if name else ("", 0, 0)


def wait_for(what: str, question: Any, timeout: float = 15.0) -> Any:
    """The first truthy answer to a question that is asked again and again."""
    deadline = time.monotonic() + timeout
    while True:
        answer = question()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.05)
