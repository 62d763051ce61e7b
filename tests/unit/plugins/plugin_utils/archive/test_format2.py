# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""An archive of format 2, written by the version that had it: read, reported on, and continued."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.formats.capture_facts import CaptureFacts, SamplingFacts
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive import archive as archive_module
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.archive import Archive, ArchiveError
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.remote import Remote
from ansible_collections.offheap.profiler.plugins.plugin_utils.base import durable
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.scope import Scope
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.verdict import Answer
from ansible_collections.offheap.profiler.plugins.plugin_utils.report.host_report import Limits, reports
from ansible_collections.offheap.profiler.tests.unit.strategies import leaky_archives

FIXTURE = Path(__file__).with_name("fixtures") / "format2"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FIXTURE, tmp_path / "archive"))


def _format(root: Path) -> object:
    return json.loads((root / "archive.json").read_bytes())


def _continue(archive: Archive, scratch: Path) -> Path:
    content = leaky_archives.dump_text(130, 30)
    return leaky_archives.add(
        archive, scratch, content, host="app1", sequence=6, time=leaky_archives.START + 6 * 3600.0
    )


def test_it_is_read(root: Path) -> None:
    captures = Archive.open(root).captures()
    assert [capture.sequence for capture in captures] == [0, 2, 3, 4, 5], "one was removed"
    facts = captures[-1].facts
    assert (facts.source, facts.measure, facts.sampling) == ("jemalloc", "live", None)
    assert (facts.label, facts.process.exe, facts.memory["rss"]) == ("2.1", "/usr/bin/java", 300 << 20)
    assert facts.perf_map == {"source": "process"} and captures[-1].perf_map is not None
    assert leaky_archives.dump_of(captures[0]).startswith(b"heap_v2/524288\n")
    assert _format(root) == {"format": 2}, "reading changes nothing"


def test_it_is_reported_on(root: Path) -> None:
    archive = Archive.open(root)
    warnings: list[str] = []
    (report,) = reports(archive, Scope(), Limits(), warnings.append, check_mode=False)
    assert (report.host, report.verdict.answer) == ("app1", Answer.LEAK)
    assert not [warning for warning in warnings if "left out" in warning]


def test_the_first_new_capture_makes_it_one_of_format_3(root: Path, tmp_path: Path) -> None:
    archive = Archive.open(root)
    removed = archive.captures()[1]
    archive.remove_capture(removed)
    assert _format(root) == {"format": 2}, "a reader of format 2 knows what a removed capture is"
    place = _continue(archive, tmp_path / "scratch")
    assert _format(root) == {"format": 3}
    assert json.loads((place / "capture.json").read_bytes())["format"] == 2
    found = Archive.open(root).captures()
    assert [capture.facts.sampling for capture in found] == [None] * 4 + [SamplingFacts("poisson", 1 << 19)]
    assert json.loads((found[0].path / "capture.json").read_bytes())["format"] == 1, "what is there never changes"


def test_the_format_is_on_the_disk_before_the_capture(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(_source: Path, _target: Path) -> bool:
        assert _format(root) == {"format": 3}
        raise OSError("killed")

    steps: list[Path] = []
    real = durable.sync

    def sync(path: Path) -> None:
        steps.append(path)
        real(path)

    monkeypatch.setattr(archive_module, "sync", sync)
    monkeypatch.setattr(archive_module, "rename_directory", killed)
    with pytest.raises(ArchiveError, match="killed"):
        _continue(Archive.open(root), tmp_path / "scratch")
    assert steps[0] == root, "the new archive.json"
    assert len(Archive.open(root).captures()) == 5


def test_elsewhere_it_is_read_and_continued(root: Path, tmp_path: Path) -> None:
    far = tmp_path / "far"
    shutil.copytree(FIXTURE, far)
    near = Archive.create(tmp_path / "near")
    warnings: list[str] = []
    assert Remote(f"file://{far}", {}).pull(near, warnings.append).captures == 5
    assert [capture.facts for capture in near.captures()] == [c.facts for c in Archive.open(root).captures()]
    assert not warnings and _format(far) == {"format": 2}
    assert Remote(f"file://{far}", {}).push(near, lambda _capture, _aside: {}, pytest.fail).captures == 0
    assert _format(far) == {"format": 2}
    _continue(near, tmp_path / "scratch")
    assert Remote(f"file://{far}", {}).push(near, lambda _capture, _aside: {}, pytest.fail).captures == 1
    assert _format(far) == {"format": 3}
    assert isinstance(Archive.open(far).captures()[-1].facts, CaptureFacts)
