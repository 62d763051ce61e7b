# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Who builds the library, how it reaches a host, and what a host that lies can do about it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.offheap.profiler.tests.integration import builds
from ansible_collections.offheap.profiler.tests.integration.hosts import LabHost
from ansible_collections.offheap.profiler.tests.integration.playbooks import REPOSITORY, Controller, PlaybookResult

pytestmark = pytest.mark.usefixtures("quiet_lab")

RunPlaybook = Callable[..., PlaybookResult]
HostOf = Callable[[str], LabHost]

# Runs what it is given as Python does, and then says another platform.
LIAR = """#!/usr/bin/python3
import subprocess, sys
ran = subprocess.run(["/usr/bin/python3", *sys.argv[1:]], stdin=sys.stdin, stdout=subprocess.PIPE)
sys.stdout.buffer.write(ran.stdout.replace(b"glibc-x86_64-4096", b"x/../../../../outside/y"))
sys.exit(ran.returncode)
"""


@pytest.fixture(scope="module")
def variables(library: dict[str, Any]) -> dict[str, Any]:
    """Without anybody who builds for all."""
    return {**library, "jemalloc_method": "build", "jemalloc_build_host": ""}


@pytest.fixture(scope="module")
def role(playbook: RunPlaybook, controller: Controller) -> Callable[..., PlaybookResult]:
    """Runs the role alone."""
    path = controller.directory / "role.yml"
    play = {"hosts": "all", "become": True, "gather_facts": False, "roles": ["offheap.profiler.jemalloc"]}
    path.write_text(json.dumps([play]))
    return lambda *arguments, **settings: playbook(path, *arguments, **settings)


@pytest.fixture(scope="module", autouse=True)
def clean_hosts(playbook: RunPlaybook, collection: Path) -> Iterator[None]:
    purge = {"rollback_purge": True, "rollback_discard": True}
    playbook("rollback.yml", extra_vars=purge).check()
    yield
    playbook("rollback.yml", extra_vars=purge).check()


def tarballs(controller: Controller) -> list[Path]:
    return sorted((controller.directory / "cache").glob("*.tar.gz"))


def installed(host: LabHost) -> list[str]:
    """Files below /opt/offheap with their checksums."""
    found = host.run("cd /opt/offheap 2>/dev/null && find . -type f -exec sha256sum {} + | sort -k2", check=False)
    return found.stdout.splitlines()


def test_a_build_host_must_be_there(
    role: RunPlaybook, host: HostOf, controller: Controller, variables: dict[str, Any]
) -> None:
    """Nobody else builds in its place."""
    empty = {"offheap_cache": "nothing-built-yet", "jemalloc_build_host": "app1"}
    result = role(limit="app2", extra_vars={**variables, **empty})
    assert "jemalloc_build_host is app1, which is not among the hosts of this play" in result.failures("app2")
    assert installed(host("app2")) == []
    assert not list((controller.directory / "nothing-built-yet").glob("*.tar.gz"))


