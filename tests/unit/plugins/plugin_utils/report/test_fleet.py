# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.code_paths import Suspect
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.frame import Frame
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.series import Key
from ansible_collections.offheap.profiler.plugins.plugin_utils.report import fleet, page, ticket
from ansible_collections.offheap.profiler.plugins.plugin_utils.report.files import without_stacks
from ansible_collections.offheap.profiler.plugins.plugin_utils.report.fleet import Fleet
from ansible_collections.offheap.profiler.tests.browser import fleets

MIB = 1 << 20


@pytest.fixture(scope="module")
def data() -> dict[str, Any]:
    return fleets.fleet(hosts=9, leaking=3, dumps=24)


def test_what_leaks_comes_first_and_hosts_are_counted(data: dict[str, Any]) -> None:
    frontend, *others = data["units"]
    assert [unit["answer"] for unit in data["units"]] == ["leak", "no-leak", "cannot-tell"]
    assert (frontend["unit"], frontend["leaking"], len(frontend["hosts"])) == ("frontend.service", 3, 9)
    assert [host["answer"] for host in frontend["hosts"]] == ["leak"] * 3 + ["no-leak"] * 6
    assert abs(frontend["growth"] - 64 * MIB) < 15 * MIB
    mean = sum(host["growth"] for host in frontend["hosts"][:3]) / 3
    assert abs(frontend["growth"] - mean) <= 1
    assert frontend["error"] < min(host["error"] for host in frontend["hosts"][:3])
    assert all(unit["leaking"] == 0 for unit in others)


def test_the_same_suspect_on_several_hosts_is_one_with_the_version_that_brought_it(data: dict[str, Any]) -> None:
    suspect = data["units"][0]["suspects"][0]
    assert suspect["short"].startswith("inflate ← java.util.zip.Inflater.inflateBytesBytes ← ")
    assert (len(suspect["hosts"]), suspect["label"]) == (3, "4.2.0")
    assert suspect["hints"][0]["title"]


def test_since_is_when_the_suspect_began_to_grow(data: dict[str, Any]) -> None:
    restart = fleets.START + 8 * fleets.STEP
    frontend = data["units"][0]
    assert abs(frontend["since"] - restart) <= 2 * fleets.STEP
    assert not frontend["since_ever"]


def test_a_leak_that_was_there_when_the_watch_began_has_no_time_of_its_own() -> None:
    unit = fleets.small_leak()["units"][0]
    assert unit["since_ever"] and unit["hosts"][0]["suspects"][0]["since_ever"]
    assert ", ever since the watch began, Tue 2026-11-17 " in ticket.sentence(unit)


@pytest.mark.parametrize(("rates", "first"), [((5.0, 5.0), 0), ((5.0, 0.0, 5.0, 5.0), 2)])
def test_a_restart_does_not_begin_what_the_process_before_it_had(rates: tuple[float, ...], first: int) -> None:
    found = Fleet()
    processes = []
    for run, rate in enumerate(rates):
        series: fleets.Dumps = []
        for number in range(12):
            stacks: fleets.Stacks = {("keep", "serve", "main"): rate * number * MIB, ("load", "main"): 30.0 * MIB}
            time = fleets.START + (12 * run + number) * fleets.STEP
            series.append((time, stacks, fleets.facts(30.0 * MIB, 0, f"2.{run}", False, pid=61 + run)))
        processes.append(fleets.process("web.service", "app1", f"{61 + run}-0000beef", series))
    fleets.observe(found, "web.service", "app1", processes)
    unit = found.data()["units"][0]
    assert (unit["since"], unit["since_ever"]) == (fleets.START + 12 * first * fleets.STEP, first == 0)


