# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zstandard

from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.archive import Archive
from ansible_collections.offheap.profiler.plugins.plugin_utils.columns.series_reader import reading
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks import hints
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.holding import Held, Holding
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.scope import Scope
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.survey import Host, Process, survey
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.verdict import Answer
from ansible_collections.offheap.profiler.plugins.plugin_utils.report import host_report, ticket
from ansible_collections.offheap.profiler.plugins.plugin_utils.report.files import Files
from ansible_collections.offheap.profiler.plugins.plugin_utils.report.fleet import Fleet, Observed
from ansible_collections.offheap.profiler.plugins.plugin_utils.report.host_report import Limits, Report
from ansible_collections.offheap.profiler.tests.unit.plugins.plugin_utils.leaks import test_without_agent
from ansible_collections.offheap.profiler.tests.unit.strategies import leaky_archives

MIB = 1 << 20


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return leaky_archives.fill(tmp_path / "archive", tmp_path / "scratch")


def _reports(
    archive: Archive, limits: Limits | None = None, scope: Scope | None = None
) -> tuple[list[Report], list[str]]:
    warnings: list[str] = []
    found = host_report.reports(archive, scope or Scope(), limits or Limits(), warnings.append, check_mode=False)
    return found, warnings


def test_the_leaking_host_is_told_from_the_healthy_one(archive: Archive) -> None:
    (leaking, healthy), warnings = _reports(archive)
    assert warnings == []
    assert (leaking.host, leaking.verdict.answer, leaking.captures) == ("app1", Answer.LEAK, 12)
    (suspect,) = leaking.suspects
    assert [frame.label for frame in suspect.path] == ["inflate", "[jit]"]
    assert abs(suspect.growth - 2.5 * MIB * 288) < suspect.error
    assert (healthy.host, healthy.verdict.answer, healthy.suspects) == ("app2", Answer.NO_LEAK, [])
    assert set(leaking.files) == set(healthy.files) == {"txt", "folded", "html"}
    assert "Suspect 1" in leaking.files["txt"]
    assert "[jit];inflate 34" in leaking.files["folded"]
    assert '"name":"15:50:00 UTC"' in leaking.files["html"]
    suspected = '"short":"inflate \\u2190 [jit]"'
    assert suspected in leaking.files["html"] and suspected not in healthy.files["html"]
    assert "Process          12 /usr/bin/java" in leaking.files["txt"]


def test_the_table_says_where_the_resident_memory_is(archive: Archive, tmp_path: Path) -> None:
    content = leaky_archives.dump_text(70, 30)
    memory = {"rss": 300 * MIB, "allocated": 60 * MIB, "active": 70 * MIB, "metadata": MIB, "resident": 80 * MIB}
    facts = leaky_archives.facts(content, host="app1", sequence=50, time=leaky_archives.START + 3700)
    (tmp_path / "dump").write_bytes(content)
    archive.add_capture(replace(facts, agent={"memory": memory}), tmp_path / "dump")
    text = _reports(archive)[0][0].files["txt"]
    assert "Resident         RSS                 300.0 MiB 100.0%\n" in text
    assert re.search(r"\n {17}Fragmentation +10.0 MiB   3.3%  unused room in pages in use\n", text)
    assert re.search(r"\n {17}Unexplained +220.0 MiB  73.3%", text)


def test_growth_that_the_samples_missed_is_told_from_the_first_dump_on(tmp_path: Path) -> None:
    archive, content = Archive.create(tmp_path / "archive"), leaky_archives.dump_text(20, 30)
    (tmp_path / "dump").write_bytes(content)
    for number in range(12):
        time = leaky_archives.START + 300 * number
        memory = {"rss": 900 * MIB, "allocated": (30 + 10 * number) * MIB, "active": 200 * MIB}
        facts = replace(
            leaky_archives.facts(content, host="app1", sequence=number, time=time), agent={"memory": memory}
        )
        archive.add_capture(facts, tmp_path / "dump")
    (report,), _warnings = _reports(archive)
    assert report.verdict.answer is Answer.CANNOT_TELL
    assert report.verdict.reason.startswith("what malloc has given out grows by 2.8 GiB/day")
    assert "not explained by the samples: 110.0 MiB more than in the first dump" in report.files["txt"]


def test_a_healthy_process_that_maps_most_of_its_memory_is_told_so(archive: Archive, tmp_path: Path) -> None:
    content = leaky_archives.dump_text(20, 30)
    facts = leaky_archives.facts(content, host="app2", sequence=50, time=leaky_archives.START + 3700)
    (tmp_path / "dump").write_bytes(content)
    archive.add_capture(replace(facts, agent={"memory": {"rss": 300 * MIB}}), tmp_path / "dump")
    healthy = _reports(archive, Limits(hints=hints.load()))[0][1]
    assert healthy.verdict.answer is Answer.NO_LEAK
    assert re.search(r"\nPerhaps +memory that the program or its runtime maps by itself", healthy.files["txt"])


