# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Services in containers of Podman: of a Quadlet file, with glibc and with musl, and of a unit that runs Podman
itself, as another user inside.

Their image has nothing but the program and the libraries that it needs.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.formats.capture_facts import KnownImage
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.archive import Archive
from ansible_collections.offheap.profiler.tests.agent.builds import MUSL_CC
from ansible_collections.offheap.profiler.tests.integration import builds
from ansible_collections.offheap.profiler.tests.integration.hosts import PREPARE, Lab, LabHost, wait_for
from ansible_collections.offheap.profiler.tests.integration.playbooks import Controller, PlaybookResult

pytestmark = [pytest.mark.usefixtures("quiet_lab"), pytest.mark.in_order]

RunPlaybook = Callable[..., PlaybookResult]

UNITS = ("quadlet.service", "plain.service", "alpine.service")
# What grow.c leaks at most, in bytes a day: ten blocks of 2,000 bytes, for which jemalloc gives 2,048, each 50 ms.
RATE = 20 * 10 * 2048 * 86400
SETUP = r"""
set -e
mkdir -p /etc/containers/systemd /var/tmp/image/bin
cd /var/tmp/image
cp /usr/local/bin/grow bin/
libraries=/lib/x86_64-linux-gnu
for file in $(ldd bin/grow | grep -o '/[^ ]*') $libraries/libm.so.6 $libraries/libdl.so.2 $libraries/libgcc_s.so.1; do
    mkdir -p ".${file%/*}"
    cp -L "$file" ".$file"
done
# What nspawn leaves of the kernel: no keys of one's own, no count of processes.
cat > /etc/containers/containers.conf <<END
[containers]
keyring = false
pids_limit = 0
netns = "host"
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
END
cat > /etc/containers/storage.conf <<END
[storage]
driver = "vfs"
graphroot = "/var/lib/containers/storage"
runroot = "/run/containers/storage"
END
tar -c . | podman import - localhost/grow:1
tar -c . | podman import --change "ENV LD_PRELOAD=$libraries/libdl.so.2" - localhost/preloads:1
rm -r bin lib*/x86_64-linux-gnu/libgcc_s.so.1
cp -r /usr/local/bin .
tar -c . | podman import - localhost/slim:1
tar -c -C /var/tmp/alpine . | podman import - localhost/alpine:1
quadlet() {
    printf '[Container]\nImage=localhost/%s:1\nExec=%s slow-leak\nStopTimeout=2\n' "$2" "$3" \
        > "/etc/containers/systemd/$1.container"
}
quadlet quadlet grow /bin/grow
quadlet preloads preloads /bin/grow
quadlet slim slim /bin/grow
quadlet alpine alpine /bin/grow
unit() {
    printf '[Service]\nExecStart=/usr/bin/%s run --rm --name %s %s ' "$2" "$1" "$3"
    printf 'localhost/grow:1 /bin/grow slow-leak\nExecStop=/usr/bin/podman rm -f -i -t 1 %s\n' "$1"
}
unit plain podman "--user=4000:4000 --cgroups=split" > /etc/systemd/system/plain.service
unit apart podman "" > /etc/systemd/system/apart.service
unit stays podman --cgroups=split | sed 's/^ExecStop=.*/TimeoutStopSec=2/' > /etc/systemd/system/stays.service
ln -s podman /usr/bin/nerdctl
unit by-hand nerdctl '$WORDS' > /etc/systemd/system/by-hand.service
systemctl daemon-reload
systemctl start quadlet plain alpine preloads slim apart stays by-hand
"""