def test_a_suspect_is_looked_for_in_the_stacks_of_its_own_host_only(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[tuple[str, ...]] = []
    covers = Suspect.covers

    def seen(suspect: Suspect, frames: Sequence[Frame], key: Key | None = None) -> bool:
        looked.append(tuple(frame.label for frame in frames))
        return covers(suspect, frames, key)

    monkeypatch.setattr(Suspect, "covers", seen)
    found = Fleet()
    for host in ("app1", "app2", "app3"):
        series: fleets.Dumps = [
            (
                fleets.START + number * fleets.STEP,
                {("keep", "serve", "main"): 5.0 * number * MIB, (f"load_{host}", "main"): 30.0 * MIB},
                fleets.facts(30.0 * MIB, 0, "2", False),
            )
            for number in range(12)
        ]
        del looked[:]
        fleets.observe(found, "web.service", host, [fleets.process("web.service", host, "61-0000beef", series)])
        assert {stack[0] for stack in looked} == {"keep", f"load_{host}"}
    unit = found.data()["units"][0]
    assert [len(host["suspects"][0]["nodes"]) for host in unit["hosts"]] == [1, 1, 1]


def test_points_dumps_and_suspects_fit_together(data: dict[str, Any]) -> None:
    for unit in data["units"]:
        nodes = len(unit["tree"]["frame"])
        for host in unit["hosts"]:
            points = host["points"]
            assert len({len(column) for column in points.values()}) == 1
            shown = [dump for dump in points["dump"] if dump is not None]
            assert shown == list(range(len(host["dumps"])))
            for point, dump in enumerate(points["dump"]):
                held = host["dumps"][dump]
                assert held["time"] == points["time"][point]
                assert abs(sum(held["bytes"]) - points["live"][point]) <= len(held["bytes"])
                assert max(accumulate(held["nodes"])) < nodes
            for suspect in host["suspects"]:
                held = host["dumps"][-1]
                size = dict(zip(accumulate(held["nodes"]), held["bytes"], strict=True))
                live = sum(size.get(node, 0) for node in accumulate(suspect["nodes"]))
                assert abs(live - suspect["live"]) <= 2


def test_of_profiles_sampled_nobody_knows_how_no_error_is_told() -> None:
    """One such process must cost no other its report."""
    unit = fleets.sampled_somehow()["units"][0]
    host = unit["hosts"][0]
    errors = {part["name"]: part["error"] for part in host["dumps"][-1]["memory"]["parts"]}
    assert (unit["answer"], unit["interval"], host["points"]["error"]) == ("cannot-tell", None, [None, None])
    assert errors["Live, sampled"] is None and errors["Mapped files"] == 0
    json.dumps(unit, allow_nan=False)


def test_threads_of_the_newest_dump_hold_their_part_of_it(data: dict[str, Any]) -> None:
    host = data["units"][0]["hosts"][0]
    assert [(one["name"], one["count"]) for one in host["threads"][:2]] == [("http-worker", 16), ("C2 CompilerThre", 2)]
    live = dict(zip(accumulate(host["dumps"][-1]["nodes"]), host["dumps"][-1]["bytes"], strict=True))
    for thread in host["threads"]:
        parts = zip(accumulate(thread["nodes"]), thread["bytes"], strict=True)
        assert all(0 < size <= live[node] + 1 for node, size in parts)
        assert abs(sum(thread["bytes"]) - thread["live"]) <= len(thread["bytes"])


def test_of_many_dumps_the_curve_has_all_and_the_stacks_of_some(data: dict[str, Any]) -> None:
    many = fleets.fleet(hosts=1, leaking=0, dumps=90)
    host = next(unit for unit in many["units"] if unit["unit"] == "edge-proxy.service")["hosts"][0]
    assert len(host["points"]["time"]) == 90
    assert len(host["dumps"]) == 48
    assert sum(dump is not None for dump in host["points"]["dump"]) == 48


def test_of_many_hosts_fewer_dumps_have_stacks_and_those_of_calm_ones_leave_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fleet, "_MOST_OF_ALL", 70)
    for unit in fleets.fleet(hosts=20, leaking=3, dumps=24)["units"]:
        for host in unit["hosts"]:
            dumps, points = host["dumps"], host["points"]
            for number, process in enumerate(host["processes"]):
                own = [at for at, of in enumerate(points["process"]) if of == number]
                kept = [dump["time"] for dump in dumps if dump["process"] == number]
                most = {"leak": 10, "no-leak": 2, "cannot-tell": 10}[host["answer"]]
                assert len(kept) == min(most, len(own)), process
                assert (kept[0], kept[-1]) == (points["time"][own[0]], points["time"][own[-1]])
            assert bool(host["threads"]) == (host["answer"] == "leak")
            shown = [dump for dump in points["dump"] if dump is not None]
            assert shown == list(range(len(dumps)))
            assert [points["time"][at] for at, dump in enumerate(points["dump"]) if dump is not None] == [
                dump["time"] for dump in dumps
            ]


