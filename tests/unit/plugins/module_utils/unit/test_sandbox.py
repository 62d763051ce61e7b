# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A sandbox is opened for the library and the spool where it hides them, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.host import systemd
from ansible_collections.offheap.profiler.plugins.module_utils.unit import sandbox
from ansible_collections.offheap.profiler.plugins.module_utils.unit.refusal import Refusal
from ansible_collections.offheap.profiler.tests.unit.fakes.refusals import refusal
from ansible_collections.offheap.profiler.tests.unit.fakes.units import unit

LIBRARY = "/opt/offheap/jemalloc/x/lib/libjemalloc.so.2"
SPOOL = "/var/lib/offheap/probe.service"
BESIDE = "/opt/offheap/jemalloc/x/lib"


def lines(lists: dict[str, list[str]] | None = None, **single: str) -> list[str]:
    return sandbox.lines(unit("/bin/true", lists=lists, text=single), [LIBRARY], SPOOL)


def test_no_sandbox() -> None:
    assert lines() == []
    for setting in ("yes", "full"):
        assert lines(ProtectSystem=setting) == [], "these leave /var writable"


def test_a_read_only_system() -> None:
    assert lines(ProtectSystem="strict") == [f"ReadWritePaths=-{SPOOL}"]


@pytest.mark.parametrize("path", ["/", "/var", "/var/lib/offheap", "-/var/lib", "+/var/", SPOOL])
def test_a_read_only_path_above(path: str) -> None:
    assert lines({"ReadOnlyPaths": ["/etc", path]}) == [f"ReadWritePaths=-{SPOOL}"]


@pytest.mark.parametrize("path", ["/etc", "/var/lib/off", "/var/lib/offheap/probe.service/x", "/va"])
def test_a_read_only_path_elsewhere(path: str) -> None:
    assert lines({"ReadOnlyPaths": [path]}) == []


def test_empty_directories_in_the_way() -> None:
    assert lines({"TemporaryFileSystem": ["/var:ro", "/srv"]}) == [f"BindPaths=-{SPOOL}"]
    assert lines({"TemporaryFileSystem": ["/opt:rw,noexec"]}) == [f"BindReadOnlyPaths=-{BESIDE}"]
    assert lines({"TemporaryFileSystem": ["/home"]}) == []


def test_a_library_that_could_not_be_executed() -> None:
    assert lines({"NoExecPaths": ["/"]}) == [f"ExecPaths={BESIDE}"]
    assert lines({"NoExecPaths": ["/var"]}) == []


@pytest.mark.parametrize("path", ["/opt", "-/var/lib", SPOOL, BESIDE, "/"])
def test_paths_that_hide_ours(path: str) -> None:
    with pytest.raises(Refusal, match="Narrow it to what must be hidden") as caught:
        lines({"InaccessiblePaths": ["/srv", path]})
    assert caught.value.reason == "hidden-paths"
    assert f"InaccessiblePaths={path}" in str(caught.value)


def test_the_agent_too_gets_through() -> None:
    hiding = unit("/bin/true", lists={"TemporaryFileSystem": ["/opt", "/var"]})
    assert sandbox.lines(hiding, [LIBRARY, "/opt/offheap/agent/1/liboffheap.so"], SPOOL) == [
        f"BindReadOnlyPaths=-{BESIDE}",
        "BindReadOnlyPaths=-/opt/offheap/agent/1",
        f"BindPaths=-{SPOOL}",
    ]


@pytest.mark.parametrize("path", ["/run:ro", "/", "/run/offheap"])
def test_the_socket_gets_through_an_empty_directory(path: str) -> None:
    """Without it, systemd does not find the RuntimeDirectory= in there, and the unit does not start."""
    hiding = unit("/bin/true", lists={"TemporaryFileSystem": [path]})
    assert "BindPaths=-/run/offheap/probe.service" in sandbox.socket_lines(hiding)
    elsewhere = unit("/bin/true", lists={"TemporaryFileSystem": ["/home"]})
    assert not [line for line in sandbox.socket_lines(elsewhere) if line.startswith("BindPaths")]


def test_a_hidden_socket() -> None:
    hiding = unit("/bin/true", lists={"InaccessiblePaths": ["/srv", "-/run"]})
    with pytest.raises(Refusal, match="InaccessiblePaths=-/run, which hides") as caught:
        sandbox.socket_lines(hiding)
    assert caught.value.reason == "hidden-paths"