@pytest.fixture(scope="module")
def app3(lab: Lab, host: Callable[[str], LabHost], tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabHost]:
    on = host("app3")
    lab.command("install", "app3", "podman", "crun")
    on.run("mkdir -p /var/tmp/alpine/bin /var/tmp/alpine/lib")
    on.send(Path("/lib/ld-musl-x86_64.so.1"), "/var/tmp/alpine/lib/ld-musl-x86_64.so.1")
    grow = tmp_path_factory.mktemp("musl") / "grow"
    subprocess.run([*MUSL_CC, "-O2", "-o", grow, PREPARE.parent / "src" / "grow.c"], check=True)
    on.send(grow, "/var/tmp/alpine/bin/grow")
    on.run(SETUP)
    yield on
    on.run("systemctl stop quadlet plain alpine preloads slim apart stays by-hand", check=False)


def asked(on: LabHost) -> dict[str, tuple[str, list[str]]]:
    """What Podman says of both containers: their volumes, and their variables, which it gives in any order."""
    found = {}
    for name in ("systemd-quadlet", "plain"):
        words = "podman inspect --format '{{.HostConfig.Binds}}|{{.Config.Env}}' " + name
        volumes, _bar, variables = on.run(words).stdout.strip().partition("|")
        found[name] = volumes, sorted(variables.strip("[]").split())
    return found


def containers(on: LabHost) -> set[str]:
    return set(on.run("podman ps --quiet").stdout.split())


def has_dumps(on: LabHost, unit: str, least: int) -> bool:
    return len(on.run(f"ls /var/lib/offheap/{unit}/*.heap", check=False).stdout.split()) >= least


class Enabled(NamedTuple):
    """What enabling said, and Podman before it."""

    done: PlaybookResult
    before: dict[str, tuple[str, list[str]]]

    def refusal(self, unit: str) -> str:
        """Why it was left out at first sight."""
        task = next(task for task in self.done.of("app3") if "Find what cannot work" in task.task)
        return str(next(item for item in task.result["units"] if item["unit"] == f"{unit}.service"))


@pytest.fixture(scope="module")
def enabled(app3: LabHost, playbook: RunPlaybook, controller: Controller, built: dict[str, Any]) -> Enabled:
    before = asked(app3)
    variables = {
        **built,
        "offheap_hosts": "app3",
        "offheap_units": [*UNITS, "preloads", "slim", "apart", "stays", "by-hand"],
        "profiled_service_malloc_conf": {"lg_prof_sample": 14},
        "profiled_service_dump_seconds": 5,
        "profiled_service_agent_settings": {"start_delay": 0},
        "profiled_service_healthy_seconds": 4,
    }
    with builds.sharing_crossed(controller.directory / "cache"):
        return Enabled(playbook("enable-profiling.yml", extra_vars=variables), before)


def test_what_cannot_work_in_a_container_is_refused_before_its_restart(app3: LabHost, enabled: Enabled) -> None:
    assert "sets LD_PRELOAD, and Podman takes that before ours" in enabled.refusal("preloads")
    assert "Add --cgroups=split" in enabled.refusal("apart")
    assert "no ExecStop= that ends its container" in enabled.refusal("stays")
    assert "libgcc_s.so.1: cannot open shared object file" in enabled.done.failures("app3")
    for unit in ("preloads", "slim", "apart", "stays"):
        assert app3.show(unit, "ActiveState", "NRestarts") == {"ActiveState": "active", "NRestarts": "0"}
        assert not app3.show(unit, "DropInPaths")["DropInPaths"]


def test_the_profiler_is_in_the_container_and_only_there(app3: LabHost, enabled: Enabled) -> None:
    for unit in UNITS:
        assert app3.show(unit, "ActiveState", "NRestarts") == {"ActiveState": "active", "NRestarts": "0"}
        wait_for(partial(has_dumps, app3, unit, 1), f"{unit}'s dump")
        assert not any("/opt/offheap/" in path for path in app3.mapped(unit)), "Podman's monitor itself"
    assert any(word.startswith("PATH=") for word in asked(app3)["plain"][1]), "what Podman's own settings say is kept"


