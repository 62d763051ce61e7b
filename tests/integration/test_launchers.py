# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Units that are many processes, under launchers that others wrote: what grows in them is named, or nobody can tell.

Each is looked at by triage, enabled by the line that triage prints, collected and reported as users do it.
"""

from __future__ import annotations

import base64
import json
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from ansible_collections.offheap.profiler.tests.integration import builds
from ansible_collections.offheap.profiler.tests.integration.hosts import Lab, LabHost, wait_for
from ansible_collections.offheap.profiler.tests.integration.playbooks import Controller, PlaybookResult

pytestmark = [pytest.mark.usefixtures("quiet_lab"), pytest.mark.in_order]

RunPlaybook = Callable[..., PlaybookResult]
JAVA = "/usr/lib/jvm/java-17-openjdk-amd64"
LEAKS = "-Xms32m -Xmx64m -XX:+UseSerialGC -cp /usr/share/java/commons-daemon.jar:/opt/grow/grow.jar Grow slow-leak"
PACKAGES = {"app2": ["jsvc", "service-wrapper"], "app3": ["supervisor"]}
WRAPPER = f"""wrapper.java.command={JAVA}/bin/java
wrapper.java.mainclass=org.tanukisoftware.wrapper.WrapperSimpleApp
wrapper.java.classpath.1=/usr/share/java/wrapper.jar
wrapper.java.classpath.2=/opt/grow/grow.jar
wrapper.java.library.path.1=/usr/lib/jni
wrapper.java.library.path.2=/usr/lib/x86_64-linux-gnu/jni
wrapper.java.additional.1=-XX:+UseSerialGC
wrapper.java.maxmemory=64
wrapper.app.parameter.1=Grow
wrapper.app.parameter.2=slow-leak
wrapper.logfile=
"""
SUPERVISED = """[supervisord]
nodaemon=true
logfile=/dev/null
logfile_maxbytes=0
[program:grow]
command=/usr/local/bin/grow slow-leak
"""
# The parent has given up its effective user, so the kernel starts its child in secure mode.
SECURE = """import os, signal
if os.fork() == 0:
    os.seteuid(65534)
    os.execv("/usr/local/bin/grow", ["grow", "slow-leak"])
signal.pause()
"""
# The main process leaks, and so do five workers that have gone into a chroot.
JAILED = """import os, time
for number in range(6):
    if os.fork() == 0:
        if number:
            os.chroot("/srv")
            os.chdir("/")
        break
kept = []
while True:
    kept.append(b"x" * 20000)
    time.sleep(0.1)
"""
MANY = """import os, time
for number in range(32):
    if os.fork() == 0:
        break
kept = []
while True:
    kept.append(b"x" * 20000)
    time.sleep(0.2)
"""


@dataclass(frozen=True)
class Kind:
    """A unit of a host: its lines, the files that it needs, and the program of which there have to be dumps. ``leaks``
    is a part of a name in the path that leaks, at ``rate`` bytes a second by jemalloc's size classes; ``options`` are
    those of the agent, where triage's are not taken."""

    host: str
    lines: str
    files: dict[str, str] = field(default_factory=dict)
    program: str = ""
    leaks: str = ""
    rate: int = 0
    options: dict[str, Any] = field(default_factory=dict)


PYTHON = "/usr/bin/python3"
# Ten a second, each of zlib's state and its window.
INFLATERS = 10 * (8192 + 32768)
DAY = 86400
KINDS = {
    "wrapped-jvm.service": Kind(
        "app2",
        "Type=forking\nPIDFile=/run/wrapped-jvm.pid\nExecStart=/usr/sbin/wrapper /etc/wrapped-jvm.conf"
        " wrapper.pidfile=/run/wrapped-jvm.pid wrapper.daemonize=TRUE wrapper.name=wrapped-jvm",
        {"/etc/wrapped-jvm.conf": WRAPPER},
        f"{JAVA}/bin/java",
        "Inflater",
        INFLATERS,
    ),
    "jsvc.service": Kind(
        "app2",
        f"ExecStart=/usr/bin/jsvc -nodetach -pidfile /run/jsvc.pid -home {JAVA} {LEAKS}",
        {},
        "/usr/bin/jsvc",
        "Inflater",
        INFLATERS,
    ),
    "jsvc-forks.service": Kind(
        "app2",
        f"Type=forking\nPIDFile=/run/jf.pid\nExecStart=/usr/bin/jsvc -pidfile /run/jf.pid -home {JAVA} {LEAKS}",
        {},
        "/usr/bin/jsvc",
        "Inflater",
        INFLATERS,
    ),
    "supervised.service": Kind(
        "app3",
        "ExecStart=/usr/bin/supervisord -c /etc/supervised.conf",
        {"/etc/supervised.conf": SUPERVISED},
        "/usr/local/bin/grow",
        "main",
        20 * 10 * 2048,
    ),
    "secure.service": Kind(
        "app3",
        f"ExecStart={PYTHON} /opt/secure.py",
        {"/opt/secure.py": SECURE},
        options={"executable": "{python}"},
    ),
    "jailed.service": Kind(
        "app3",
        f"ExecStart={PYTHON} /opt/jailed.py",
        {"/opt/jailed.py": JAILED},
        "{python}",
        "PyObject_Malloc",
        7 * 10 * 20480,
    ),
    "many.service": Kind(
        "app3",
        f"ExecStart={PYTHON} /opt/many.py",
        {"/opt/many.py": MANY},
        "{python}",
        "PyObject_Malloc",
        33 * 5 * 20480,
    ),
}
NAMES = " ".join(KINDS)


