# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The controller's half without a host; with hosts it runs in tests/integration/test_collect.py."""

from __future__ import annotations

import resource
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleConnectionFailure, AnsibleError

from ansible_collections.offheap.profiler.plugins.action import heap_fetch as action
from ansible_collections.offheap.profiler.plugins.plugin_utils.fetch import ansible_ssh, ingest
from ansible_collections.offheap.profiler.plugins.plugin_utils.fetch.unpack_tar import TransferError
from ansible_collections.offheap.profiler.tests.unit.fakes import actions
from ansible_collections.offheap.profiler.tests.unit.plugins.plugin_utils.archive import capture_samples


def test_a_target_cannot_send_more_than_it_has_announced(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with (tmp_path / "file").open("wb") as file, action._file_size_limit(10000):
        sent = subprocess.run(["head", "-c", "100000", "/dev/zero"], stdout=file, check=False)
    assert sent.returncode != 0
    assert (tmp_path / "file").stat().st_size == 10000
    assert resource.getrlimit(resource.RLIMIT_FSIZE) == before


class Shell:
    tmpdir = "/home/deploy/.ansible/tmp/ansible-tmp-1/"

    def join_path(self, *parts: str) -> str:
        return "/".join(part.rstrip("/") for part in parts)


class Connection:
    """A connection that does what the test says when a file is fetched."""

    def __init__(self, outcome: Exception | None = None) -> None:
        self._shell = Shell()
        self._outcome = outcome
        self.fetched: list[str] = []

    def fetch_file(self, source: str, target: str) -> None:
        self.fetched.append(source)
        if self._outcome:
            raise self._outcome


def transport(connection: Connection, answer: dict[str, Any] | None = None) -> action.ModuleTransport:
    return action.ModuleTransport(lambda _step, _request: answer or {}, connection, Shell.tmpdir)


PACKED = ingest.Packed(size=100, sha256="0" * 64, members={}, skipped={})


def test_the_file_is_fetched_from_where_we_wanted_it(tmp_path: Path) -> None:
    connection = Connection()
    with pytest.raises(TransferError, match="did not arrive"):
        transport(connection)._get(PACKED, tmp_path / "file")
    assert connection.fetched == ["/home/deploy/.ansible/tmp/ansible-tmp-1/offheap-captures.tar"]


def test_a_failed_fetch(tmp_path: Path) -> None:
    with pytest.raises(TransferError, match=r"cannot fetch .*: sftp said no"):
        transport(Connection(AnsibleError("sftp said no")))._get(PACKED, tmp_path / "file")
    with pytest.raises(AnsibleConnectionFailure):
        transport(Connection(AnsibleConnectionFailure("gone")))._get(PACKED, tmp_path / "file")


def test_a_step_that_fails_on_the_host() -> None:
    with pytest.raises(TransferError, match="no such spool"):
        transport(Connection(), {"failed": True, "msg": "no such spool"}).find()
    broken = {"failed": True, "msg": "MODULE FAILURE", "module_stdout": "/bin/sh: 1: python3: not found"}
    with pytest.raises(TransferError, match=r"which said: /bin/sh: 1: python3: not found.*ansible_python_interpreter"):
        transport(Connection(), broken).find()


def run(archive: Path, listing: dict[str, Any], check: bool = False) -> dict[str, Any]:
    """The task's result if the host sends this listing through the module and fails at everything else."""
    plugin = actions.action(action, check, archive=str(archive))
    failed = {"failed": True, "msg": "the disk is full"}
    plugin._execute_module = lambda module_args, **_rest: listing if module_args["step"] == "list" else failed
    result: dict[str, Any] = plugin.run(task_vars={"inventory_hostname": "app1"})
    return result


def test_check_mode_says_what_would_come(tmp_path: Path) -> None:
    result = run(tmp_path / "archive", capture_samples.listing(b"one", b"second"), check=True)
    assert result["summary"] == "app1: would bring 2 captures of frontend.service, 109 B, 1 images"
    assert [capture["name"] for capture in result["captures"]] == ["jeprof.12.0.i0.heap", "jeprof.12.1.i1.heap"]
    assert (result["changed"], result["streamed"], result["collected"], result["writing"]) == (True, False, 2, [])
    assert result["missing_images"] == [{"path": "/opt/gone.so", "reason": "replaced"}]
    assert result["warnings"][0].startswith("app1: 1 files of ended processes")
    assert not (tmp_path / "archive").exists()


def test_a_failure_on_the_host_is_the_tasks(tmp_path: Path) -> None:
    result = run(tmp_path / "archive", capture_samples.listing(b"one"))
    assert (result["failed"], result["msg"], result["changed"]) == (True, "the disk is full", False)
    assert set(result) <= {"failed", "msg", "changed", "archive", "streamed", "warnings"}, "the sentence, and no more"
    (tmp_path / "archive" / "archive.json").write_text("{")
    assert "archive.json is damaged" in run(tmp_path / "archive", {})["msg"]


def test_a_host_that_cannot_be_reached_is_unreachable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(*_arguments: object) -> None:
        raise ansible_ssh.Unreachable("No route to host")

    monkeypatch.setattr(ansible_ssh, "session", nobody)
    with pytest.raises(AnsibleConnectionFailure, match="No route to host"):
        run(tmp_path / "archive", {})
