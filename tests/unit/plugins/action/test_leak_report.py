# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible import context
from ansible.errors import AnsibleActionFail

from ansible_collections.offheap.profiler.plugins.action import leak_report
from ansible_collections.offheap.profiler.plugins.modules import leak_report as documentation
from ansible_collections.offheap.profiler.plugins.plugin_utils.triage import snapshots
from ansible_collections.offheap.profiler.tests.unit.fakes.actions import run_action
from ansible_collections.offheap.profiler.tests.unit.plugins.plugin_utils.triage.test_rules import sample
from ansible_collections.offheap.profiler.tests.unit.strategies import leaky_archives

yaml = pytest.importorskip("yaml")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with an archive."""
    leaky_archives.fill(tmp_path / "archive", tmp_path / "scratch")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _run(check: bool = False, diff: bool = False, **arguments: Any) -> dict[str, Any]:
    return run_action(leak_report, check, diff, **{"show": False, **arguments})


def _files(directory: Path) -> dict[str, int]:
    return {
        str(path.relative_to(directory)): path.stat().st_mtime_ns for path in directory.rglob("*") if path.is_file()
    }


def test_what_triage_says_comes_next_names_the_inventory_of_the_run(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for time in (100, 700):
        snapshots.keep(here / "offheap" / "triage", "app1", [sample(time, malloc_heap=time // 10)])
    monkeypatch.setattr(context, "CLIARGS", {"inventory": ["production/hosts.yml"]})
    _run(archive="archive", dest="report")
    told = (here / "report" / "report.txt").read_text()
    assert "ansible-playbook -i production/hosts.yml offheap.profiler.enable_profiling -l app1 " in told


def test_reports_are_written_and_returned(here: Path) -> None:
    result = _run(archive="archive", dest="report")
    assert result["changed"]
    leaking, healthy = result["reports"]
    assert (leaking["unit"], leaking["host"], leaking["verdict"]) == ("frontend.service", "app1", "leak")
    assert leaking["path"] == ["inflate", "[jit]"]
    assert leaking["suspects"][0]["path"] == leaking["path"]
    assert abs(leaking["growth_bytes_per_day"] - 2.5 * (1 << 20) * 288) < leaking["growth_error"]
    assert leaking["captures"] == 12
    growth = leaking["growth_bytes_per_day"]
    worst = {"unit": "frontend.service", "host": "app1", "path": "inflate < [jit]", "growth_bytes_per_day": growth}
    assert result["found"] == {"leaks": 1, "overflows": 0, "no_leaks": 1, "cannot_tell": 0, "worst": [worst]}
    assert (healthy["verdict"], healthy["path"], healthy["suspects"]) == ("no-leak", [], [])
    whole = {"report.html", "report.json", "report.txt"}
    expected = whole | {
        f"frontend.service/{host}.{end}" for host in ("app1", "app2") for end in ("txt", "folded", "html")
    }
    assert set(_files(here / "report")) == expected
    assert leaking["files"]["flamegraph"] == str(here / "report/frontend.service/app1.html")
    assert "  app1  Leak of 7" in result["summary"][1]
    assert result["summary"][-1] == f"full report: {here}/report/report.html"
    assert result["files"]["page"] == f"{here}/report/report.html"
    unit = json.loads((here / "report/report.json").read_text())["units"][0]
    assert unit["leaking"] == 1
    assert all((here / "report" / path).is_file() for host in unit["hosts"] for path in host["files"].values())
    assert unit["hosts"][0]["files"]["text"] == "frontend.service/app1.txt"
    assert "frontend.service leaks 7" in (here / "report/report.txt").read_text()
    assert "warnings" not in result


def test_a_second_run_changes_nothing(here: Path) -> None:
    _run(archive="archive", dest="report")
    before = _files(here)
    assert not _run(archive="archive", dest="report")["changed"]
    assert _files(here) == before


def test_check_mode_writes_nothing_and_tells_the_same(here: Path) -> None:
    before = _files(here)
    told = _run(check=True, diff=True, archive="archive", dest="report")
    assert told["changed"]
    assert _files(here) == before
    assert f"report written: {here}/report/frontend.service/app1.html" in told["diff"][0]["prepared"]
    done = _run(archive="archive", dest="report")
    assert told["reports"] == done["reports"]
    assert not _run(check=True, archive="archive", dest="report")["changed"]


def test_without_force_what_is_there_stays(here: Path) -> None:
    page = here / "report" / "frontend.service" / "app1.html"
    page.parent.mkdir(parents=True)
    page.write_text("mine")
    assert _run(archive="archive", dest="report", force=False)["changed"]
    assert page.read_text() == "mine"
    assert (page.parent / "app1.txt").exists()
    assert _run(archive="archive", dest="report")["changed"]
    assert page.read_text() != "mine"


def test_a_failed_write_leaves_the_old_report(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = here / "report" / "frontend.service" / "app1.html"
    page.parent.mkdir(parents=True)
    page.write_text("old")

    def fail(*_paths: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(AnsibleActionFail, match="No space left on device"):
        _run(archive="archive", dest="report")
    assert set(_files(here / "report")) == {"frontend.service/app1.html"}
    assert page.read_text() == "old"


def test_unreadable_captures_become_warnings(here: Path) -> None:
    next(here.glob("archive/captures/*/app1/*/000002-*/dump.heap.zst")).write_bytes(b"heap_v3/1\n")
    result = _run(archive="archive", dest="report")
    assert result["reports"][0]["verdict"] == "leak"
    (warning,) = result["warnings"]
    assert "dump.heap.zst is damaged" in warning


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"archive": "nowhere"}, "there is no archive in .*nowhere"),
        ({"archive": "archive", "units": ["a b"]}, "'a b' is not the name of a service unit"),
        ({"archive": "archive", "dest": "archive/archive.json"}, "archive.json.*is a file, not a directory"),
        ({}, "missing required arguments: archive"),
    ],
)
def test_bad_arguments_fail_with_what_is_wrong(here: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(Exception, match=message):
        _run(**arguments)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"units": ["other"]}, "no captures of the unit other.service: it has frontend.service"),
        ({"hosts": ["app7"]}, "no captures of the host app7: it has app1, app2"),
    ],
)
def test_nothing_to_report_on_is_an_error_that_names_what_there_is(
    here: Path, arguments: dict[str, Any], says: str
) -> None:
    with pytest.raises(AnsibleActionFail, match=says):
        _run(archive="archive", dest="report", **arguments)
    assert not (here / "report").exists()


def test_a_name_that_is_wrong_beside_one_that_is_right_is_a_warning(here: Path) -> None:
    result = _run(archive="archive", dest="report", hosts=["app1", "app7"], show=False)
    assert [report["host"] for report in result["reports"]] == ["app1"]
    assert any("no captures of the host app7" in text for text in result["warnings"])


def test_a_damaged_capture_is_left_out_and_told(here: Path) -> None:
    first = sorted(here.glob("archive/captures/*/app1/*/*/capture.json"))[0]
    whole = first.read_text()
    first.write_text("{")
    try:
        result = _run(archive="archive", dest="report", hosts=["app1"], show=False, check=True)
    finally:
        first.write_text(whole)
    (warning,) = result["warnings"]
    assert str(first.parent) in warning and "is damaged" in warning
    assert result["reports"][0]["captures"] == len(list(here.glob("archive/captures/*/app1/*/*"))) - 1


def test_missing_libraries_are_named_at_once(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("numpy", "pydemumble", "jinja2"):
        monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(
        AnsibleActionFail,
        match=r": numpy pydemumble Jinja2\. .* -m pip install -r .*/meta/ee-requirements\.txt Jinja2$",
    ):
        _run(archive="archive", dest="report")


def test_the_summary_is_shown_while_it_runs(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr(leak_report.display, "display", lambda line, color=None: shown.append(line))
    result = _run(archive="archive", dest="report", show=True)
    assert shown == result["summary"]


def test_the_documentation_has_what_is_returned(here: Path) -> None:
    result = _run(archive="archive", dest="report")
    documented = yaml.safe_load(documentation.RETURN)
    assert set(result) - {"changed"} == set(documented)
    contains = documented["reports"]["contains"]
    assert set(result["reports"][0]) == set(contains)
    assert set(result["reports"][0]["suspects"][0]) == set(contains["suspects"]["contains"])
