# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The page of a fleet of 2,000 hosts: its size, and how long Chromium takes to open it and to move in it.

    fleet_page.py [--hosts N] [--rounds N] [--output build/bench/fleet-page.json]

The fleet is made up: a JVM of some 220 stacks and 24 dumps on each host, of which every thirtieth leaks. Opening counts
from the address to the first screen with its graph drawn. Exits with status 1 if a promise is not kept: 2 s, 8 MB.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / ".cache" / "collections"))

from ansible_collections.offheap.profiler.plugins.plugin_utils.report import page as report_page
from ansible_collections.offheap.profiler.plugins.plugin_utils.report.fleet import Fleet
from ansible_collections.offheap.profiler.tests.browser import fleets

MOST_SECONDS, MOST_BYTES = 2.0, 8_000_000
DUMPS, STACKS, EACH_LEAKS = 24, 200, 30
UNIT = "frontend.service"


def fleet(hosts: int) -> Fleet:
    rng = random.Random(5)
    sizes = [rng.lognormvariate(-2.5, 1.5) * fleets.MIB for _stack in range(STACKS)]
    serve = (*fleets.SERVE, *fleets.THREAD, *fleets.ENTRY)
    routes = [
        ("os::malloc", f"java:shop.Part{n % 40}.render", f"java:shop.Route{n}.answer", *serve) for n in range(STACKS)
    ]
    found = Fleet()
    for number in range(hosts):
        rate = rng.uniform(54, 74) if number % EACH_LEAKS == 0 else 0.0
        dumps: fleets.Dumps = []
        for at in range(DUMPS):
            stacks = fleets.jvm(2.0 + rate * at * fleets.STEP / 86400, rng, cache=min(30.0, 4.0 * at))
            stacks.update({route: size * rng.uniform(0.98, 1.02) for route, size in zip(routes, sizes, strict=True)})
            told = fleets.facts(sum(stacks.values()), rng.uniform(280, 640), "4.2.0", pid=2211)
            dumps.append((fleets.START + at * fleets.STEP, stacks, told))
        host = f"shop-{number:04}.eu-west.example.org"
        process = fleets.process(UNIT, host, "2211-1a2b3c4d", dumps, fleets.LIBRARIES)
        newest = fleets.with_threads(dumps[-1][1], fleets.THREADS)
        fleets.observe(found, UNIT, host, [process], fleets.moved(newest, fleets.LIBRARIES))
    return found


def opened(browser: Browser, report: Path) -> dict[str, float]:
    """Seconds of one opening and of a few moves."""
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    found: dict[str, float] = {}

    def timed(name: str, do: Callable[[], object]) -> None:
        begun = time.perf_counter()
        do()
        page.evaluate("new Promise(drawn => requestAnimationFrame(() => setTimeout(drawn)))")
        found[name] = time.perf_counter() - begun

    timed("open", lambda: (page.goto(report.as_uri()), page.wait_for_selector("#graph[style]")))
    timed("choose a host", lambda: page.locator("#hostlist button").nth(3).click())
    timed("earlier dump", lambda: page.keyboard.press(","))
    timed("find a host", lambda: page.locator("#hostfilter").fill("shop-1234"))
    timed("all hosts", lambda: page.locator("#growth label", has_text="All hosts").click())
    page.close()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "bench" / "fleet-page.json")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, sync_playwright() as playwright:
        report = Path(directory) / "report.html"
        report.write_text(report_page.render(fleet(arguments.hosts).data()))
        size = report.stat().st_size
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        rounds = [opened(browser, report) for _round in range(arguments.rounds)]
        browser.close()
    seconds = {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}
    case = f"{arguments.hosts} hosts"
    rows = [{"case": case, "metric": "size", "unit": "bytes", "ours": size, "peer": MOST_BYTES, "peer_name": "promise"}]
    rows += [
        {
            "case": case,
            "metric": name,
            "unit": "s",
            "ours": round(taken, 3),
            "peer": MOST_SECONDS,
            "peer_name": "promise",
        }
        for name, taken in seconds.items()
    ]
    for row in rows:
        print(f"{row['case']}: {row['metric']} {row['ours']} {row['unit']}, promised {row['peer']}")
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps({"rows": rows}, indent=2) + "\n")
    return int(size > MOST_BYTES or seconds["open"] > MOST_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
