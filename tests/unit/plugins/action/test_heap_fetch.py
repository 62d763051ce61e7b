# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The pure parts of the controller's half; all of it runs in tests/integration/test_collect.py."""

from __future__ import annotations

import resource
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleConnectionFailure, AnsibleError

from ansible_collections.offheap.profiler.plugins.action import heap_fetch as action
from ansible_collections.offheap.profiler.plugins.plugin_utils.fetch import ingest
from ansible_collections.offheap.profiler.plugins.plugin_utils.fetch.unpack_tar import TransferError


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


def plugin(connection: Connection) -> Any:
    made: Any = action.ActionModule.__new__(action.ActionModule)
    made._connection = connection
    made._staging = Shell.tmpdir
    return made


PACKED = ingest.Packed(size=100, sha256="0" * 64, members={}, skipped={})


def test_the_file_is_fetched_from_where_we_wanted_it(tmp_path: Path) -> None:
    connection = Connection()
    with pytest.raises(TransferError, match="did not arrive"):
        plugin(connection)._get(PACKED, tmp_path / "file")
    assert connection.fetched == ["/home/deploy/.ansible/tmp/ansible-tmp-1/offheap-captures.tar.gz"]


def test_a_failed_fetch(tmp_path: Path) -> None:
    with pytest.raises(TransferError, match=r"cannot fetch .*: sftp said no"):
        plugin(Connection(AnsibleError("sftp said no")))._get(PACKED, tmp_path / "file")
    with pytest.raises(AnsibleConnectionFailure):
        plugin(Connection(AnsibleConnectionFailure("gone")))._get(PACKED, tmp_path / "file")
