# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Watch services that leak in every shape, or look as if they did, and write docs/shapes.md from what was seen.

    watched_shapes.py [--table] [SHAPE ...]

All run on one booted host of Debian 12, in C, C++, Java and Python, for eight minutes under the profiler with a sample
each 64 KiB, from playbook to report. What was seen is kept in tests/verdicts/seen.json; --table only writes the page.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / ".cache" / "collections"))

from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.archive import Archive
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.verdict import Answer
from ansible_collections.offheap.profiler.tests.integration.hosts import Lab, LabHost
from ansible_collections.offheap.profiler.tests.integration.playbooks import Controller, build
from ansible_collections.offheap.profiler.tests.verdicts import looking_often, shapes_page
from ansible_collections.offheap.profiler.tests.verdicts.scripts import LEAD, SPAN, WATCHED, Watched, script
from ansible_collections.offheap.profiler.tests.verdicts.shapes_page import Told

BUILD = ROOT / "build" / "verdicts"
ARCHIVE = BUILD / "archive"
SEEN = ROOT / "tests" / "verdicts" / "seen.json"
PAGE = ROOT / "docs" / "shapes.md"
PLAYERS = Path(__file__).parent / "players"
PLACE = "/srv/shapes"
DUMP_SECONDS = 15
_FLAGS = ["-O2", "-g", "-fno-omit-frame-pointer", "-Wall", "-Wextra", "-Werror"]
# Python 3.11 does not name its functions in a profile.
_CULPRIT = r"\bkeep\b|PyByteArray_Resize"
_START = {
    "c": "{place}/player_c",
    "c++": "{place}/player_cpp",
    "java": "/usr/bin/java -Xmx32m -XX:+UseSerialGC -cp {place} Player",
    "python": "/usr/bin/python3 {place}/player.py",
}


def unit_of(watched: Watched, language: str) -> str:
    return f"{watched.name.replace('%', '')}-{language.replace('+', 'p')}.service"


def prepare(todo: list[tuple[Watched, str]], host: LabHost) -> None:
    """Build the programs here, and run a service for each shape there."""
    with tempfile.TemporaryDirectory() as scratch:
        local = Path(scratch) / "shapes"
        local.mkdir()
        subprocess.run(["gcc", *_FLAGS, "-o", local / "player_c", PLAYERS / "player.c"], check=True)
        subprocess.run(["g++", "-std=c++17", *_FLAGS, "-o", local / "player_cpp", PLAYERS / "player.cpp"], check=True)
        subprocess.run(
            ["javac", "-nowarn", "--release", "17", "-d", local, PLAYERS / "Player.java"],
            check=True,
            stderr=subprocess.DEVNULL,
        )
        (local / "player.py").write_text((PLAYERS / "player.py").read_text())
        for watched, language in todo:
            name = f"{watched.name}.script"
            (local / name).write_text(script(watched))
            start = f"{_START[language].format(place=PLACE)} {PLACE}/{name}"
            start += f" {watched.workers} {watched.seconds}" if watched.workers else ""
            (local / unit_of(watched, language)).write_text(
                f"[Service]\nExecStart={start.replace('%', '%%')}\nSuccessExitStatus=143\n"
            )
        packed = Path(scratch) / "packed.tar"
        subprocess.run(["tar", "-cf", packed, "-C", local, "."], check=True)
        host.run(f"mkdir -p {PLACE}")
        host.send(packed, "/srv/packed.tar")
    host.run(f"tar -xf /srv/packed.tar -C {PLACE} --no-same-owner; cp {PLACE}/*.service /etc/systemd/system")


def variables(todo: list[tuple[Watched, str]], directory: Path) -> dict[str, Any]:
    """What the playbooks are told."""
    units = [
        {
            "name": unit_of(watched, language),
            "agent_settings": {"start_delay": 1, **({"children": True} if watched.workers else {})},
        }
        for watched, language in todo
    ]
    return {
        "offheap_units": units,
        "offheap_archive": str(ARCHIVE),
        "offheap_report": str(directory / "report"),
        "offheap_cache": str(BUILD / "cache"),
        "jemalloc_method": "cross",
        "jemalloc_source": "{{ lab_sources }}/jemalloc-5.3.0.tar.bz2",
        "profiled_service_malloc_conf": {"lg_prof_sample": 16},
        "profiled_service_dump_seconds": DUMP_SECONDS,
        "profiled_service_healthy_seconds": 4,
        "profiled_service_min_free_mib": 64,
    }


