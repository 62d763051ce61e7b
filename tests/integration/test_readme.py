# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""README's whole job, pasted line by line, on hosts without a compiler and from an empty virtual environment."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

from ansible_collections.offheap.profiler.tests.integration import builds
from ansible_collections.offheap.profiler.tests.integration.hosts import Lab, LabHost, wait_for
from ansible_collections.offheap.profiler.tests.integration.playbooks import REPOSITORY

pytestmark = pytest.mark.in_order

HOSTS = ("app2", "app3")
# What a network and some patience would give: the release without the internet, dumps within seconds.
VARIABLES = {
    "jemalloc_source": "{{ lab_sources }}/jemalloc-5.3.0.tar.bz2",
    "triage_watch": "6s",
    "profiled_service_malloc_conf": {"lg_prof_sample": 16},
    "profiled_service_dump_seconds": 4,
    "profiled_service_healthy_seconds": 3,
    "profiled_service_agent_settings": {"start_delay": 1},
}
HostOf = Callable[[str], LabHost]


def job() -> list[str]:
    """The lines of README's job."""
    text = (REPOSITORY / "README.md").read_text()
    block = text.partition("## The whole job\n\n```console\n")[2].partition("```")[0]
    return [line for line in block.splitlines() if line and not line.startswith("#")]


@dataclass
class Shell:
    """Somebody's shell in a clone of the repository, with a home and a Python of their own."""

    clone: Path
    home: Path

    def paste(self, line: str, status: int = 0) -> str:
        """What a line prints, which must end with this status."""
        environment = {
            "PATH": f"{self.home}/venv/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "ANSIBLE_NOCOLOR": "1",
            **{name: value for name, value in os.environ.items() if name.startswith(("PIP_", "UV_", "TMPDIR"))},
        }
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=self.clone,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == status, f"{line}\n{done.stdout[-6000:]}"
        return done.stdout

    def line(self, words: str) -> str:
        """The one line of README's job with these words."""
        (found,) = [line for line in job() if words in line]
        return found


@pytest.fixture(scope="module")
def shell(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """With Ansible, as its users have it, and nothing else."""
    place = tmp_path_factory.mktemp("user")
    tree = REPOSITORY / "tests" / "gates" / "tree.sh"
    told = subprocess.run([tree, place], cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout
    clone, home = place / "clone", place / "home"
    Path(told.strip()).rename(clone)
    home.mkdir()
    inventory = clone / "inventory"
    (inventory / "group_vars").mkdir(parents=True)
    listed = lab.inventory.read_text()
    (inventory / "hosts.ini").write_text(re.sub(r"^app1 .*\n", "", listed, flags=re.MULTILINE))
    (inventory / "group_vars" / "all.yml").write_text(yaml.safe_dump(VARIABLES))
    shell = Shell(clone, home)
    python = shlex.quote(shutil.which("python3.11") or "python3")
    pip = f"pip install --quiet ansible-core=={version('ansible-core')}"
    shell.paste(f"{python} -m venv {shlex.quote(str(home))}/venv && {pip}")
    return shell


@pytest.fixture(scope="module")
def listings(host: HostOf, shell: Shell) -> Iterator[dict[str, list[str]]]:
    """The files of the hosts before anything is done; whatever is still there in the end is removed."""
    for name in HOSTS:
        host(name).run("systemctl start frontend")
    yield {name: host(name).listing() for name in HOSTS}
    shell.paste(f"{shell.line('rollback')} -e rollback_discard=true")
    builds.give_crossed(shell.clone / "offheap" / "cache")


def refusals(output: str) -> dict[str, list[str]]:
    """By host, what a playbook refused to do."""
    found = re.findall(r'^fatal: \[(\w+)\].*?"msg": "(.*?)"', output, flags=re.MULTILINE | re.DOTALL)
    return {name: [message for host, message in found if host == name] for name in HOSTS}


def dumps(on: LabHost) -> int:
    """How many dumps of the frontend are complete: their list of mappings comes last."""
    return int(on.run("grep -ls ^MAPPED_LIB /var/lib/offheap/frontend.service/*.heap | wc -l").stdout)


def test_it_builds_and_installs(shell: Shell) -> None:
    for words in ("collection build", "collection install"):
        shell.paste(shell.line(words))


def test_without_what_it_builds_with_the_rehearsal_refuses_as_the_run_does(
    shell: Shell, host: HostOf, listings: dict[str, list[str]]
) -> None:
    enable = shell.line("enable_profiling")
    rehearsed, ran = (refusals(shell.paste(line, 2)) for line in (f"{enable} --check", enable))
    assert rehearsed == ran
    for name in HOSTS:
        assert any("ziglang" in message for message in ran[name]), ran
        assert host(name).listing() == listings[name]


def test_the_job(shell: Shell, host: HostOf, listings: dict[str, list[str]]) -> None:
    shell.paste(shell.line("pip install"))
    assert "frontend.service" in shell.paste(shell.line("triage"))
    enable = shell.line("enable_profiling")
    rehearsed = shell.paste(f"{enable} --check")
    for part in ("jemalloc 5.3.0", "the agent"):
        assert f"{part} would be built on the controller, for app2, app3" in rehearsed
    assert not any(host(name).run("find /opt/offheap /var/lib/offheap -type f", check=False).stdout for name in HOSTS)
    shell.paste(enable)
    wait_for(lambda: min(dumps(host(name)) for name in HOSTS) >= 4, "four dumps on each host")
    assert "new captures" in shell.paste(shell.line("collect_profiles"))
    assert "frontend.service" in shell.paste(shell.line("report_leaks"))
    assert (shell.clone / "offheap").is_dir()
    purge = shell.line("rollback")
    told = shell.paste(purge.replace(" -e rollback_purge=true", ""))
    assert re.search(r"/opt/offheap stays: \d+ files, 0 of them dumps, ", told), told
    assert re.search(r"/var/lib/offheap stays: \d+ files, \d+ of them dumps, ", told), told
    assert "run this again with -e rollback_purge=true" in told
    for name in HOSTS:
        ours = [line for line in host(name).listing() if line not in listings[name]]
        assert ours and all(re.search(r" /(opt|var/lib)/offheap(/|$)", line) for line in ours), ours
    shell.paste(purge)
    assert {name: host(name).listing() for name in HOSTS} == listings


def test_every_line_is_tried() -> None:
    tried = ("build", "collection install", "pip install", "triage", "enable_", "collect_", "report_", "rollback")
    assert len(job()) == len(tried)
    assert all(words in line for words, line in zip(tried, job(), strict=True))
