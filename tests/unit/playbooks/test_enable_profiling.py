# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""How enable_profiling ends: with what is profiled where and what comes next, and with a line for each refusal."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.offheap.profiler.tests.conftest import COLLECTIONS, ROOT

AGENT = {"OFFHEAP_START": "sampling", "OFFHEAP_DUMP_SECONDS": "600"}


def _unit(name: str, problem: str = "", environment: dict[str, str] = AGENT) -> dict[str, Any]:
    return {"unit": f"{name}.service", "problem": problem, "environment": environment}


def _end(
    directory: Path, hosts: dict[str, list[dict[str, Any]]], refusals: list[str], *options: str
) -> tuple[int, str]:
    """The last play, after others have left these facts."""
    plays = yaml.safe_load((ROOT / "playbooks" / "enable_profiling.yml").read_text())
    book, inventory = directory / "play.yml", directory / "my fleet.yml"
    book.write_text(json.dumps(plays[-1:]))
    facts = {
        name: {
            "ansible_connection": "local",
            "_profiled_service_enabled": {"units": units},
            "_profiled_service_refusals": refusals,
        }
        for name, units in hosts.items()
    }
    inventory.write_text(json.dumps({"all": {"hosts": facts}}))
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", str(inventory), str(book), *options]
    environment = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(COLLECTIONS), "ANSIBLE_NOCOLOR": "1", "COLUMNS": "400"}
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def _said(text: str) -> list[str]:
    """The lines of the last message."""
    last = text[text.rindex('"msg": [') + len('"msg": ') : text.index("PLAY RECAP")]
    return [line for line in json.loads(last[: last.index("]") + 1])]


def test_a_host_that_fails_ends_the_rollout_and_none_is_left_alone_whatever_is_set(tmp_path: Path) -> None:
    (play,) = [
        one for one in yaml.safe_load((ROOT / "playbooks" / "enable_profiling.yml").read_text()) if "serial" in one
    ]
    play |= {
        "become": False,
        "tasks": [{"ansible.builtin.command": "sh -c 'sleep 2; test {{ inventory_hostname }} != app1'"}],
    }
    (tmp_path / "play.yml").write_text(json.dumps([play]))
    command = [
        str(Path(sys.executable).with_name("ansible-playbook")),
        "-i",
        "app1,app2,app3",
        "-c",
        "local",
        "play.yml",
    ]
    command += ["-e", json.dumps({"offheap_serial": [2, 1], "ansible_python_interpreter": sys.executable})]
    environment = {
        **os.environ,
        "ANSIBLE_COLLECTIONS_PATH": str(COLLECTIONS),
        "ANSIBLE_STRATEGY": "free",
        "ANSIBLE_TASK_TIMEOUT": "1",
    }
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    told = done.stdout[done.stdout.index("PLAY RECAP") :]
    assert "app1" in told and "app3" not in told, done.stdout + done.stderr
    assert re.search(r"app2 .*failed=0", told), "its task was interrupted"


@pytest.mark.parametrize(
    "book", sorted({path.resolve() for path in (ROOT / "playbooks").glob("*.yml")}), ids=lambda path: path.stem
)
def test_a_play_of_hosts_knows_what_runs_once_and_ends_no_step_halfway(book: Path) -> None:
    for play in yaml.safe_load(book.read_text()):
        if "offheap_hosts" in play.get("hosts", ""):
            assert (play["strategy"], play["timeout"]) == ("ansible.builtin.linear", 0), play["name"]


def test_a_run_ends_with_what_is_profiled_where_and_when_there_is_a_verdict(tmp_path: Path) -> None:
    hosts = {"app1": [_unit("frontend"), _unit("db")], "app2": [_unit("frontend"), _unit("db", problem="no")]}
    status, text = _end(tmp_path, hosts, [])
    assert status == 0, text
    play = f"ansible-playbook -i '{tmp_path}/my fleet.yml' offheap.profiler"
    assert _said(text) == [
        "db.service is profiled on app1",
        "frontend.service is profiled on app1, app2",
        "First verdict in 20 min, sooner where memory grows.",
        f"For one now, take two dumps, a minute apart: {play}.switch_profiling -e state=dump",
        f"Then: {play}.collect_profiles, and report_leaks.",
        "How long a slow leak takes, such as one of 60 MiB a day: fab wait 60MiB",
    ]
    assert "skipping" not in text[text.index('"msg"') :], "nothing comes after it"


def test_without_an_agent_no_time_is_told_and_no_dump_offered_and_many_hosts_are_counted(tmp_path: Path) -> None:
    status, text = _end(tmp_path, {f"app{number}": [_unit("web", environment={})] for number in range(6)}, [])
    assert status == 0, text
    first, then, _slow = _said(text)
    assert (first, then[:6]) == ("web.service is profiled on 6 hosts", "Then: ")


def test_a_unit_that_does_not_sample_yet_is_told_with_the_command_that_begins(tmp_path: Path) -> None:
    status, text = _end(tmp_path, {"app1": [_unit("web", environment={**AGENT, "OFFHEAP_START": "dormant"})]}, [])
    assert status == 0, text
    assert _said(text)[1].startswith("Sampling is off. To begin: ") and _said(text)[1].endswith(" -e state=on")
    assert "First verdict" not in text


def test_each_refusal_has_a_line_of_its_own_and_the_rest_is_told_all_the_same(tmp_path: Path) -> None:
    status, text = _end(tmp_path, {"app1": [_unit("web")], "app2": [_unit("web")]}, ["a.service: x.", "b.service: y."])
    assert status == 2, text
    assert "a.service: x.\nb.service: y." in text.replace("\\n", "\n")
    assert _said(text)[0] == "web.service is profiled on app1, app2"


def test_nothing_is_told_of_what_was_only_rehearsed(tmp_path: Path) -> None:
    status, text = _end(tmp_path, {"app1": [_unit("web")]}, [], "--check")
    assert status == 0, text
    assert "is profiled on" not in text
