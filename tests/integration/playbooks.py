# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Runs playbooks as a user would, with the collection from its tarball, and tells what they did."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAMS = Path(sys.executable).parent


@dataclass(frozen=True)
class Stats:
    """A host's line of the recap."""

    ok: int = 0
    changed: int = 0
    failed: int = 0
    unreachable: int = 0
    skipped: int = 0
    rescued: int = 0
    ignored: int = 0


@dataclass(frozen=True)
class Task:
    """What one task did on one host. `status` is ok, failed, ignored, skipped or unreachable."""

    play: str
    role: str | None
    task: str
    action: str
    host: str
    status: str
    result: dict[str, Any]

    @property
    def changed(self) -> bool:
        return bool(self.result.get("changed"))

    @property
    def message(self) -> str:
        """The task's msg, and those of a loop's items."""
        items = [item.get("msg", "") for item in self.result.get("results", []) if isinstance(item, dict)]
        return "\n".join(str(text) for text in (self.result.get("msg", ""), *items) if text)

    @property
    def diffs(self) -> list[dict[str, Any]]:
        """What --diff shows for this task, those of a loop's items included."""
        found: list[dict[str, Any]] = []
        for result in (self.result, *self.result.get("results", [])):
            diff = result.get("diff", []) if isinstance(result, dict) else []
            found += [part for part in (diff if isinstance(diff, list) else [diff]) if part]
        return found


@dataclass(frozen=True)
class PlaybookResult:
    """The outcome of one ansible-playbook run; `log` has its command line and all that it said."""

    rc: int
    stdout: str
    stats: dict[str, Stats]
    tasks: list[Task]
    log: Path

    def of(self, host: str, status: str | None = None) -> list[Task]:
        """The tasks of one host, of one status if asked, in order."""
        return [task for task in self.tasks if task.host == host and status in (None, task.status)]

    def changes(self, host: str) -> list[Task]:
        """The tasks that changed something on `host`."""
        return [task for task in self.of(host) if task.changed]

    @property
    def reports(self) -> list[dict[str, Any]]:
        """What leak_report said of each process."""
        found: list[dict[str, Any]] = next(task.result["reports"] for task in self.tasks if "reports" in task.result)
        return found

    def failures(self, host: str | None = None) -> str:
        """The messages of all failed tasks, of one host if asked."""
        bad = [t for t in self.tasks if t.status in ("failed", "unreachable") and host in (None, t.host)]
        return "\n".join(f"{task.host}: {task.task}: {task.message}" for task in bad)

    def check(self) -> PlaybookResult:
        """Itself; fails the test, with the messages, unless the run ended well."""
        assert self.rc == 0, f"status {self.rc}, see {self.log}\n{self.failures()}\n{self.stdout[-2000:]}"
        return self


During = Callable[[subprocess.Popen[bytes], Path], None]


@dataclass
class Controller:
    """A user's set-up: a directory with an ansible.cfg, an inventory and installed collections."""

    directory: Path
    inventory: Path
    logs: Path
    runs: int = field(default=0)

    def __post_init__(self) -> None:
        self.logs.mkdir(parents=True, exist_ok=True)
        (self.directory / "ansible.cfg").write_text(
            f"""[defaults]
inventory = {self.inventory}
collections_path = {self.collections}
callback_plugins = {Path(__file__).parent / "callback_plugins"}
forks = 16
host_key_checking = True
retry_files_enabled = False
[ssh_connection]
pipelining = True
control_path_dir = {self.directory / "cp"}
"""
        )

    @property
    def collections(self) -> Path:
        return self.directory / "collections"

    @property
    def installed(self) -> Path:
        """The collection as installed."""
        return self.collections / "ansible_collections" / "offheap" / "profiler"

    @property
    def environment(self) -> dict[str, str]:
        """The tester's environment without their Ansible settings."""
        env = {key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")}
        env["PATH"] = f"{PROGRAMS}:{env['PATH']}"
        env["ANSIBLE_CONFIG"] = str(self.directory / "ansible.cfg")
        env["ANSIBLE_HOME"] = str(self.directory / "home")
        env["ANSIBLE_NOCOLOR"] = "1"
        return env

    def install(self, tarball: Path) -> None:
        """Install the collection, without a look at any server."""
        argv = ["ansible-galaxy", "collection", "install", "--offline", "--force", "-p", str(self.collections)]
        self._call("install", [*argv, str(tarball)], check=True)

    def playbook(
        self,
        name: str | Path,
        *args: str,
        limit: str | None = None,
        extra_vars: Mapping[str, Any] | None = None,
        check: bool = False,
        diff: bool = False,
        timeout: float = 900,
        during: During | None = None,
    ) -> PlaybookResult:
        """Run a playbook: a path, a name as offheap.profiler.rollback, or a file of the installed playbooks/.

        The run's own failure is in the result; raises subprocess.TimeoutExpired after `timeout` seconds. `during` is
        called once the run has begun, with its process, which leads a group of its own, and its log.
        """
        installed = self.installed / "playbooks" / name
        argv = ["ansible-playbook", str(installed if installed.exists() else name), *args]
        argv += ["--limit", limit] if limit else []
        argv += ["--extra-vars", json.dumps(extra_vars)] if extra_vars else []
        argv += ["--check"] if check else []
        argv += ["--diff"] if diff else []
        with tempfile.NamedTemporaryFile("r", dir=self.directory) as record:
            rc, log = self._call(Path(name).stem, argv, timeout, during=during, OFFHEAP_RECORD=record.name)
            lines = [json.loads(line) for line in record]
        stats = {host: _stats(row) for line in lines if "stats" in line for host, row in line["stats"].items()}
        tasks = [Task(**line) for line in lines if "stats" not in line]
        return PlaybookResult(rc, log.read_text(errors="replace"), stats, tasks, log)

    def _call(
        self,
        name: str,
        argv: list[str],
        timeout: float = 300,
        check: bool = False,
        during: During | None = None,
        **env: str,
    ) -> tuple[int, Path]:
        self.runs += 1
        log = self.logs / f"{self.runs:03}-{re.sub(r'[^A-Za-z0-9_.]+', '-', name)}.log"
        with log.open("w") as stream:
            stream.write(f"$ {shlex.join(argv)}\n")
            stream.flush()
            process = subprocess.Popen(
                argv,
                cwd=self.directory,
                env={**self.environment, **env},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                if during:
                    during(process, log)
                process.wait(timeout)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        if check and process.returncode != 0:
            raise RuntimeError(f"{shlex.join(argv)}: status {process.returncode}\n{log.read_text()[-4000:]}")
        return process.returncode, log


def build(directory: Path) -> Path:
    """Build the collection's tarball; raises subprocess.CalledProcessError with what it said."""
    env = {**os.environ, "PATH": f"{PROGRAMS}:{os.environ['PATH']}"}
    script = REPOSITORY / "tests" / "gates" / "build.sh"
    done = subprocess.run(
        [str(script), str(directory)], cwd=REPOSITORY, env=env, text=True, stdout=subprocess.PIPE, check=True
    )
    return (REPOSITORY / done.stdout.strip().splitlines()[-1]).absolute()


def _stats(row: dict[str, int]) -> Stats:
    return Stats(
        ok=row["ok"],
        changed=row["changed"],
        failed=row["failures"],
        unreachable=row["unreachable"],
        skipped=row["skipped"],
        rescued=row["rescued"],
        ignored=row["ignored"],
    )
