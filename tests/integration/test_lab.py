# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The hosts and workloads are what the other tests take them for, and nothing is left of a lab that went down."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from ansible_collections.offheap.profiler.tests.gates.this_run import SECOND_LAB
from ansible_collections.offheap.profiler.tests.integration.hosts import PREPARE, Lab, LabHost, wait_for
from ansible_collections.offheap.profiler.tests.integration.playbooks import Controller

HostOf = Callable[[str], LabHost]
HOSTS = ("app1", "app2", "app3")
RUNNING = ("frontend", "ticker", "vault", "legacy", "wrapped")
MIB = 1024 * 1024


@pytest.fixture(scope="module", autouse=True)
def quiet_afterwards(lab: Lab) -> Iterator[None]:
    """No later test needs the frontends, and they take a third of a processor."""
    yield
    for name in HOSTS:
        lab.host(name).run("systemctl stop frontend")


def test_one_host_of_each_suite(lab: Lab) -> None:
    assert lab.hosts() == {"app1": "bullseye", "app2": "bookworm", "app3": "trixie"}


@pytest.mark.parametrize("name", HOSTS)
def test_host_has_booted_without_a_failed_unit(host: HostOf, name: str) -> None:
    assert host(name).run("systemctl is-system-running; systemctl --failed --no-legend").stdout.strip() == "running"


def test_only_the_oldest_suite_has_a_compiler(host: HostOf) -> None:
    question = "command -v cc gcc tcc clang; ls /usr/bin/*gcc* /usr/bin/make /usr/lib/gcc 2>/dev/null; true"
    assert host("app1").run(question).stdout
    for name in ("app2", "app3"):
        assert host(name).run(question).stdout == ""


def test_deploy_is_not_root_and_host_keys_are_known(lab: Lab) -> None:
    assert lab.command("ssh", "app1", "id", "-un").stdout.strip() == "deploy"
    assert len(lab.inventory.with_name("known_hosts").read_text().splitlines()) == 3


@pytest.mark.parametrize("name", HOSTS)
@pytest.mark.parametrize("unit", RUNNING)
def test_workload_runs(host: HostOf, name: str, unit: str) -> None:
    state = host(name).show(f"{unit}.service", "ActiveState", "NRestarts", "SubState")
    assert state == {"ActiveState": "active", "SubState": "running", "NRestarts": "0"}


def test_preparing_again_changes_nothing(lab: Lab, controller: Controller) -> None:
    again = controller.playbook(PREPARE).check()
    assert {name: stats.changed for name, stats in again.stats.items()} == dict.fromkeys(HOSTS, 0)


def test_frontend_leaks_at_rates_that_differ_and_on_one_host_not(host: HostOf) -> None:
    """Counted against each other in the same requests, so that a busy machine does not matter."""
    before = {name: host(name).frontend_health() for name in HOSTS}
    for name in HOSTS:
        enough = int(before[name]["served"]) + 200

        def has_served(name: str = name, enough: int = enough) -> bool:
            return int(host(name).frontend_health()["served"]) >= enough

        wait_for(has_served, f"200 more requests on {name}")
    after = {name: host(name).frontend_health() for name in HOSTS}
    served = {name: int(after[name]["served"]) - int(before[name]["served"]) for name in HOSTS}
    leaked = {name: int(after[name]["leaked_inflaters"]) - int(before[name]["leaked_inflaters"]) for name in HOSTS}
    assert leaked["app3"] == 0 and after["app3"]["leaked_inflaters"] == 0
    for name in ("app1", "app2"):
        assert leaked[name] == pytest.approx(served[name] / 3, abs=2)
    rates = {name: host(name).run("grep ^FRONTEND_RATE /etc/default/frontend").stdout for name in HOSTS}
    assert len(set(rates.values())) == 3


def test_the_leak_is_native_memory(host: HostOf) -> None:
    """Forty KiB of resident memory per forgotten Inflater, while the Java heap has a fixed size."""
    app1 = host("app1")
    first, leaked = app1.rss("frontend"), int(app1.frontend_health()["leaked_inflaters"])

    def has_grown() -> tuple[int, ...]:
        """At first, it may grow into memory that it had freed."""
        size = 40 * 1024 * (int(app1.frontend_health()["leaked_inflaters"]) - leaked)
        growth = app1.rss("frontend") - first
        return (size, growth) if size >= 8 * MIB and growth > size / 2 else ()

    size, growth = wait_for(has_grown, "memory for half of 200 more leaked inflaters", timeout=120)
    assert growth < 2 * size + 16 * MIB


