# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What several unit tests stand on."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.host import trusted_path
from ansible_collections.offheap.profiler.tests.unit.fakes import s3
from ansible_collections.offheap.profiler.tests.unit.fakes.units import Systemctl


@pytest.fixture
def systemctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Systemctl:
    """Stands in the place of systemctl and of the control groups."""
    return Systemctl(tmp_path, monkeypatch)


@pytest.fixture(scope="session")
def public_directory() -> Iterator[Path]:
    """A directory whose files every user can read; pytest's own are root's alone."""
    directory = Path(tempfile.mkdtemp(prefix="offheap-unit-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a module's tests build their programs."""
    return tmp_path_factory.mktemp("programs")


@pytest.fixture
def trusting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes libraries from anywhere: every user may write to /tmp, where those of tests are."""
    monkeypatch.setattr(trusted_path, "fault", lambda _path: None)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[s3.Server]:
    with s3.running() as server:
        yield server


@pytest.fixture
def s3_store(s3_server: s3.Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[s3.Server]:
    """An S3 server that libraries find by themselves, and a cache for what is read from it."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield s3_server
    s3_server.be_strange()
