# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What answers in a service's stead, or lies in its directory, once somebody has taken it over."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.host import sockets
from ansible_collections.offheap.profiler.plugins.module_utils.tracing import endpoint, profile_files
from ansible_collections.offheap.profiler.plugins.module_utils.tracing.endpoint import Endpoint, OfferError
from ansible_collections.offheap.profiler.tests.hostile.bounds import costs_at_most
from ansible_collections.offheap.profiler.tests.unit.fakes import profile_server

UNIT = "web.service"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "PATIENCE", 1.5)
    monkeypatch.setattr(endpoint, "_ACCEPTED", 1.0)
    monkeypatch.setattr(endpoint, "LARGEST", 1 << 20)


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("endless", "larger than 1 MiB"),
        ("announces-too-much", "larger than 1 MiB"),
        ("announces-more-than-it-sends", "IncompleteRead|before its announced length"),
        ("one-chunk-of-all-memory", "IncompleteRead"),
        ("redirects", "answers 302 .* not followed"),
        ("continues-for-ever", "larger than 1 MiB"),
        ("headers-for-ever", "got more than 100 headers|larger than 1 MiB"),
        ("drips", "not ended after"),
        ("no-http", "does not answer as HTTP has it"),
        ("nothing", "answers 404"),
    ],
)
def test_an_answer_has_its_time_and_its_size(target: str, says: str) -> None:
    with profile_server.running() as service:
        began = time.monotonic()
        with costs_at_most(seconds=5, mib=8), pytest.raises(OfferError, match=says):
            endpoint.ask(Endpoint("127.0.0.1", service.port, f"/{target}", ""), UNIT, lambda: [service.pid])
        assert time.monotonic() - began < 5


def test_another_process_is_not_asked(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"heap_v2/1\n")
    with profile_server.running(profile=secret) as service:
        address = Endpoint("127.0.0.1", service.port, "/profile", "")
        with pytest.raises(OfferError, match=f"process {service.pid} answers at port {service.port}, which is none of"):
            endpoint.ask(address, UNIT, lambda: [os.getpid()])
    with profile_server.running(tmp_path / "s") as service:
        address = Endpoint("127.0.0.1", 80, "/profile", str(tmp_path / "s"))
        with pytest.raises(OfferError, match=f"process {service.pid} answers at {tmp_path}/s, which is none of"):
            endpoint.ask(address, UNIT, lambda: [os.getpid()])


def test_one_that_accepts_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = Endpoint("127.0.0.1", listener.getsockname()[1], "/", "")
        with pytest.raises(OfferError, match="nobody has accepted"):
            endpoint.ask(address, UNIT, lambda: [os.getpid()])


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_a_socket_for_both_protocols_is_told_apart(family: socket.AddressFamily) -> None:
    """Go listens for IPv4 and IPv6 at once; the kernel then lists the connection as one of IPv6."""
    with socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True) as listener:
        where = "127.0.0.1" if family == socket.AF_INET else "::1"
        with socket.socket(family) as ours:
            ours.connect((where, listener.getsockname()[1]))
            assert sockets.accepted(ours) == 0
            accepted, _address = listener.accept()
            with accepted:
                inode = sockets.accepted(ours)
                assert inode == os.fstat(accepted.fileno()).st_ino
                assert sockets.holder(inode, [1, os.getpid()]) == os.getpid()


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(profile_files, "_QUIET", 0.0)
    path = tmp_path.resolve() / "dumped"
    path.mkdir()
    return path


def found(path: Path) -> tuple[list[str], dict[str, str]]:
    left: dict[str, str] = {}
    return [file.name for file in profile_files.find(str(path), [os.getpid()], 0, left)], left


def test_only_ordinary_files_of_the_service_are_read(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_files, "LARGEST", 1 << 20)
    secret = directory.parent / "shadow"
    secret.write_text("root's")
    (directory / "link").symlink_to(secret)
    os.link(secret, directory / "hard link")
    os.mkfifo(directory / "fifo")
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(directory / "socket"))
    (directory / "below").mkdir()
    (directory / "huge").touch()
    os.truncate(directory / "huge", 1 << 40)
    (directory / "profile").write_bytes(b"one")
    if os.geteuid() == 0:
        (directory / "another's").write_bytes(b"one")
        os.chown(directory / "another's", 12345, 12345)
    with costs_at_most(seconds=2, mib=4):
        names, left = found(directory)
    assert names == ["profile"]
    assert set(left) >= {"link", "hard link", "fifo", "socket", "huge"} and "below" not in left
    assert "hard links" in left["hard link"] and "larger than" in left["huge"]
    if os.geteuid() == 0:
        assert "none of the service's" in left["another's"]


def test_no_link_leads_elsewhere(directory: Path) -> None:
    (directory.parent / "link").symlink_to("/etc")
    for path in (directory.parent / "link", directory.parent / "link" / "ssl"):
        with pytest.raises(OfferError, match="name the directory that a link leads to"):
            found(path)


def test_a_file_that_grows_while_it_is_read(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = directory / "heap"
    path.write_bytes(b"one")
    dup = os.dup

    def growing(fd: int) -> int:
        with path.open("ab") as file:
            file.write(b"more")
        return dup(fd)

    monkeypatch.setattr(os, "dup", growing)
    assert found(directory) == ([], {"heap": "it changed while it was read"})


def test_the_newest_of_very_many(directory: Path) -> None:
    for number in range(profile_files.MOST + 50):
        (directory / f"{number:03}").touch()
        os.utime(directory / f"{number:03}", (1000 + number, 1000 + number))
    names, _left = found(directory)
    assert names == [f"{number:03}" for number in range(50, profile_files.MOST + 50)]
