# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Ask who holds what in services that hold their blocks in one way each, and write docs/holders.md from what was said.

    watched_holders.py [--table] [UNIT ...]

All run on one booted host of Debian 12, from enabling to rolling back, by the playbooks. What was seen is kept in
tests/holders/seen.json; --table only writes the page.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / ".cache" / "collections"))

from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.archive import Archive
from ansible_collections.offheap.profiler.plugins.plugin_utils.columns.series_reader import reading
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.who_holds import of_paths
from ansible_collections.offheap.profiler.tests.holders import holders_page
from ansible_collections.offheap.profiler.tests.holders.cases import CASES, PLACE, SECONDS, Case
from ansible_collections.offheap.profiler.tests.holders.holders_page import Part, Seen
from ansible_collections.offheap.profiler.tests.integration.hosts import Lab, LabHost
from ansible_collections.offheap.profiler.tests.integration.playbooks import Controller, build

BUILD = ROOT / "build" / "holders"
ARCHIVE = BUILD / "archive"
SEEN = ROOT / "tests" / "holders" / "seen.json"
PAGE = ROOT / "docs" / "holders.md"
PROGRAMS = Path(__file__).parent / "programs"
CPP = ROOT / "tests" / "agent" / "programs" / "holders.cpp"
_PACKAGES = ("openjdk-17-jdk-headless", "python3", "python3-lxml", "libstdc++6")
# What must have come of age before it is looked at.
_OLD = 5


def build_programs(local: Path) -> None:
    """All of them, into a directory."""
    java = Path(subprocess.run(["readlink", "-f", "/usr/bin/javac"], capture_output=True, text=True, check=True).stdout)
    headers = java.parents[1] / "include"
    c = ["gcc", "-std=c11", "-D_GNU_SOURCE", "-O2", "-g", "-fno-omit-frame-pointer", "-Wall", "-Wextra", "-Werror"]
    shared = [*c, "-shared", "-fPIC"]
    python = f"-I{sysconfig.get_paths()['include']}"
    for command in (
        ["g++", "-std=c++17", "-O2", "-g", "-fno-omit-frame-pointer", "-o", "held_cpp", CPP, "-pthread", "-ldl"],
        [*c, "-o", "held_c", PROGRAMS / "held.c", "-ldl"],
        [*shared, "-o", "keeper.so", PROGRAMS / "keeper.c"],
        [*shared, python, "-o", "held.abi3.so", PROGRAMS / "heldmodule.c"],
        [*shared, f"-I{headers}", f"-I{headers}/linux", "-o", "libheld.so", PROGRAMS / "heldnative.c"],
        ["rustc", "--edition", "2021", "-O", "-g", "-o", "held_rs", PROGRAMS / "held.rs"],
        ["go", "build", "-o", "held_go", PROGRAMS / "held.go"],
        ["javac", "--release", "17", "-d", ".", PROGRAMS / "Held.java"],
        ["cp", PROGRAMS / "service.py", PROGRAMS / "connections.py", PROGRAMS / "prepared.sql", "."],
    ):
        subprocess.run([str(word) for word in command], cwd=local, check=True, env={**os.environ, "CGO_ENABLED": "1"})


def prepare(todo: list[Case], host: LabHost) -> None:
    """Run a service for each case there."""
    with tempfile.TemporaryDirectory() as scratch:
        local = Path(scratch) / "programs"
        (local / "units").mkdir(parents=True)
        build_programs(local)
        for case in (one for one in todo if not one.service):
            (local / "units" / case.unit).write_text(f"[Service]\nExecStart={case.start}\nSuccessExitStatus=143\n")
        packed = Path(scratch) / "packed.tar"
        subprocess.run(["tar", "-cf", packed, "-C", local, "."], check=True)
        host.run(f"mkdir -p {PLACE}")
        host.send(packed, "/srv/packed.tar")
    host.run(f"tar -xf /srv/packed.tar -C {PLACE} --no-same-owner; cp -r {PLACE}/units/. /etc/systemd/system")
    host.run(f"systemctl daemon-reload; systemctl start {shlex.join(case.unit for case in todo)}", timeout=300)


