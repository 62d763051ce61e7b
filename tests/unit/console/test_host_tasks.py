# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What a command line means. Fabric itself parses it, and has other meanings for these letters."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import pytest

from ansible_collections.offheap.profiler.console.fab_program import versions

ROOT = Path(__file__).resolve().parents[3]
NONE = "no host of the inventory matches 'nosuch'"


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    path = tmp_path / "hosts.ini"
    path.write_text("[web]\napp1 ansible_host=192.0.2.1\n")
    return path


def _fab(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [Path(sys.executable).with_name("fab"), *words],
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_LOCALHOST_WARNING": "false"},
        text=True,
        capture_output=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("-i {} --limit nosuch status", NONE),
        ("--limit=nosuch -i {} status", NONE),
        ("-i {} status --limit nosuch", NONE),
        ("-i {} -l nosuch status", NONE),
        ("status -i {} --limit nosuch", NONE),
        ("-i {} --limit nosuch status --limit unknown", "no host of the inventory matches 'unknown'"),
        ("-H app1 --limit web status", "name hosts with -H, or an inventory"),
        ("-H app1 -i {} status", "name hosts with -H, or an inventory"),
        ("-i {} dump", "name the service with --unit"),
    ],
)
def test_hosts_and_limits(inventory: Path, line: str, says: str) -> None:
    done = _fab(*line.format(inventory).split())
    assert done.returncode == 2, done.stdout + done.stderr
    assert says in done.stderr


def test_ctrl_c_ends_a_command_with_a_word_and_serve_without(tmp_path: Path) -> None:
    (tmp_path / "report.html").touch()
    fab = [sys.executable, "-u", str(Path(sys.executable).with_name("fab"))]
    with subprocess.Popen([*fab, "serve", "--directory", tmp_path, "--port", "0"], cwd=ROOT, stdout=PIPE) as serving:
        assert serving.stdout is not None and b"Ctrl-C ends" in serving.stdout.readline()
        serving.send_signal(signal.SIGINT)
    assert serving.returncode == 0
    with socket.create_server(("127.0.0.1", 0)) as server:  # it never says what an sshd says first
        asked = [*fab, "-H", f"127.0.0.1:{server.getsockname()[1]}", "status"]
        with subprocess.Popen(asked, cwd=ROOT, stderr=PIPE, text=True) as asking, server.accept()[0]:
            asking.send_signal(signal.SIGINT)
            assert asking.stderr is not None
            assert "interrupted; what ran on the hosts was ended" in asking.stderr.read()
    assert asking.returncode == 130


def test_the_version_of_the_collection(tmp_path: Path) -> None:
    (tmp_path / "MANIFEST.json").write_text(json.dumps({"collection_info": {"version": "9.8.7"}}))
    assert versions(tmp_path)[0] == f"offheap.profiler 9.8.7 ({tmp_path})"
    done = _fab("version")
    told = [line.split()[0] for line in done.stdout.splitlines()]
    assert told == ["offheap.profiler", "ansible-core", "fabric", "Python"], done.stderr
    assert (ROOT / "galaxy.yml").read_text().count(f"version: {done.stdout.split()[1]}\n") == 1


def test_output_that_nobody_takes_ends_a_command_without_a_traceback() -> None:
    fab = str(Path(sys.executable).with_name("fab"))

    def done(redirected: str, **environment: str) -> tuple[int, str, str]:
        # Buffered, as Python is by itself.
        env = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"} | environment
        line = ["sh", "-c", f'"$0" wait 60MiB --json {redirected}', fab]
        ended = subprocess.run(line, cwd=ROOT, env=env, text=True, capture_output=True, check=False)
        return ended.returncode, ended.stdout, ended.stderr

    assert done(">/dev/full") == (1, "", "standard output cannot be written: No space left on device\n")
    assert done(">&-") == (0, "", "")
    assert done("<&- >&- 2>&-") == (0, "", "")
    reader, pipe = os.pipe()
    os.close(reader)
    with open(pipe, "wb") as broken:
        line = [fab, "wait", "60MiB", "--json"]
        ended = subprocess.run(line, cwd=ROOT, stdout=broken, stderr=PIPE, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (1, "")


def test_healthy_hosts_are_shown_while_a_dead_one_is_waited_for(tmp_path: Path) -> None:
    fab = [sys.executable, "-u", str(Path(sys.executable).with_name("fab")), "--search-root", str(ROOT)]
    with socket.create_server(("127.0.0.1", 0)) as server:  # it never says what an sshd says first
        dead = f"127.0.0.1:{server.getsockname()[1]}"
        asked = [*fab, "-H", f"{dead},localhost", "collect", "--unit", "frontend"]
        with subprocess.Popen(asked, cwd=tmp_path, stdout=PIPE, stderr=PIPE, text=True) as asking:
            with server.accept()[0]:
                assert asking.stdout is not None
                assert asking.stdout.readline().split() == ["HOST", "UNIT", "CAPTURES", "NETWORK"]
                assert asking.stdout.readline().startswith("localhost  nothing new")
                assert asking.poll() is None
                server.close()
            said = asking.communicate()[1]
    assert asking.returncode == 1 and "1 of 2 hosts failed" in said, said


def test_watch_says_at_once_which_host_it_has_lost(tmp_path: Path) -> None:
    fab = [sys.executable, "-u", str(Path(sys.executable).with_name("fab")), "--search-root", str(ROOT)]
    with socket.create_server(("127.0.0.1", 0)) as gone, socket.create_server(("127.0.0.1", 0)) as silent:
        names = [f"127.0.0.1:{server.getsockname()[1]}" for server in (gone, silent)]
        gone.close()
        asked = [*fab, "-H", ",".join(names), "watch", "--unit", "nosuch"]
        with subprocess.Popen(asked, cwd=tmp_path, stdout=PIPE, stderr=PIPE, text=True) as asking, silent.accept()[0]:
            assert asking.stdout is not None
            assert asking.stdout.readline().startswith(f"{names[0]} ")
            assert asking.poll() is None
            asking.send_signal(signal.SIGINT)
    done = _fab("-H", "a,b,c", "watch", "--unit", "x", "--at-once", "2")
    assert done.returncode == 2 and "give --at-once 3" in done.stderr


def test_watch_ends_when_nobody_reads_its_lines(tmp_path: Path) -> None:
    fab = [sys.executable, str(Path(sys.executable).with_name("fab")), "--search-root", str(ROOT)]
    reader, pipe = os.pipe()
    os.close(reader)
    with socket.create_server(("127.0.0.1", 0)) as gone, socket.create_server(("127.0.0.1", 0)) as silent:
        names = [f"127.0.0.1:{server.getsockname()[1]}" for server in (gone, silent)]
        gone.close()
        asked = [*fab, "-H", ",".join(names), "watch", "--unit", "nosuch"]
        with (
            open(pipe, "wb") as broken,
            subprocess.Popen(asked, cwd=tmp_path, stdout=broken, stderr=PIPE, text=True) as asking,
        ):
            said = asking.communicate()[1]
    assert (asking.returncode, said) == (1, "")