def test_a_unit_with_an_escape_in_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """systemd takes a backslash away when it reads the line."""
    monkeypatch.setattr(sandbox, "_EXECUTOR", "/nowhere")
    spool = r"/var/lib/offheap/my\x20web.service"
    strict = unit("/bin/true", text={"ProtectSystem": "strict"})
    (line,) = sandbox.lines(strict, [LIBRARY], spool)
    assert systemd.split_words(line)[0] == f"ReadWritePaths=-{spool}"
    dynamic = unit("/bin/true", text={"DynamicUser": "yes"})
    assert systemd.split_words(sandbox.lines(dynamic, [LIBRARY], spool)[0])[0] == f"StateDirectory={spool[9:]}"


def test_an_escape_in_a_directory_that_this_systemd_cannot_make(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """systemd 257 would not start the unit: its executor fails at a backslash. The agent has an abstract name then."""
    monkeypatch.setattr(sandbox, "_EXECUTOR", str(tmp_path))
    spool = r"/var/lib/offheap/a\x2db.service"
    assert sandbox.socket_lines(unit("/bin/true", Id=r"a\x2db.service")) == []
    assert sandbox.socket_lines(unit("/bin/true"))
    assert sandbox.lines(unit("/bin/true"), [LIBRARY], spool) == []
    dynamic = unit("/bin/true", Id=r"a\x2db.service", text={"DynamicUser": "yes"})
    refusal(lambda: sandbox.lines(dynamic, [LIBRARY], spool), "escaped-name", "backslash", "User=")
    assert sandbox.lines(dynamic, [LIBRARY], None) == [], "without a spool there is no such directory"


@pytest.mark.parametrize("setting", [{"PrivateNetwork": "yes"}, {"NetworkNamespacePath": "/run/netns/a"}])
def test_an_abstract_name_in_another_network(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, setting: dict[str, str]
) -> None:
    """Nobody outside of it can connect to that (unix(7)): the unit would be restarted twice in vain."""
    escaped = unit("/bin/true", Id=r"a\x2db.service", text=setting)
    monkeypatch.setattr(sandbox, "_EXECUTOR", str(tmp_path / "none"))
    assert sandbox.socket_lines(escaped), "older releases make the directory"
    monkeypatch.setattr(sandbox, "_EXECUTOR", str(tmp_path))
    assert sandbox.socket_lines(unit("/bin/true", text=setting))
    refusal(lambda: sandbox.socket_lines(escaped), "escaped-name", "network of its own", "without escapes")


def test_a_unit_with_a_colon_in_its_name() -> None:
    """A colon separates a directory from a link to it (systemd.exec(5), RuntimeDirectory=)."""
    named = unit("/bin/true", Id="a:1.service")
    assert sandbox.socket_lines(named) == [
        r"RuntimeDirectory=offheap/a\:1.service",
        "UnsetEnvironment=RUNTIME_DIRECTORY",
    ]
    again = unit("/bin/true", Id="a:1.service", lists={"RuntimeDirectory": ["offheap/a:1.service"]})
    assert sandbox.socket_lines(again) == sandbox.socket_lines(named)


def test_a_transient_user() -> None:
    assert lines(DynamicUser="yes", ProtectSystem="strict") == [
        "StateDirectory=offheap/probe.service",
        "UnsetEnvironment=STATE_DIRECTORY",
    ]


def test_a_transient_user_whose_umask_keeps_it_from_the_directories_above() -> None:
    """As systemd 247 makes them with that mask."""
    assert lines(DynamicUser="yes", UMask="0077")[2:] == ["BindReadOnlyPaths=-/var/lib/private/offheap"]
    assert lines(UMask="0077") == []


def test_a_transient_user_that_has_state_directories() -> None:
    """The service sees the same variables as before, even if our own drop-in is there already."""
    expected = ["StateDirectory=offheap/probe.service", 'Environment="STATE_DIRECTORY=/var/lib/a:/var/lib/b"']
    assert lines({"StateDirectory": ["a", "b:link"]}, DynamicUser="yes") == expected
    assert lines({"StateDirectory": ["a", "b", "offheap/probe.service"]}, DynamicUser="yes") == expected


def test_a_state_directory_with_an_odd_name() -> None:
    assert lines({"StateDirectory": [r"a\x2d%"]}, DynamicUser="yes")[1] == (
        r'Environment="STATE_DIRECTORY=/var/lib/a\\x2d%%"'
    )


def test_a_directory_for_the_agent_s_socket() -> None:
    plain = unit("/bin/true")
    assert sandbox.socket_lines(plain) == [
        "RuntimeDirectory=offheap/probe.service",
        "UnsetEnvironment=RUNTIME_DIRECTORY",
    ]
    having = unit("/bin/true", lists={"RuntimeDirectory": ["web", "offheap/probe.service"]})
    assert sandbox.socket_lines(having)[1] == 'Environment="RUNTIME_DIRECTORY=/run/web"'
