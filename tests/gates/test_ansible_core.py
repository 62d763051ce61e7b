# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The collection runs on each ansible-core from the oldest that it declares to the newest, with its action group."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ansible_collections.offheap.profiler.tests.conftest import COLLECTIONS
from ansible_collections.offheap.profiler.tests.gates.files import ROOT
from ansible_collections.offheap.profiler.tests.unit.strategies import leaky_archives

pytestmark = pytest.mark.slow

RUNTIME = yaml.safe_load((ROOT / "meta" / "runtime.yml").read_text(encoding="utf-8"))
#: each release with the oldest Python of its controller that we support; the first is what runtime.yml declares
RELEASES = [("2.17", "3.11"), ("2.18", "3.11"), ("2.19", "3.11"), ("2.20", "3.12"), ("2.21", "3.12"), ("2.22", "3.13")]
#: all but the oldest and the newest are left to make soak
IN_TURN = [
    pytest.param(*release, marks=[] if release in (RELEASES[0], RELEASES[-1]) else pytest.mark.soak_only)
    for release in RELEASES
]
PLAY = """
- hosts: localhost
  connection: local
  gather_facts: false
  module_defaults:
    group/offheap.profiler.all:
      archive: archive
      hosts: [app1]
  tasks:
    - name: Report what leaks
      offheap.profiler.leak_report:
        show: false
      register: found
    - name: Look at a process
      offheap.profiler.native_memory_info:
        pids: [{pid}]
      register: looked
      module_defaults:
        group/offheap.profiler.all: {{}}
    - name: See that it has found the leak
      ansible.builtin.assert:
        that:
          - found.reports | map(attribute='host') | list == ['app1']
          - found.reports[0].verdict == 'leak'
          - looked is success
- import_playbook: offheap.profiler.report_leaks
"""


def _python(minimum: str) -> Path:
    """A Python that is at least so new."""
    if sys.version_info >= tuple(map(int, minimum.split("."))):
        return Path(sys.executable)
    for version in (minimum, "3.13", "3.14"):
        found = subprocess.run(
            ["tests/gates/find_python.sh", version], cwd=ROOT, capture_output=True, text=True, check=False
        )
        if not found.returncode:
            return Path(found.stdout.strip())
    pytest.skip(f"there is no Python {minimum} or newer on this machine")


def _environment(release: str, python: Path) -> Path:
    """Programs of an ansible-core with our libraries; made once."""
    venv = ROOT / "build" / "core" / release
    if not (venv / "bin" / "ansible-playbook").exists():
        uv = str(Path(sys.executable).with_name("uv"))
        subprocess.run([uv, "venv", "-q", "--clear", "-p", str(python), str(venv)], check=True)
        needs = ["-r", str(ROOT / "meta" / "ee-requirements.txt")]
        to = ["-p", str(venv / "bin" / "python")]
        subprocess.run([uv, "pip", "install", "-q", *to, f"ansible-core=={release}.*", *needs], check=True)
    return venv / "bin"


def test_the_group_has_every_module() -> None:
    assert sorted(RUNTIME["action_groups"]["all"]) == sorted(p.stem for p in (ROOT / "plugins/modules").glob("*.py"))


def test_the_oldest_release_is_the_declared_one() -> None:
    assert RUNTIME["requires_ansible"] == f">={RELEASES[0][0]}.0"


@pytest.mark.parametrize(("release", "python"), IN_TURN)
def test_it_runs(release: str, python: str, tmp_path: Path) -> None:
    programs = _environment(release, _python(python))
    leaky_archives.fill(tmp_path / "archive", tmp_path / "scratch")
    (tmp_path / "play.yml").write_text(PLAY.format(pid=os.getpid()))
    environment = {
        **os.environ,
        "ANSIBLE_COLLECTIONS_PATH": str(COLLECTIONS),
        "ANSIBLE_LOCALHOST_WARNING": "false",
        "ANSIBLE_LOCAL_TEMP": str(tmp_path / ".ansible"),
        "ANSIBLE_PYTHON_INTERPRETER": str(programs / "python"),
    }
    command = [str(programs / "ansible-playbook"), "play.yml", "-e", "offheap_archive=archive"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "does not support Ansible version" not in done.stderr
    assert (tmp_path / "offheap" / "report" / "report.html").exists()
