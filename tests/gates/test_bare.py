# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What bare.sh hides from tests: our directories on this machine, and the user's home."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.tests.gates.files import ROOT

BARE = str(ROOT / "tests" / "gates" / "bare.sh")


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env={**os.environ, **environment}, cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("path", ["/var/lib/offheap", "/opt/offheap", "/run/offheap", "/var/cache/offheap-lab"])
def test_a_directory_of_ours_is_not_there_and_cannot_be_made(path: str) -> None:
    """The test puts it on a machine with nothing else in that place, in a mount namespace of its own."""
    parent = Path(path).parent
    machine = f"mount -t tmpfs tmpfs {parent}; mkdir {path} {parent}/other; ln -s other {parent}/link; "
    as_root = [] if os.geteuid() == 0 else ["--map-root-user"]
    seen = run(
        *("unshare", *as_root, "--mount", "sh", "-ec", machine + 'exec "$@"', "sh"),
        *(BARE, "sh", "-c", f"ls -A {parent}; mkdir {path}"),
    )
    beside = set(seen.stdout.split()) - {"mount"}  # mount's own files, in /run/mount
    assert beside == {"link", "other"}, seen.stderr
    assert seen.returncode != 0 and "Read-only file system" in seen.stderr


def test_a_home_is_empty_and_nothing_stays_in_it(tmp_path: Path) -> None:
    (tmp_path / ".marker").touch()
    seen = run(BARE, "sh", "-c", "cd; ls -A; touch new; ls", HOME=str(tmp_path))
    assert (seen.stdout, seen.stderr) == ("new\n", "")
    assert [path.name for path in tmp_path.iterdir()] == [".marker"]


@pytest.mark.parametrize("home", [Path.home(), ROOT.parent, Path("/tmp")], ids=["home", "checkout", "tmp"])
def test_the_checkout_and_its_python_are_there_when_they_lie_in_the_home(home: Path) -> None:
    seen = run(BARE, ".venv/bin/python", "-c", "import os, pytest; print(os.getcwd())", HOME=str(home))
    assert seen.stdout == f"{ROOT}\n", seen.stderr


def test_a_checkout_that_would_be_hidden_is_refused() -> None:
    seen = run(BARE, "echo", "ran", HOME=str(ROOT))
    assert (seen.returncode, seen.stdout) == (1, "")
    assert "this checkout is hidden, too" in seen.stderr


def test_nothing_runs_where_nothing_can_be_hidden(tmp_path: Path) -> None:
    refusing = tmp_path / "unshare"
    refusing.write_text("#!/bin/sh\nexit 1\n")
    refusing.chmod(0o755)
    seen = run(BARE, "echo", "ran", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert (seen.returncode, seen.stdout) == (1, "")
    assert "needs root or user namespaces" in seen.stderr


def test_the_status_is_that_of_the_command() -> None:
    assert run(BARE, "sh", "-c", "exit 77").returncode == 77