def test_known_causes_and_what_is_no_leak_are_named(tmp_path: Path) -> None:
    (tmp_path / "own.yml").write_text("- {id: shop, title: the shop, match: [inflate], check: ask them}")
    archive = leaky_archives.fill(tmp_path / "archive", tmp_path / "scratch")
    (leaking, healthy), _warnings = _reports(archive, Limits(hints=hints.load([tmp_path / "own.yml"])))
    assert [hint.id for hint in leaking.hints[0]] == ["shop", "zlib"]
    assert re.search(r"Perhaps +the shop\?\n +ask them\n", leaking.files["txt"])
    assert '"hints":[{"title":"the shop","check":"ask them","link":""}' in leaking.files["html"]
    assert "Perhaps" not in healthy.files["txt"], "no numbers came with the dumps"
    lines = [line for _answer, line in host_report.summary([(leaking, None)])]
    assert "        perhaps the shop" in lines


def test_a_cause_of_some_releases_is_told_by_what_the_process_ran(archive: Archive, tmp_path: Path) -> None:
    (tmp_path / "own.yml").write_text(
        "- {id: none, title: a, match: [inflate], check: c, of: J, releases: ['9'], seen: 'nowhere-([0-9])'}\n"
        "- {id: here, title: a, match: [inflate], check: c, of: L, releases: ['1'], seen: 'libz\\.so\\.([0-9.]+)'}\n"
        "- {id: other, title: a, match: [inflate], check: c, of: L, releases: ['2'], seen: 'libz\\.so\\.([0-9.]+)'}\n"
    )
    leaking = _reports(archive, Limits(hints=hints.load([tmp_path / "own.yml"])))[0][0]
    told = {hint.id: hint.title for hint in leaking.hints[0]}
    assert "other" not in told
    assert told["none"] == "a, if this is J 9" and told["here"].startswith("a (L 1.")


def test_a_unit_s_processes_are_named_with_and_without_an_agent() -> None:
    unasked: Any = None
    found = test_without_agent.captures(4, lambda minute: 182 + minute)
    now = test_without_agent.judged(found, test_without_agent.no_leak())
    before = replace(now, process="6-aa", start=-900.0, end=-600.0, beside=None)
    first, second = (Process(one, found, unasked, unasked) for one in (before, now))
    host = Host("web.service", "app1", 20, [first, second], now.verdict)
    ended, profiled, java, other = host_report._processes(host)
    assert ended.endswith("java: profiled, and has ended") and profiled.endswith("java: profiled")
    assert (java, other) == (f"9 {test_without_agent.JAVA}: no agent, 191.0 MiB", "8 : no agent, 1.0 MiB")
    alone = replace(second, watched=replace(now, beside=None))
    assert host_report._processes(replace(host, processes=[alone])) == []


def test_the_summary_is_for_people(archive: Archive) -> None:
    found, _warnings = _reports(archive)
    lines = [line for _answer, line in host_report.summary([(found[0], Path("a/app1.html")), (found[1], None)])]
    assert lines[0] == "frontend.service"
    assert lines[1].startswith("  app1  Leak of 7")
    assert lines[2].endswith("MiB/day  inflate ← [jit]")
    assert lines[3:6] == [
        "        one code path grows steadily over 55 min and 12 dumps",
        "        a/app1.html",
        "  app2  No leak",
    ]


@pytest.mark.parametrize("answer", [Answer.LEAK, Answer.BURSTS])
def test_who_holds_a_suspect_is_said_in_the_table_the_summary_and_the_ticket(archive: Archive, answer: Answer) -> None:
    part = Held("global", "kept by global cache of app", 200, 1.0, 0.98, 1.0)
    held = Holding(200, (part,), "Session", "Look who should remove them from there, and when.", 1.0)
    limits, fleet = Limits(), Fleet()
    with reading(archive, pytest.fail, check_mode=True) as reader:
        host = next(survey(archive, reader, Scope(), pytest.fail))
        suspects = [replace(one, holding=held, freed=0.98) for one in host.verdict.suspects]
        told = replace(host, verdict=replace(host.verdict, answer=answer, suspects=suspects))
        report, newest = host_report._report(limits, told, reader)
        fleet.add(Observed(told, report.headline, report.suspects, report.hints, report.sources, newest))
    sentence = "100 % (98 to 100 %) kept by global cache of app (200 samples of Session)"
    assert f"Held             {sentence}" in report.files["txt"] and held.next_step in report.files["txt"]
    assert any(sentence in line for _answer, line in host_report.summary([(report, None)]))
    freed = "98 % of what it allocated meanwhile was freed"
    assert freed in report.files["txt"] and any(
        freed in line for _answer, line in host_report.summary([(report, None)])
    )
    data = fleet.data()
    for whole in (data["units"][0], data["units"][0]["hosts"][0]):
        assert whole["suspects"][0]["held"]["parts"][0]["kind"] == "global"
    assert f"{sentence}. {held.next_step}" in " ".join(ticket.render(data).split())


