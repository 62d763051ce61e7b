# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from ansible.errors import AnsibleActionFail

from ansible_collections.offheap.profiler.plugins.action import archive_prune, leak_assert
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.archive import Archive
from ansible_collections.offheap.profiler.tests.unit.fakes.actions import run_action
from ansible_collections.offheap.profiler.tests.unit.strategies import leaky_archives

MIB_A_DAY = 720  # what app1 leaks


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    leaky_archives.fill(tmp_path / "archive", tmp_path / "scratch")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _run(plugin: Any = leak_assert, check: bool = False, **arguments: Any) -> dict[str, Any]:
    return run_action(plugin, check, archive="archive", **arguments)


@pytest.mark.usefixtures("here")
def test_any_leak_fails_where_nothing_is_said() -> None:
    result = _run()
    assert result["failed"]
    assert result["msg"].startswith("frontend.service: inflate ← [jit] grows by 7")
    (leak,) = result["leaks"]
    assert abs(leak["growth_bytes_per_day"] - MIB_A_DAY * 2**20) < leak["growth_error"]
    assert (list(leak["hosts"]), leak["watched"], result["judged"]) == (["app1"], 2, 2)
    assert not _run(hosts=["app2"]).get("failed")


@pytest.mark.usefixtures("here")
def test_a_limit_is_compared_with_what_is_sure() -> None:
    assert not _run(max_growth="700M").get("failed"), "it may be as little as that"
    assert not _run(max_growth="2G").get("failed")
    result = _run(max_growth="100M")
    assert "more than 100.0 MiB/day" in result["msg"] and result["failed"]


def test_a_baseline_knows_leaks(here: Path) -> None:
    assert not _run(record="known.json", max_growth="2G", check=True).get("failed")
    assert not (here / "known.json").exists()
    assert _run(record="known.json", max_growth="2G")["changed"]
    assert not _run(record="known.json", max_growth="2G")["changed"]
    assert not _run(baseline="known.json").get("failed")
    assert _run(baseline="known.json", max_growth="100M")["failed"], "a known one may still be too fast"
    (here / "none.json").write_text(json.dumps({"format": 1, "leaks": [{"unit": "a.service", "path": ["inflate"]}]}))
    result = _run(baseline="none.json", max_growth="2G")
    assert result["failed"] and result["msg"].endswith("is not in the baseline")


def test_a_job_that_is_run_again_does_not_pass_by_what_it_has_failed_of(here: Path) -> None:
    none = json.dumps({"format": 1, "leaks": []})
    (here / "known.json").write_text(none)
    for _again in range(2):
        assert _run(baseline="known.json", record="known.json")["failed"]
        assert (here / "known.json").read_text() == none
    assert _run(record="known.json")["failed"]
    known = (here / "known.json").read_text()
    assert _run(baseline="known.json", record="known.json", min_span=100000)["failed"], "nobody can tell"
    assert (here / "known.json").read_text() == known != none
    assert not _run(baseline="known.json", record="known.json").get("failed")


@pytest.mark.parametrize("text", ["", "[]", '{"format": 2, "leaks": []}', '{"format": 1, "leaks": [1]}'])
def test_what_is_no_baseline(here: Path, text: str) -> None:
    (here / "known.json").write_text(text)
    with pytest.raises(AnsibleActionFail, match=r"known\.json is no"):
        _run(baseline="known.json")


@pytest.mark.usefixtures("here")
def test_nothing_judged_is_no_success() -> None:
    result = _run(min_span=100000)
    assert result["failed"] and "cannot tell whether anything leaks: the dumps of process" in result["msg"]
    assert "no captures" in _run(units=["other"])["msg"]
    assert not _run(units=["other"], require_verdict=False).get("failed")


def test_a_pipeline_is_shown_which_unit_leaks(here: Path) -> None:
    def cases() -> dict[str, list[tuple[str, str | None]]]:
        (suite,) = ElementTree.parse(here / "leaks.xml").getroot()
        found = {case.get("name") or "": [(one.tag, one.get("message")) for one in case] for case in suite}
        failed = sum(("failure", why) == (kind, why) for said in found.values() for kind, why in said)
        assert (suite.get("tests"), suite.get("failures")) == (str(len(found)), str(failed))
        return found

    assert _run(junit="leaks.xml", check=True)["failed"] and not (here / "leaks.xml").exists()
    result = _run(junit="leaks.xml")
    assert result["changed"] and result["failed"] and not _run(junit="leaks.xml")["changed"]
    assert cases() == {"frontend.service": [("failure", result["offences"][0])]}
    assert not _run(junit="leaks.xml", hosts=["app2"]).get("failed")
    assert cases() == {"frontend.service": []}
    result = _run(junit="leaks.xml", min_span=100000)
    assert cases()["a verdict"] == [("failure", result["msg"])]
    assert cases()["frontend.service"][0][0] == "skipped"


def test_pruning(here: Path) -> None:
    assert not _run(archive_prune)["changed"]
    told = _run(archive_prune, check=True, keep_captures=4)
    assert (told["changed"], len(told["removed"])) == (True, 16)
    result = _run(archive_prune, keep_captures=4)
    assert (result["removed"], result["bytes"]) == (told["removed"], told["bytes"])
    assert len(Archive.open(here / "archive").captures()) == 8
    with pytest.raises(AnsibleActionFail, match="no number"):
        _run(archive_prune, keep_days="nan")
    assert len(Archive.open(here / "archive").captures()) == 8
    assert _run(archive_prune, keep_days=1)["removed"], "they are from 2025"
    assert Archive.open(here / "archive").captures() == []
    with pytest.raises(AnsibleActionFail, match="negative"):
        _run(archive_prune, keep_captures=-1)