def test_one_builds_for_all_and_every_host_gets_the_same(
    role: RunPlaybook, host: HostOf, controller: Controller, variables: dict[str, Any]
) -> None:
    named = {**variables, "jemalloc_build_host": "app1"}
    with builds.making(controller.directory / "cache"):
        role(extra_vars=named).check()
    assert len({tuple(installed(host(name))) for name in ("app1", "app2", "app3")}) == 1
    built = tarballs(controller)
    assert [path.name.split("-")[0] for path in built] == ["agent", "jemalloc"]
    for path in built:
        record = json.loads((path.parent / f"{path.name}.json").read_text())
        assert record["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    patches = json.loads(host("app1").run("cat /opt/offheap/jemalloc/*/offheap.json").stdout)["patches"]
    assert patches == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (controller.installed / "roles/jemalloc/files/patches/5.3.0").iterdir()
    }
    host("app2").run("rm -r /opt/offheap")
    alone = role(limit="app2", extra_vars=named).check()
    assert not [task for task in alone.tasks if "Build" in task.task and task.changed]


def test_a_host_builds_for_itself_and_nothing_of_it_leaves_it(
    role: RunPlaybook, host: HostOf, controller: Controller, variables: dict[str, Any]
) -> None:
    """The agent, which takes seconds: the library goes the same way."""
    before = {path: path.stat().st_mtime_ns for path in tarballs(controller)}
    host("app1").run("rm -r /opt/offheap/agent")
    built = role(limit="app1", extra_vars=variables).check()
    assert [task.task for task in built.changes("app1") if "Build" in task.task]
    names = [line.split("/")[-1] for line in installed(host("app1"))]
    assert sorted(names) == ["jeprof", "libjemalloc.so.2", "liboffheap.so", "offheap.json", "offheap.json"]
    assert {path: path.stat().st_mtime_ns for path in tarballs(controller)} == before
    again = role(limit="app1", extra_vars=variables).check()
    assert again.stats["app1"].changed == 0


@pytest.mark.parametrize("damage", ["truncate -s 5000 lib/libjemalloc.so.2", "rm offheap.json", "rm -r bin"])
def test_a_library_that_is_not_whole_is_replaced(
    role: RunPlaybook, host: HostOf, variables: dict[str, Any], damage: str
) -> None:
    """Whatever an interrupted run or a full disk left there."""
    before = installed(host("app2"))
    host("app2").run(f"cd /opt/offheap/jemalloc/5.3.0-* && {damage}")
    role(limit="app2", extra_vars={**variables, "jemalloc_build_host": "app1"}).check()
    assert installed(host("app2")) == before
    assert "." not in {name[0] for name in host("app2").run("ls -A /opt/offheap/jemalloc").stdout.split()}


def test_a_build_that_was_changed_on_the_controller_is_not_unpacked(
    role: RunPlaybook, host: HostOf, controller: Controller, variables: dict[str, Any]
) -> None:
    host("app3").run("rm -r /opt/offheap")
    path = tarballs(controller)[1]
    content = path.read_bytes()
    path.write_bytes(content[:-1] + b"x")
    try:
        result = role(limit="app3", extra_vars={**variables, "jemalloc_build_host": "app1"})
    finally:
        path.write_bytes(content)
    assert "It was changed on the way or on the controller" in result.failures("app3")
    assert installed(host("app3")) == []


def test_an_archive_asks_for_its_checksums(
    role: RunPlaybook, host: HostOf, controller: Controller, variables: dict[str, Any]
) -> None:
    agent, library = tarballs(controller)
    sums = {path: json.loads(Path(f"{path}.json").read_text())["sha256"] for path in (agent, library)}
    taken = {**variables, "jemalloc_method": "archive", "jemalloc_archive": f"cache/{library.name}"}
    result = role(limit="app3", extra_vars=taken)
    assert f"in the file {library.name}.json" in result.failures("app3")
    assert "Set jemalloc_archive_checksum to it" in result.failures("app3")
    result = role(limit="app3", extra_vars={**taken, "jemalloc_archive_checksum": sums[library]})
    assert "Set jemalloc_agent_checksum to it" in result.failures("app3")
    taken |= {"jemalloc_archive_checksum": sums[library], "jemalloc_agent_checksum": sums[agent]}
    role(limit="app3", extra_vars=taken).check()
    assert installed(host("app3")) == installed(host("app2"))


def test_a_host_that_lies_about_its_platform_is_left_out(
    role: RunPlaybook, host: HostOf, controller: Controller, variables: dict[str, Any]
) -> None:
    """What it says becomes no path; the others go on."""
    for name in ("app1", "app2"):
        host(name).run("rm -r /opt/offheap")
    host("app2").run(f"cat > /usr/local/bin/liar <<'END'\n{LIAR}END\nchmod 755 /usr/local/bin/liar")
    inventory = controller.directory / "liar.json"
    inventory.write_text(
        json.dumps({"all": {"hosts": {"app2": {"ansible_python_interpreter": "/usr/local/bin/liar"}}}})
    )
    before = sorted(path for path in controller.directory.rglob("*") if "cache" in path.parts)
    try:
        inventories = ["-i", str(controller.inventory), "-i", str(inventory)]
        result = role(*inventories, limit="app1,app2", extra_vars={**variables, "jemalloc_build_host": "app1"})
    finally:
        host("app2").run("rm /usr/local/bin/liar")
    assert 'says that its platform is "x/../../../../outside/y"' in result.failures("app2")
    assert result.stats["app1"].failed == 0 and installed(host("app1")) and installed(host("app2")) == []
    assert sorted(path for path in controller.directory.rglob("*") if "cache" in path.parts) == before


def test_check_mode_says_what_the_run_would_say_of_compilers(
    role: RunPlaybook, host: HostOf, variables: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host("app2").run("rm -rf /opt/offheap")
    unbuilt = {**variables, "offheap_cache": "nothing-built-yet"}
    for check in (True, False):
        result = role(limit="app2", check=check, extra_vars=unbuilt)
        assert "app2 has no compiler" in result.failures("app2")
        assert "-m pip install ziglang==" in result.failures("app2")
    for directory in map(Path, ("/usr/sbin", "/usr/bin", "/sbin", "/bin")):
        for program in directory.iterdir():
            link = tmp_path / program.name
            if program.name not in ("make", "patch") and not link.is_symlink():
                link.symlink_to(program)
    monkeypatch.setenv("PATH", str(tmp_path))
    for check in (True, False):
        result = role(limit="app2", check=check, extra_vars={**unbuilt, "jemalloc_method": "cross"})
        assert "it lacks make and patch" in result.failures("app2")
        assert "apt-get install make patch" in result.failures("app2")
    assert installed(host("app2")) == []


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"offheap_units": ["fronted"]}, "There is no unit fronted on this host"),
        ({"offheap_units": ["ticker"], "jemalloc_methode": "cross"}, "did you mean jemalloc_method?"),
        ({"offheap_unit": ["ticker"]}, "did you mean offheap_units?"),
    ],
)
def test_a_slip_in_a_name_is_refused_before_anything_is_built(
    playbook: RunPlaybook, host: HostOf, variables: dict[str, Any], wrong: dict[str, Any], said: str
) -> None:
    host("app2").run("rm -rf /opt/offheap")
    result = playbook("enable_profiling.yml", limit="app2", extra_vars={**variables, **wrong})
    assert said in result.failures("app2")
    assert result.stats["app2"].changed == 0 and installed(host("app2")) == []


@pytest.mark.soak_only
def test_the_controller_builds_for_all_and_no_host_has_a_compiler(
    role: RunPlaybook, playbook: RunPlaybook, host: HostOf, controller: Controller, variables: dict[str, Any]
) -> None:
    playbook("rollback.yml", extra_vars={"rollback_purge": True, "rollback_discard": True}).check()
    names = ("app1", "app2", "app3")
    for name in names:
        host(name).run("chmod --silent a-x /usr/bin/*-gcc-[0-9]* /usr/bin/make", check=False)
    try:
        chosen = {**variables, "jemalloc_method": "auto", "offheap_cache": "cross"}
        role(extra_vars=chosen).check()
        again = role(extra_vars=chosen).check()
    finally:
        for name in names:
            host(name).run("chmod --silent a+x /usr/bin/*-gcc-[0-9]* /usr/bin/make", check=False)
    assert not any(stats.changed for stats in again.stats.values())
    same = installed(host("app1"))
    assert len(same) == 5 and all(installed(host(name)) == same for name in names)
    carried = json.loads((REPOSITORY / "roles" / "jemalloc" / "files" / "cross_checksums.json").read_text())
    sums = {line.split()[0] for line in same}
    assert {value for key, value in carried.items() if key.endswith("glibc-x86_64-4096")} <= sums
    records = [json.loads(path.read_text()) for path in (controller.directory / "cross").glob("*-cross.tar.gz.json")]
    assert {record["compiler"] for record in records} == {"ziglang 0.17.1"}