def test_many_healthy_hosts_share_a_line(archive: Archive) -> None:
    (leaking, healthy), _warnings = _reports(archive)
    many = [(replace(healthy, host=f"web{number}"), None) for number in range(9)]
    lines = [line for _answer, line in host_report.summary([(leaking, None), *many])]
    assert [line for line in lines if "No leak" in line] == ["  9 hosts  No leak: web0, web1, web2 and 6 more"]
    few = [line for _answer, line in host_report.summary([(leaking, None), *many[:8]])]
    assert sum("No leak" in line for line in few) == 8


def test_a_list_that_is_longer_than_a_screen_ends_with_the_leak(archive: Archive) -> None:
    (leaking, _healthy), _warnings = _reports(archive)
    told = [(Answer.NO_LEAK, "db.service does not leak (3 hosts)"), (Answer.LEAK, "web.service leaks 1 MiB a day")]
    many = Files([(replace(leaking, host=f"web{number}"), {}) for number in range(20)], told, {"page": "report.html"})
    assert many.lines()[-3:] == [*told, (None, "full report: report.html")]
    few = Files([(leaking, {})], told, {"page": "report.html"})
    assert not set(told) & set(few.lines())


@pytest.mark.parametrize(
    ("scope", "hosts"),
    [
        (Scope(hosts=["app2"]), ["app2"]),
        (Scope(units=["frontend.service"]), ["app1", "app2"]),
        (Scope(units=["other.service"]), []),
    ],
)
def test_units_and_hosts_can_be_chosen(archive: Archive, scope: Scope, hosts: list[str]) -> None:
    assert [report.host for report in _reports(archive, scope=scope)[0]] == hosts


def test_unreadable_captures_are_named_and_the_rest_goes_on(archive: Archive, tmp_path: Path) -> None:
    paths = [capture.path for capture in archive.captures(host="app1")]
    content = zstandard.decompress((paths[3] / "dump.heap.zst").read_bytes())
    (paths[3] / "dump.heap.zst").write_bytes(zstandard.compress(content[:-10]))
    (paths[4] / "dump.heap.zst").unlink()
    scratch, time = tmp_path / "scratch", leaky_archives.START
    leaky_archives.add(archive, scratch, content.replace(b"v2", b"v3", 1), host="app1", sequence=97, time=time + 1)
    leaky_archives.add(archive, scratch, content[:100], host="app1", sequence=98, time=time + 600)
    leaky_archives.add(archive, scratch, content, host="app1", sequence=99, time=1e200)
    (leaking, _healthy), warnings = _reports(archive)
    assert leaking.verdict.answer is Answer.LEAK
    assert (leaking.captures, leaking.verdict.points) == (15, 10)
    text = "\n".join(warnings)
    for reason in (
        "its checksum has changed since it was collected",
        "No such file or directory",
        "line 1: expected the header 'heap_v2/<sample interval>', found 'heap_v3/524288'",
        "expected 'MAPPED_LIBRARIES:' before the end of the file (the dump is cut off)",
        "claims an impossible time",
    ):
        assert text.count(reason) == 1
    assert text.count("a capture of frontend.service on app1 was left out") == len(warnings) == 5


def test_a_damaged_archive_entry_costs_itself_alone(archive: Archive) -> None:
    (archive.captures(host="app1")[0].path / "capture.json").write_text("{")
    (leaking, healthy), (warning,) = _reports(archive)
    assert (leaking.host, leaking.captures, leaking.verdict.answer) == ("app1", 11, Answer.LEAK)
    assert healthy.host == "app2"
    assert "is damaged" in warning


def test_a_host_without_one_readable_dump_has_a_verdict_and_no_files(archive: Archive) -> None:
    for capture in archive.captures(host="app1"):
        capture.dump.write_bytes(b"")
    (nothing, _healthy), warnings = _reports(archive)
    assert (nothing.verdict.answer, nothing.files) == (Answer.CANNOT_TELL, {})
    assert len(warnings) == 12


def test_a_single_dump_has_no_verdict_but_all_files(tmp_path: Path) -> None:
    archive = leaky_archives.fill(tmp_path / "archive", tmp_path / "scratch", dumps=1)
    (first, _second), _warnings = _reports(archive)
    assert first.verdict.answer is Answer.CANNOT_TELL
    assert '"dumps":[{"time":0,"name":"now"' in first.files["html"]


def test_the_same_archive_gives_the_same_files(archive: Archive) -> None:
    assert [report.files for report in _reports(archive)[0]] == [report.files for report in _reports(archive)[0]]


def test_of_many_dumps_as_many_are_read_as_pay(tmp_path: Path) -> None:
    archive = leaky_archives.fill(tmp_path / "archive", tmp_path / "scratch", dumps=110, step=30)
    (leaking, _healthy), _warnings = _reports(archive)
    assert (leaking.captures, leaking.verdict.points) == (110, 100)
    assert "110, 100 read of this process, over 54 min" in leaking.files["txt"]