def test_a_container_with_musl_has_the_build_for_it(app3: LabHost, enabled: Enabled) -> None:
    mapped = "cat $(sed s,^,/proc/, /sys/fs/cgroup/system.slice/%s.service/*/cgroup.procs | sed s,$,/maps,)"
    assert "-musl/lib/libjemalloc.so.2" in app3.run(mapped % "alpine").stdout
    assert "-musl/" not in app3.run(mapped % "quadlet").stdout


def test_its_leak_is_named_with_its_rate_also_after_the_container_was_replaced(
    app3: LabHost, playbook: RunPlaybook, controller: Controller, enabled: Enabled
) -> None:
    places = {
        "offheap_hosts": "app3",
        "offheap_archive": str(controller.directory / "podman"),
        "offheap_report": str(controller.directory / "podman-report"),
        "offheap_report_min_span": 30,
    }
    first = containers(app3)
    app3.run("systemctl restart quadlet")
    assert containers(app3) != first
    for unit in UNITS:
        wait_for(partial(has_dumps, app3, unit, 8), "eight dumps", timeout=180, interval=2)
    playbook("collect-profiles.yml", extra_vars=places).check()
    archive = Archive.open(controller.directory / "podman")
    for unit in UNITS:
        living = [one for one in archive.captures() if one.unit == unit and one.facts.process.start_time is not None]
        for one in living:
            known = {image.path for image in one.facts.images if isinstance(image, KnownImage)}
            assert "/bin/grow" in known, "its files are found inside the container"
        assert living
    # Of a container that is no more, no file of the host is taken for its own.
    gone = [one for one in archive.captures() if one.unit == UNITS[0] and one.facts.process.start_time is None]
    assert gone and not [image for one in gone for image in one.facts.images if isinstance(image, KnownImage)]
    reports = playbook("report-leaks.yml", extra_vars=places).check().reports
    for unit in UNITS[1:]:
        found = {report["unit"]: report for report in reports}[unit]
        assert found["verdict"] == "leak", found
        assert found["growth_bytes_per_day"] == pytest.approx(RATE, rel=0.15), found


def test_what_a_refusal_says_to_add_works(
    app3: LabHost, playbook: RunPlaybook, controller: Controller, enabled: Enabled
) -> None:
    """Another client is Podman here; what it is told is the same."""
    found = re.search(r"give its 'run' these: ([^\"]*)\"", enabled.refusal("by-hand"))
    assert found, enabled.refusal("by-hand")
    words = found[1].replace("/THE/PROGRAM/INSIDE", "/bin/grow")
    app3.run("install -d -m 0700 /var/lib/offheap/by-hand.service; mkdir /etc/systemd/system/by-hand.service.d")
    app3.run(
        f"printf '[Service]\nEnvironment=\"WORDS=%s\"\n' '{words}' > /etc/systemd/system/by-hand.service.d/words.conf"
    )
    app3.run("systemctl daemon-reload; systemctl restart by-hand")
    wait_for(partial(has_dumps, app3, "by-hand.service", 2), "two dumps")
    places = {"offheap_hosts": "app3", "offheap_archive": str(controller.directory / "podman-by-hand")}
    playbook("collect-profiles.yml", extra_vars=places).check()
    last = [one for one in Archive.open(controller.directory / "podman-by-hand").captures() if "by-hand" in one.unit][
        -1
    ]
    assert "/bin/grow" in {image.path for image in last.facts.images if isinstance(image, KnownImage)}
    app3.run("systemctl stop by-hand; rm -r /var/lib/offheap/by-hand.service")


def test_afterwards_it_is_as_it_was(
    app3: LabHost, playbook: RunPlaybook, controller: Controller, enabled: Enabled
) -> None:
    places = {"offheap_hosts": "app3", "offheap_archive": str(controller.directory / "podman")}
    playbook("rollback.yml", extra_vars={**places, "rollback_purge": True}).check()
    assert asked(app3) == enabled.before
    left = "ls -d /var/lib/offheap /run/offheap /etc/systemd/system/*.service.d/90-offheap* || true"
    assert app3.run(left).stdout == ""
