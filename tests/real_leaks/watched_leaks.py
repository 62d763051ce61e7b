# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Watch published leaks, the leaking version beside the fixed one, and write docs/real_leaks.md from what was seen.

    watched_leaks.py [--again] [--table] [LEAK ...]

Eight at a time run as services on a booted host of Debian 12 (of what Debian itself packages, the fixed version on one
of Debian 13), for eight minutes under the profiler with a sample each 64 KiB, from playbook to report. What was seen is
kept, in tests/real_leaks/seen/, and not tried again unless --again is given; --table only writes the page.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / ".cache" / "collections"))

from ansible_collections.offheap.profiler.tests.integration.hosts import Lab, LabHost
from ansible_collections.offheap.profiler.tests.integration.playbooks import Controller, build
from ansible_collections.offheap.profiler.tests.real_leaks import real_leaks_page
from ansible_collections.offheap.profiler.tests.real_leaks.leak_languages import Leak
from ansible_collections.offheap.profiler.tests.real_leaks.published import LEAKS
from ansible_collections.offheap.profiler.tests.real_leaks.real_leaks_page import Said, Seen

BUILD = ROOT / "build" / "real_leaks"
SEEN = ROOT / "tests" / "real_leaks" / "seen"
PAGE = ROOT / "docs" / "real_leaks.md"
SECONDS = 480
# Two versions each: a small machine runs so many services beside one another without any being slow.
AT_ONCE = 8
_UNIT = """[Service]
Environment=PYTHONPATH={directory} NODE_PATH={directory}/node_modules
ExecStart={start}
"""


def unit_of(leak: Leak, version: str) -> str:
    return f"{leak.name}-{version}.service"


def prepare(leak: Leak, version: str, host: LabHost) -> None:
    """Fetch a version of the package here, and run it as a service there."""
    language = leak.language
    with tempfile.TemporaryDirectory() as scratch:
        local, there = Path(scratch) / version, f"/srv/leaks/{leak.name}/{version}"
        local.mkdir()
        words = {"package": leak.package, "version": version, "beside": leak.beside.format(version=version)}
        words |= {"python": sys.executable, "directory": str(local)}
        subprocess.run(shlex.split(language.fetch.format(**words)), check=True, cwd=scratch)
        (local / language.source).write_text(language.loop.format(code=leak.code, pause=leak.pause))
        if language.build:
            subprocess.run(shlex.split(language.build.format(**words)), check=True, cwd=scratch)
        packed = Path(scratch) / "packed.tar"
        subprocess.run(["tar", "-cf", packed, "-C", local, "."], check=True)
        host.run(f"mkdir -p {there}")
        host.send(packed, "/srv/packed.tar")
    unit = _UNIT.format(directory=there, start=language.start.format(directory=there))
    there_too = f"/etc/systemd/system/{unit_of(leak, version)}"
    host.run(f"tar -xf /srv/packed.tar -C {there} --no-same-owner; printf %s {shlex.quote(unit)} > {there_too}")


def suite_of(leak: Leak, version: str) -> str:
    return "bookworm" if version == leak.leaking else leak.language.fixed_suite


def variables(versions: list[tuple[Leak, str]], directory: Path) -> dict[str, Any]:
    """What the playbooks are told."""
    units = [
        {"name": unit_of(leak, version), "runtime_with": ["objects"] if leak.objects else []}
        for leak, version in versions
    ]
    return {
        "offheap_units": units,
        "heap_collect_holders": [unit["name"] for unit in units],
        "offheap_archive": str(directory / "archive"),
        "offheap_report": str(directory / "report"),
        "offheap_cache": str(BUILD / "cache"),
        "jemalloc_method": "cross",
        "jemalloc_source": "{{ lab_sources }}/jemalloc-5.3.0.tar.bz2",
        "profiled_service_malloc_conf": {"lg_prof_sample": 16},
        "profiled_service_dump_seconds": 20,
        "profiled_service_healthy_seconds": 4,
        "profiled_service_min_free_mib": 64,
    }