def put(on: LabHost, path: str, text: str) -> None:
    on.run(f"echo {base64.b64encode(text.encode()).decode()} | base64 -d > {path}")


@pytest.fixture(scope="module")
def services(lab: Lab, host: Callable[[str], LabHost]) -> Iterator[dict[str, LabHost]]:
    """The hosts, with the launchers and their units, which have run for some seconds."""
    hosts = {name: host(name) for name in PACKAGES}
    for name, on in hosts.items():
        lab.command("install", name, *PACKAGES[name])
        on.run("systemctl disable --now supervisor", check=False)
    for unit, kind in KINDS.items():
        for path, text in kind.files.items():
            put(hosts[kind.host], path, text)
        put(hosts[kind.host], f"/etc/systemd/system/{unit}", f"[Service]\n{kind.lines}\nSuccessExitStatus=143\n")
    for name, on in hosts.items():
        units = " ".join(unit for unit, kind in KINDS.items() if kind.host == name)
        on.run(f"systemctl daemon-reload; systemctl start {units}")
    yield hosts
    for on in hosts.values():
        on.run(f"systemctl stop {NAMES}; cd /etc/systemd/system; rm -rf {NAMES}; systemctl daemon-reload", check=False)


@pytest.fixture(scope="module")
def variables(
    playbook: RunPlaybook, controller: Controller, library: dict[str, Any], services: dict[str, LabHost]
) -> dict[str, Any]:
    """Once the hosts have the library and the agent."""
    role = {"hosts": "all", "become": True, "gather_facts": False, "roles": ["offheap.profiler.jemalloc"]}
    path = controller.directory / "build.yml"
    path.write_text(json.dumps([role]))
    with builds.making(controller.directory / "cache"):
        playbook(path, extra_vars=library).check()
    place = controller.directory / "launchers"
    return {
        **library,
        "offheap_hosts": ",".join(services),
        "offheap_archive": str(place / "archive"),
        "offheap_report": str(place / "report"),
        "profiled_service_healthy_seconds": 3,
        "profiled_service_malloc_conf": {"lg_prof_sample": 14},
        "profiled_service_agent_settings": {"start_delay": 1},
        "profiled_service_dump_seconds": 5,
    }


def python_of(on: LabHost) -> str:
    return on.run(f"readlink -f {PYTHON}").stdout.strip()