def test_ticker_tells_that_it_is_ready(host: HostOf) -> None:
    state = host("app2").show("ticker", "Type", "StatusText", "User")
    assert state == {"Type": "notify", "StatusText": "ticking", "User": "app"}


def test_vault_has_a_transient_user_and_a_strict_sandbox(host: HostOf) -> None:
    app3 = host("app3")
    assert app3.show("vault", "DynamicUser", "ProtectSystem") == {"DynamicUser": "yes", "ProtectSystem": "strict"}
    # the range that systemd takes transient users from
    assert 61184 <= int(app3.run("stat -c %u /var/lib/private/vault/ticks").stdout) <= 65519


@pytest.mark.parametrize("name", HOSTS)
def test_legacy_preloads_its_own_library_and_this_works(host: HostOf, name: str) -> None:
    mapped = host(name).mapped("legacy")
    assert "/usr/local/lib/liblegacy.so" in mapped
    assert any(path.startswith("/memfd:legacy-marker") for path in mapped)


def test_wrapped_is_java_in_the_end(host: HostOf) -> None:
    app1 = host("app1")
    assert "/usr/local/bin/wrapped" in app1.show("wrapped", "ExecStart")["ExecStart"]
    assert app1.run(f"readlink /proc/{app1.main_pid('wrapped')}/exe").stdout.strip().endswith("/bin/java")


@pytest.mark.parametrize("name", HOSTS)
def test_units_that_cannot_be_profiled_are_there_and_work_without(host: HostOf, name: str) -> None:
    units = ("fragile", "static", "capable", "clobber", "contained")
    here = host(name)
    here.run(f"systemctl start {' '.join(units)}")
    try:
        assert here.run(f"systemctl is-active {' '.join(units)}").stdout.split() == ["active"] * len(units)
        assert not any(".so" in path for path in here.mapped("static"))
        assert here.run("getcap /usr/local/bin/ticker-capable").stdout.strip()
        assert here.show("masked", "LoadState")["LoadState"] == "masked"
        environment = here.run(f"tr '\\0' '\\n' < /proc/{here.main_pid('clobber')}/environ").stdout
        assert "LD_PRELOAD=/usr/local/lib/liblegacy.so\n" in environment
    finally:
        here.run(f"systemctl stop {' '.join(units)}")


@pytest.mark.parametrize("name", [HOSTS[-1], *(pytest.param(name, marks=pytest.mark.soak_only) for name in HOSTS[:-1])])
def test_listing_is_the_same_after_restarts_and_shows_a_change(host: HostOf, name: str) -> None:
    here = host(name)
    before = here.listing()
    here.run(f"systemctl daemon-reload; systemctl restart {' '.join(RUNNING)}")
    assert here.listing() == before
    here.run("touch '/var/lib/a file'; ln -s nowhere /etc/link; chmod 600 /etc/hostname")
    changed = set(here.listing()) - set(before)
    here.run("rm '/var/lib/a file' /etc/link; chmod 644 /etc/hostname")
    assert sorted(line.split(" ")[-1] for line in changed) == ["/etc/hostname", "/etc/link", "/var/lib/a\\u{20}file"]
    assert here.listing() == before


def test_a_second_lab_reboots_dies_and_leaves_nothing() -> None:
    """Beside the lab that is up, so that this tells something about both."""
    second = Lab(SECOND_LAB)
    second.down()
    try:
        second.command("up", "--hosts", "2", "--suites", "trixie,bullseye")
        app2 = second.host("app2")
        # boot_id is the machine's, which does not reboot
        question = "systemctl show -p UserspaceTimestampMonotonic"
        boot = app2.run(question).stdout
        app2.run("touch /var/lib/survives; systemctl reboot", check=False)

        def is_back() -> bool:
            answer = app2.run(question, check=False)
            return answer.returncode == 0 and answer.stdout != boot

        wait_for(is_back, "app2 booted again")
        app2.run("test -e /var/lib/survives")
        assert second.command("leaks", check=False).returncode == 1
    finally:
        second.down()
    left = second.command("leaks", check=False)
    assert (left.returncode, left.stdout.strip()) == (0, "nothing left")


def test_packages_are_installed_and_their_services_run(lab: Lab, host: HostOf) -> None:
    lab.command("install", "app2", "beanstalkd")
    assert host("app2").show("beanstalkd", "ActiveState") == {"ActiveState": "active"}
    assert host("app2").run("test -e /etc/resolv.conf", check=False).returncode == 1
    host("app2").run("apt-get -q purge -y beanstalkd")