def watched(leaks: list[Leak], lab: Lab, tarball: Path) -> list[Seen]:
    """The whole job with all of them at once."""
    versions = [(leak, version) for leak in leaks for version in (leak.leaking, leak.fixed)]
    by_host = {
        lab.host(name): [(leak, version) for leak, version in versions if suite_of(leak, version) == suite]
        for name, suite in lab.hosts().items()
    }
    for host, here in by_host.items():
        if packages := {leak.language.debian for leak, _ in here if leak.language.debian}:
            lab.command("install", host.name, *packages)
        for leak, version in here:
            prepare(leak, version, host)
        units = [unit_of(leak, version) for leak, version in here]
        host.run(f"systemctl daemon-reload; systemctl start {shlex.join(units)}")
    with tempfile.TemporaryDirectory(prefix="offheap-") as scratch:
        controller = Controller(Path(scratch), lab.inventory, BUILD / "logs")
        controller.install(tarball)

        def on_each_host(playbook: str) -> None:
            for host, here in by_host.items():
                controller.playbook(playbook, limit=host.name, extra_vars=variables(here, Path(scratch))).check()

        def resident() -> dict[str, int]:
            return {unit_of(*one): host.rss(unit_of(*one)) for host, here in by_host.items() for one in here}

        on_each_host("enable_profiling.yml")
        before, began = resident(), time.time()
        time.sleep(SECONDS)
        after, span = resident(), time.time() - began
        on_each_host("collect_profiles.yml")
        told = controller.playbook("report_leaks.yml", extra_vars=variables(versions, Path(scratch))).check()
        reports = {one["unit"]: one for one in told.reports}
        on_each_host("rollback.yml")

    def said(leak: Leak, version: str) -> Said:
        unit = unit_of(leak, version)
        report = reports[unit]
        paths = [suspect["path"] for suspect in report["suspects"]]
        found = [rank for rank, path in enumerate(paths, 1) if any(re.fullmatch(leak.mended, name) for name in path)]
        shown = found[0] - 1 if found else 0
        return Said(
            report["verdict"],
            report["reason"],
            report["growth_bytes_per_day"],
            report["growth_error"],
            round((after[unit] - before[unit]) / span * 86400),
            found[0] if found else 0,
            paths[shown][:12] if paths else [],
            report["suspects"][shown]["held"] if paths else "",
        )

    day = time.strftime("%Y-%m-%d", time.gmtime())
    return [Seen(leak.name, day, said(leak, leak.leaking), said(leak, leak.fixed)) for leak in leaks]


def run(leaks: list[Leak]) -> None:
    """See these, and keep what was seen."""
    lab = Lab(os.environ.get("OFFHEAP_LAB_NAME", "leaks"))
    lab.down()
    suites = sorted({suite_of(leak, version) for leak in leaks for version in (leak.leaking, leak.fixed)})
    lab.command("up", "--hosts", str(len(suites)), "--suites", ",".join(suites))
    try:
        with tempfile.TemporaryDirectory() as directory:
            for seen in watched(leaks, lab, build(Path(directory))):
                SEEN.mkdir(exist_ok=True)
                (SEEN / f"{seen.name}.json").write_text(json.dumps(asdict(seen), indent=1) + "\n")
    finally:
        lab.down()


def kept() -> list[Seen]:
    """What was seen, in the order of the list."""
    found = []
    for leak in LEAKS:
        path = SEEN / f"{leak.name}.json"
        if path.exists():
            told = json.loads(path.read_text())
            found.append(Seen(leak.name, told["day"], Said(**told["leaking"]), Said(**told["fixed"])))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("leaks", nargs="*", metavar="LEAK")
    options = parser.parse_args()
    todo = [leak for leak in LEAKS if not options.leaks or leak.name in options.leaks]
    todo = [leak for leak in todo if options.again or not (SEEN / f"{leak.name}.json").exists()]
    for at in range(0, 0 if options.table else len(todo), AT_ONCE):
        run(todo[at : at + AT_ONCE])
    PAGE.write_text(real_leaks_page.page(kept()))
    print(f"{PAGE.relative_to(ROOT)} is written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
