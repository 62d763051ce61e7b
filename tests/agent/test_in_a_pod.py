# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What a pod template gets is enough: a program starts with it as another user, its spool is copied by tar, and the
copy is imported, each start as a process of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.console import offline
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.archive import Archive
from ansible_collections.offheap.profiler.plugins.plugin_utils.driver import pod_template
from ansible_collections.offheap.profiler.plugins.plugin_utils.driver.analyze import analyze_dump
from ansible_collections.offheap.profiler.plugins.plugin_utils.driver.formats import Request
from ansible_collections.offheap.profiler.plugins.plugin_utils.driver.imports import Origin
from ansible_collections.offheap.profiler.plugins.plugin_utils.driver.sources import Places
from ansible_collections.offheap.profiler.tests.agent.conftest import EMULATED
from ansible_collections.offheap.profiler.tests.agent.service import wait_for
from ansible_collections.offheap.profiler.tests.unit.strategies import workloads

NOBODY = 65534


@pytest.fixture
def volumes() -> Iterator[Path]:
    """A directory that every user may enter, as those of a pod's volumes are."""
    with tempfile.TemporaryDirectory(prefix="offheap-pod-") as name:
        path = Path(name)
        path.chmod(0o755)
        yield path


@pytest.mark.skipif(EMULATED, reason="a pod of another architecture has the same variables")
def test_the_variables_of_a_pod_bring_dumps_that_can_be_imported(
    volumes: Path, library: Path, jemalloc: Path, workload: Path, tmp_path: Path
) -> None:
    libraries, spools, program = volumes / "libraries", volumes / "spool", volumes / "web"
    libraries.mkdir()
    shutil.copy(jemalloc, libraries / pod_template.JEMALLOC)
    shutil.copy(library, libraries / pod_template.AGENT)
    shutil.copy(workload, program)
    spool = spools / "web"
    spool.mkdir(parents=True)
    spool.chmod(0o777)  # as a directory in an emptyDir
    manifest = workloads.workload("Deployment", {"spec": {"containers": [{"name": "web"}]}})
    settings = {**pod_template.SETTINGS, "start_delay": 0, "dump_seconds": 1}
    made = pod_template.profiled(manifest, {"web": str(program)}, "l", "amd64", {"lg_prof_sample": 14}, settings)
    (container,) = workloads.pod_of(made.manifest)["spec"]["containers"]
    environment = {}
    for one in container["env"]:
        value = one["value"]
        for mount, place in (("/opt/offheap", libraries), ("/var/lib/offheap", spools)):
            value = value.replace(mount, str(place))
        environment[one["name"]] = value

    def whole() -> list[Path]:
        return [path for path in spool.glob("*.heap") if path.with_name(f"{path.name}.json").exists()]

    nobody = NOBODY if os.geteuid() == 0 else None
    for start in (1, 2):
        process = subprocess.Popen(
            [program, "leak", "120"],
            env=environment,
            stderr=subprocess.PIPE,
            user=nobody,
            group=nobody,
            extra_groups=None if nobody is None else [],
        )
        try:
            wait_for("two dumps of a start", lambda wanted=2 * start: len(whole()) >= wanted, 30)
        finally:
            process.kill()
            _output, errors = process.communicate()
        assert errors == b""

    copy = tmp_path / "web-0"
    copy.mkdir()
    packed = subprocess.run(["tar", "--create", "--directory", spool, "."], stdout=subprocess.PIPE, check=True)
    subprocess.run(["tar", "--extract", "--directory", copy], input=packed.stdout, check=True)
    found = offline.imported(str(copy), Origin("web", "web-0"), tmp_path / "archive", [volumes])
    assert len({one.facts.process.key for one in found}) == 2, "a process for each start"
    assert all(one.facts.memory["rss"] > 1 << 20 for one in found)
    captures = Archive.open(tmp_path / "archive").captures("web.service", "web-0")
    assert len(captures) == len(found) and all(capture.lives for capture in captures)
    text = analyze_dump(
        Request(kind="collapsed"), found[-1].path, None, Places(binary_path=[volumes]), pytest.fail
    ).content.decode()
    assert any(line.rpartition(" ")[0].endswith(";leak;leak_here") for line in text.splitlines()), text