@pytest.fixture(scope="module")
def named(playbook: RunPlaybook, services: dict[str, LabHost], variables: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """By unit, what triage's line enables: a unit with its program, as offheap_units takes it."""
    # In which the slowest process grows by more than a MiB.
    watched = {**variables, "triage_watch": "15s", "offheap_units": list(KINDS)}
    told = playbook("triage.yml", extra_vars=watched).check().stdout
    found: dict[str, dict[str, Any]] = {}
    for line in re.findall(r"enable_profiling -l \w+ -e (\'.*?\')", told.replace('\\"', '"')):
        (unit,) = json.loads(shlex.split(line)[0])["offheap_units"]
        unit = {"name": unit} if isinstance(unit, str) else unit
        found[unit["name"]] = unit
    return found


@pytest.fixture(scope="module")
def enabled(
    playbook: RunPlaybook, services: dict[str, LabHost], variables: dict[str, Any], named: dict[str, dict[str, Any]]
) -> dict[str, str]:
    """What enabling says on each host, of the units as triage names them."""
    said = {}
    for name, on in services.items():
        units = []
        for unit, kind in KINDS.items():
            if kind.host == name:
                own = {key: value.format(python=python_of(on)) for key, value in kind.options.items()}
                units.append({"name": unit, "agent_settings": own} if own else named.get(unit, {"name": unit}))
        only = {**variables, "offheap_hosts": name, "offheap_units": units}
        said[name] = playbook("enable-profiling.yml", extra_vars=only).check().stdout
    return said


@pytest.fixture(scope="module")
def reports(
    playbook: RunPlaybook, services: dict[str, LabHost], variables: dict[str, Any], enabled: dict[str, str]
) -> dict[str, dict[str, Any]]:
    """What is reported once each unit has been watched for three quarters of a minute."""

    def watched(unit: str, on: LabHost) -> bool:
        """Whether the unit has dumps that are 48 s old."""
        return bool(on.run(f"find /var/lib/offheap/{unit} -name '*.heap' -mmin +0.8", check=False).stdout)

    for unit, kind in KINDS.items():
        on = services[kind.host]
        wait_for(lambda unit=unit, on=on: watched(unit, on), f"dumps of {unit} over 48 s", 300, 3)  # type: ignore[misc]
    playbook("collect-profiles.yml", extra_vars=variables).check()
    done = playbook("report-leaks.yml", extra_vars={**variables, "offheap_report_min_span": 40}).check()
    return {report["unit"]: report for report in done.reports}


def test_triage_names_the_program_that_grows(named: dict[str, dict[str, Any]], services: dict[str, LabHost]) -> None:
    for unit, kind in KINDS.items():
        if kind.leaks:
            program = kind.program.format(python=python_of(services[kind.host]))
            assert named[unit]["agent_settings"]["executable"] == program, named


def test_a_child_in_secure_mode_is_refused_before_a_restart(
    playbook: RunPlaybook, services: dict[str, LabHost], variables: dict[str, Any]
) -> None:
    app3 = services["app3"]
    before = app3.main_pid("secure.service")
    wanted = {**variables, "offheap_hosts": "app3", "offheap_units": ["secure"]}
    refused = playbook("enable-profiling.yml", extra_vars=wanted).failures("app3")
    for words in ("in secure mode", "AT_SECURE", "It is /usr/local/bin/grow that is looked at", "executable"):
        assert words in refused, refused
    assert app3.main_pid("secure.service") == before


@pytest.mark.parametrize("unit", KINDS)
def test_enabling_says_what_it_will_see(unit: str, enabled: dict[str, str], services: dict[str, LabHost]) -> None:
    kind = KINDS[unit]
    program = (kind.program or "{python}").format(python=python_of(services[kind.host]))
    assert f"{unit}: {program} is profiled: " in enabled[kind.host]


@pytest.mark.parametrize("unit", [unit for unit, kind in KINDS.items() if kind.leaks])
def test_what_grows_is_named(unit: str, reports: dict[str, dict[str, Any]]) -> None:
    found = reports[unit]
    assert found["verdict"] == "leak", found
    assert any(KINDS[unit].leaks in frame for frame in found["path"]), found
    assert found["growth_bytes_per_day"] == pytest.approx(KINDS[unit].rate * DAY, rel=0.15), found


def test_or_the_process_that_holds_the_memory_is(reports: dict[str, Any], services: dict[str, LabHost]) -> None:
    found, app3 = reports["secure.service"], services["app3"]
    assert found["verdict"] == "cannot-tell", found
    pid = app3.run(f"pgrep -P {app3.main_pid('secure.service')} -x grow").stdout.strip()
    assert f"grow, pid {pid}" in found["reason"] and "without an agent" in found["reason"], found


def test_each_of_many_processes_has_its_agent(services: dict[str, LabHost], reports: dict[str, Any]) -> None:
    app3 = services["app3"]
    agents = app3.run("ls -A /run/offheap/many.service").stdout.split()
    assert len(agents) == 33 and all(re.fullmatch(r"\d+\.sock", name) for name in agents)


def test_rollback_leaves_the_units_running(
    playbook: RunPlaybook, services: dict[str, LabHost], reports: dict[str, Any]
) -> None:
    extra = {"offheap_hosts": ",".join(services), "rollback_purge": True, "rollback_discard": True}
    playbook("rollback.yml", extra_vars=extra).check()
    for name, on in services.items():
        units = [unit for unit, kind in KINDS.items() if kind.host == name]
        assert on.run(f"systemctl is-active {' '.join(units)}").stdout.split() == ["active"] * len(units)
        assert not on.run("ls -d /var/lib/offheap/*", check=False).stdout