def test_units_come_by_what_they_lose_together() -> None:
    found = Fleet()
    rng = random.Random(5)
    for number in range(3):
        fleets.frontend(found, f"app{number}", 60.0, 24, rng)
    for unit, host, rate in (("index.service", "db1", 100.0), ("large.service", "db2", 400.0)):
        series: fleets.Dumps = [
            (
                fleets.START + at * fleets.STEP,
                {("grow", "main"): (5 + rate * at / 12) * MIB},
                fleets.facts(1, 0, "1", False),
            )
            for at in range(24)
        ]
        fleets.observe(found, unit, host, [fleets.process(unit, host, "1-00000001", series)])
    assert [unit["unit"] for unit in found.data()["units"]] == ["large.service", "frontend.service", "index.service"]


def test_other_programs_get_everything_but_stacks(data: dict[str, Any]) -> None:
    unit = json.loads(json.dumps(without_stacks(data)))["units"][0]
    assert "tree" not in unit
    assert unit["hosts"][0]["suspects"][0]["path"][0] == "inflate"
    assert "nodes" not in unit["hosts"][0]["dumps"][0]
    assert unit["hosts"][0]["dumps"][0]["memory"]["parts"][0]["name"] == "Live, sampled"


def test_the_page_has_each_text_on_memory_once(data: dict[str, Any]) -> None:
    """Else they are four fifths of the page of a large fleet."""
    html = page.render(data)
    texts = {
        part["meaning"]
        for unit in data["units"]
        for host in unit["hosts"]
        for dump in host["dumps"]
        if dump["memory"]
        for part in dump["memory"]["parts"]
        if part["bytes"]
    }
    written = html[html.index('id="data"') :].partition("</script>")[0]
    assert [text for text in texts if written.count(json.dumps(text)) != 1] == []
    assert "executables, libraries, files mapped into memory" in texts
    dumps = sum(len(host["dumps"]) for unit in data["units"] for host in unit["hosts"])
    assert len(written) < 1000 * dumps


def test_the_ticket_reads_like_one(data: dict[str, Any]) -> None:
    text = ticket.render(data)
    told = " ".join(text.split())
    assert re.search(r"leaks \d+\.\d MiB ± \S+ MiB to \d+\.\d MiB ± \S+ MiB a day on 3 of 9 hosts, since about ", told)
    assert "appeared with version 4.2.0" in text
    assert "edge-proxy.service does not leak (3 hosts)" in text
    assert "mailer.service cannot be judged yet (1 host)" in text
    assert "Java heap" in text


def test_what_is_pasted_from_the_ticket_is_whole() -> None:
    name, host = "payment-gateway-for-northern-europe.service", "app-1.north-europe-1b.example-corp.internal"
    step = f"""find it: ansible-playbook -i production/hosts.yml {"x" * 60} -e '{{"offheap_units": ["{name}"]}}'"""
    finding = {"unit": name, "host": host, "verdict": "native-growth", "reason": "RSS grows", "next_step": step}
    lines = ticket.render({**Fleet().data(), "triage": [finding]}).splitlines()
    assert f"    Next: {step}" in lines
    assert any(name in line for line in lines) and any(host in line for line in lines)


def test_no_unit_at_all() -> None:
    data = Fleet().data()
    assert data["units"] == []
    assert "Native memory report" in ticket.render(data)
    assert "<main" in page.render(data)


def test_names_cannot_end_the_element_they_stand_in() -> None:
    html = page.render(fleets.hostile())
    assert html.count("</script>") == 2
    assert html.count("<img") == 0