def watch(todo: list[tuple[Watched, str]], lab: Lab, tarball: Path) -> list[Told]:
    """The whole job with all of them at once."""
    host = lab.host("app1")
    lab.command("install", host.name, "openjdk-17-jdk-headless", "python3")
    prepare(todo, host)
    units = [unit_of(watched, language) for watched, language in todo]
    host.run(f"systemctl daemon-reload; systemctl start {shlex.join(units)}")
    shutil.rmtree(ARCHIVE, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="offheap-") as scratch:
        controller = Controller(Path(scratch), lab.inventory, BUILD / "logs")
        controller.install(tarball)
        told = variables(todo, Path(scratch))
        controller.playbook("enable_profiling.yml", limit=host.name, extra_vars=told).check()
        # All at once, so that none has come to the end of its script before the last begins.
        host.run(f"systemctl restart {shlex.join(units)}", timeout=300)
        started = {unit: _started(host, unit) for unit in units}
        time.sleep(max(0.0, max(started.values()) + LEAD + SPAN - time.time()))
        controller.playbook("collect_profiles.yml", limit=host.name, extra_vars=told).check()
        reported = controller.playbook("report_leaks.yml", extra_vars=told).check().reports
        controller.playbook("rollback.yml", limit=host.name, extra_vars=told).check()
    archive = Archive.open(ARCHIVE)
    since = looking_often.beginnings(archive)
    # Of one language: the others have the same lives.
    said = {unit: list(looking_often.answers(archive, unit)) for unit in units if unit.endswith("-c.service")}
    reports = {one["unit"]: one for one in reported}
    day = time.strftime("%Y-%m-%d", time.gmtime())
    return [
        _told(watched, language, reports[unit], since.get(unit, 0.0), said.get(unit, []), started[unit], day)
        for (watched, language), unit in zip(todo, units, strict=True)
    ]


def _started(host: LabHost, unit: str) -> float:
    """Seconds since the epoch."""
    text = host.run(f"systemctl show --timestamp=us+utc -p ExecMainStartTimestamp {unit}").stdout
    return float(host.run(f"date -u +%s.%N -d {shlex.quote(text.strip().split('=', 1)[1])}").stdout)


def _told(
    watched: Watched,
    language: str,
    report: dict[str, Any],
    since: float,
    said: list[tuple[float, Answer]],
    started: float,
    day: str,
) -> Told:
    first = next(iter(report["suspects"]), None)
    return Told(
        watched.name,
        language,
        day,
        report["verdict"],
        report["reason"],
        report["growth_bytes_per_day"],
        report["growth_error"],
        bool(first and any(re.search(_CULPRIT, name) for name in first["path"])),
        since - started if first else 0.0,
        len(said),
        [round(after) for after in looking_often.wrong(watched, said, started)],
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("shapes", nargs="*", metavar="SHAPE")
    options = parser.parse_args()
    todo = [
        (watched, language)
        for watched in WATCHED
        for language in watched.languages
        if not options.shapes or watched.name in options.shapes
    ]
    kept = (
        {(one["shape"], one["language"]): Told(**one) for one in json.loads(SEEN.read_text())} if SEEN.exists() else {}
    )
    if not options.table:
        lab = Lab(os.environ.get("OFFHEAP_LAB_NAME", "shapes"))
        lab.down()
        lab.command("up", "--hosts", "1", "--suites", "bookworm")
        try:
            with tempfile.TemporaryDirectory() as directory:
                for told in watch(todo, lab, build(Path(directory))):
                    kept[told.shape, told.language] = told
        finally:
            lab.down()
        in_order = [
            kept[watched.name, language]
            for watched in WATCHED
            for language in watched.languages
            if (watched.name, language) in kept
        ]
        SEEN.write_text(json.dumps([asdict(one) for one in in_order], indent=1) + "\n")
    PAGE.write_text(shapes_page.page(list(kept.values())))
    print(f"{PAGE.relative_to(ROOT)} is written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