def variables(todo: list[Case]) -> dict[str, Any]:
    """What the playbooks are told."""
    units = [
        {
            "name": case.unit,
            "agent_settings": {"start_delay": 1, **({"children": True} if case.service else {})},
            "runtime_with": ["objects"] if case.language == "Python" else [],
        }
        for case in todo
    ]
    return {
        "offheap_units": units,
        "offheap_archive": str(ARCHIVE),
        "offheap_cache": str(BUILD / "cache"),
        "heap_collect_holders": [case.unit for case in todo],
        "jemalloc_method": "cross",
        "jemalloc_source": "{{ lab_sources }}/jemalloc-5.3.0.tar.bz2",
        "profiled_service_malloc_conf": {"lg_prof_sample": 10},
        "profiled_service_healthy_seconds": 3,
        "profiled_service_min_free_mib": 64,
    }


def watch(todo: list[Case], lab: Lab, tarball: Path) -> list[Seen]:
    """The whole job with all of them at once."""
    host = lab.host("app1")
    lab.command("install", host.name, *_PACKAGES, *(case.package for case in todo if case.package))
    prepare(todo, host)
    shutil.rmtree(ARCHIVE, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="offheap-") as scratch:
        controller = Controller(Path(scratch), lab.inventory, BUILD / "logs")
        controller.install(tarball)
        told = variables(todo)
        controller.playbook("enable_profiling.yml", limit=host.name, extra_vars=told).check()
        for load in (case.load for case in todo if case.load):
            host.run(load)
        time.sleep(SECONDS + _OLD)
        controller.playbook("collect_profiles.yml", limit=host.name, extra_vars=told).check()
        controller.playbook("rollback.yml", limit=host.name, extra_vars=told).check()
    return [seen(case, Archive.open(ARCHIVE)) for case in todo]


def seen(case: Case, archive: Archive) -> Seen:
    """What the archive says of the path of a case."""
    day = time.strftime("%Y-%m-%d", time.gmtime())
    with reading(archive, lambda warning: print(f"{case.unit}: {warning}")) as reader:
        for capture in (one for one in archive.captures(case.unit) if one.holders is not None):
            named = reader.holders([capture], reader.maps([capture]))
            for frames, told in of_paths(named) if named is not None else []:
                if case.is_on([frame.function for frame in frames]) and told.samples > 100:
                    parts = [Part(part.kind, part.by, part.low, part.share, part.high) for part in told.parts]
                    return Seen(case.unit, day, told.samples, told.text, parts)
    return Seen(case.unit, day, 0, "nothing", [])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("units", nargs="*", metavar="UNIT")
    options = parser.parse_args()
    todo = [case for case in CASES if not options.units or case.unit in options.units]
    kept: dict[str, Seen] = {}
    for one in json.loads(SEEN.read_text()) if SEEN.exists() else []:
        kept[one["unit"]] = Seen(**{**one, "parts": [Part(**part) for part in one["parts"]]})
    if not options.table:
        lab = Lab(os.environ.get("OFFHEAP_LAB_NAME", "holders"))
        lab.down()
        lab.command("up", "--hosts", "1", "--suites", "bookworm")
        try:
            with tempfile.TemporaryDirectory() as directory:
                for told in watch(todo, lab, build(Path(directory))):
                    kept[told.unit] = told
        finally:
            lab.down()
        in_order = [kept[case.unit] for case in CASES if case.unit in kept]
        SEEN.write_text(json.dumps([asdict(one) for one in in_order], indent=1) + "\n")
    PAGE.write_text(holders_page.page(list(kept.values())))
    print(f"{PAGE.relative_to(ROOT)} is written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
