# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A whole hunt on three hosts, one of which lies in all that it answers: the others are done and have nothing of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.offheap.profiler.tests.integration.hosts import LabHost
from ansible_collections.offheap.profiler.tests.integration.playbooks import Controller, PlaybookResult

pytestmark = pytest.mark.usefixtures("quiet_lab")

HONEST, LIAR = ("app1", "app3"), "app2"
UNIT = "ticker.service"
# Stands in every lie.
MARK = "kilroy-was-here"
ESCAPES = ("\x1b", "\r", "\x07", "\u202e")

# By name: what becomes of an answer (`answer`, a dictionary) or of its bytes (`said`) before they are sent. `every`
# puts something in the place of each text of an answer.
LIES = {
    "templates": 'answer = every(answer, \'{{ lookup("pipe", "touch KILROY") }}\' + MARK)',
    "words of a shell": "answer = every(answer, '$(touch /tmp/' + MARK + '); `touch /tmp/' + MARK + '`')",
    "paths": "answer = every(answer, '../../../../../../tmp/' + MARK)",
    "a terminal's escapes": "answer = every(answer, '\\x1b]0;' + MARK + '\\x07\\r\\x1b[2J\\u202e')",
    "numbers for texts": "answer = every(answer, 10 ** 30)",
    "lists for everything": "answer = {key: [MARK] for key in answer}",
    "facts of other hosts": (
        "answer['ansible_facts'] = {'ansible_python_interpreter': '/tmp/' + MARK, 'offheap_units': [MARK],"
        " 'profiled_service_library': '/tmp/' + MARK, 'jemalloc_prefix': '/tmp/' + MARK};"
        "answer['add_host'] = {'host_name': MARK, 'groups': ['all'], 'host_vars': {}}"
    ),
    "no JSON": "said = (MARK + ' {').encode()",
    "a result that is large": "answer['msg'] = answer['platform'] = MARK * (4 << 20)",
    "nothing": "said = b''",
}
# In a session (of heap_fetch), what comes after the word that says it is ready.
BABBLE = {
    "no JSON": f"{MARK}\n",
    "a result that is large": "9" * 16,
    "nothing": "",
}

WRAPPER = """#!/usr/bin/python3
import json, re, subprocess, sys
MARK, SESSION = {mark!r}, {session!r}
code = sys.argv[-1]
if SESSION is not None and "offheap-ready" in code:
    sys.stdout.write(re.search("offheap-ready-[0-9a-f]+", code)[0] + chr(10) + SESSION)
    sys.exit(0)
if len(sys.argv) > 1:
    import os
    os.execv("/usr/bin/python3", ["/usr/bin/python3", *sys.argv[1:]])
ran = subprocess.run(["/usr/bin/python3"], stdin=sys.stdin, stdout=subprocess.PIPE)
said = ran.stdout

def every(value, lie):
    if isinstance(value, dict):
        return {{key: every(one, lie) for key, one in value.items()}}
    if isinstance(value, list):
        return [every(one, lie) for one in value]
    return lie if isinstance(value, str) else value

try:
    answer = json.loads(said)
except ValueError:
    answer = {{}}
before = json.dumps(answer)
{lie}
if json.dumps(answer) != before:
    said = json.dumps(answer).encode()
sys.stdout.buffer.write(said)
sys.exit(ran.returncode)
"""

RunPlaybook = Callable[..., PlaybookResult]
HostOf = Callable[[str], LabHost]


@pytest.fixture(scope="module")
def ready(playbook: RunPlaybook, library: dict[str, Any]) -> dict[str, Any]:
    """Variables, once the library is built and on no host."""
    variables = {
        **library,
        "offheap_units": [UNIT],
        "offheap_serial": ["100%"],
        "profiled_service_healthy_seconds": 1,
        "profiled_service_malloc_conf": {"lg_prof_sample": 12},
        "profiled_service_agent_settings": {"start_delay": 0},
    }
    playbook("enable-profiling.yml", extra_vars=variables).check()
    playbook("rollback.yml", extra_vars={"rollback_purge": True, "rollback_discard": True}).check()
    return variables


@pytest.mark.parametrize(
    "name", [name if name == "templates" else pytest.param(name, marks=pytest.mark.soak_only) for name in LIES]
)
def test_the_others_are_done_and_nothing_of_it_is_on_them(
    ready: dict[str, Any], playbook: RunPlaybook, host: HostOf, controller: Controller, tmp_path: Path, name: str
) -> None:
    wrapper = WRAPPER.format(mark=MARK, session=BABBLE.get(name), lie=LIES[name])
    host(LIAR).run(f"cat > /usr/local/bin/liar <<'END'\n{wrapper}END\nchmod 755 /usr/local/bin/liar")
    lying = tmp_path / "liar.json"
    lying.write_text(json.dumps({"all": {"hosts": {LIAR: {"ansible_python_interpreter": "/usr/local/bin/liar"}}}}))
    inventories = ["-i", str(controller.inventory), "-i", str(lying)]
    archive, report = tmp_path / "archive", tmp_path / "report"
    places = {"offheap_archive": str(archive), "offheap_report": str(report)}
    before = {honest: host(honest).listing() for honest in HONEST}
    cache = sorted((controller.directory / "cache").iterdir())
    done = []

    def run(what: str, **variables: Any) -> PlaybookResult:
        done.append(playbook(what, *inventories, extra_vars={**places, **variables}))
        return done[-1]

    try:
        run("enable-profiling.yml", **ready)
        for honest in HONEST:
            assert any(path.startswith("/opt/offheap/jemalloc/") for path in host(honest).mapped(UNIT))
        run("switch-profiling.yml", offheap_units=[UNIT], state="dump")
        run("collect-profiles.yml")
        facts = [json.loads(path.read_text()) for path in (archive / "captures").glob("*/*/*/*/capture.json")]
        collected = {each["host"] for each in facts}
        run("report-leaks.yml")
        there = {each["host"] for each in done[-1].reports}
        assert not [sign for sign in ESCAPES if sign in done[-1].stdout], f"see {done[-1].log}"
        run("rollback.yml", rollback_purge=True, rollback_discard=True)
    finally:
        host(LIAR).run("rm /usr/local/bin/liar")
        playbook("rollback.yml", extra_vars={"rollback_purge": True, "rollback_discard": True}).check()
    for result in done:
        for honest in HONEST:
            stats = result.stats.get(honest)
            assert stats is None or not (stats.failed or stats.unreachable), result.failures(honest)
        assert not {task.host for task in result.tasks} - {*HONEST, LIAR, "localhost"}
    assert set(HONEST) <= collected and set(HONEST) <= there
    said = "\n".join(result.failures(LIAR) for result in done)
    assert said, "nothing was said of it"
    for honest in HONEST:
        assert host(honest).listing() == before[honest]
        where = "/etc /opt /var/lib /run/systemd /tmp /home /root"
        traces = host(honest).run(f"grep -rl {MARK} {where}; find {where} -name '*{MARK}*'", check=False)
        assert traces.stdout == ""
    assert not list(controller.directory.rglob("KILROY"))
    assert not (Path("/tmp") / MARK).exists()
    assert sorted((controller.directory / "cache").iterdir()) == cache
