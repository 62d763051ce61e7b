# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""heap_analyze and heap_compare as users run them: from the command line, on bare dumps."""

from __future__ import annotations

import gzip
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.offheap.profiler.plugins.action import heap_analyze
from ansible_collections.offheap.profiler.tests.unit.plugins.plugin_utils.readers.test_jeprof import _libjemalloc
from ansible_collections.offheap.profiler.tests.unit.plugins.plugin_utils.views import profiled_programs

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two dumps of one program, from two processes."""
    kind = next(kind for kind in profiled_programs.KINDS if kind.name == "c")
    directory = tmp_path_factory.mktemp("program")
    program, first = profiled_programs.run(kind, directory)
    settings = f"prof:true,lg_prof_sample:13,prof_final:true,prof_prefix:{directory}/q"
    environment = {"LD_PRELOAD": _libjemalloc(), "MALLOC_CONF": settings}
    subprocess.run([program], env=environment, check=True, timeout=60)
    return [first, next(directory.glob("q.*.heap"))]


def ansible(module: str, where: Path, check: bool = False, **arguments: Any) -> dict[str, Any]:
    """Run a module. Returns its result, with its output under ``printed``."""
    command = [str(Path(sys.executable).with_name("ansible")), "localhost", "-o"]
    command += ["-m", f"offheap.profiler.{module}", "-a", json.dumps(arguments), *(["--check"] if check else [])]
    environment = {
        **os.environ,
        "ANSIBLE_COLLECTIONS_PATH": str(ROOT / ".cache" / "collections"),
        "ANSIBLE_HOME": str(where / "home"),
        "ANSIBLE_LOCALHOST_WARNING": "false",
        "ANSIBLE_INVENTORY_UNPARSED_WARNING": "false",
        "ANSIBLE_NOCOLOR": "true",
        "XDG_CACHE_HOME": str(where / "cache"),
        "LC_ALL": "C.UTF-8",
    }
    done = subprocess.run(command, env=environment, cwd=where, capture_output=True, text=True, timeout=120, check=False)
    before, arrow, shown = done.stdout.partition(" => ")
    assert arrow, done.stdout + done.stderr
    result: dict[str, Any] = json.loads(shown)
    return {**result, "printed": before, "failed": "FAILED!" in before}


def test_a_fraction_that_is_no_number_leaves_out_nothing() -> None:
    defaults = {name: option.get("default", "") for name, option in heap_analyze._ARGUMENTS.items()}
    limits = heap_analyze._request({**defaults, "node_fraction": math.nan, "edge_fraction": math.nan}).limits
    assert (limits.node_fraction, limits.edge_fraction) == (0.0, 0.0)


def test_a_bare_dump_is_shown(dumps: list[Path], tmp_path: Path) -> None:
    result = ansible("heap_analyze", tmp_path, src=str(dumps[0]), limit=2)
    assert not result["changed"]
    assert result["rows"][0]["name"] in ("large", "small", "inner")
    assert len(result["rows"]) == 2
    assert result["total"] > result["total_error"] > 0
    assert "Total: " in result["printed"]
    assert list((tmp_path / "cache/offheap/symcaches").iterdir())


@pytest.mark.slow
def test_a_file_is_written_once_and_never_over_another(dumps: list[Path], tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"src": str(dumps[0]), "format": "pprof", "dest": "new/profile.pb.gz"}
    dest = tmp_path / "new" / "profile.pb.gz"
    result = ansible("heap_analyze", tmp_path, check=True, **arguments)
    assert (result["changed"], result["dest"], dest.exists()) == (True, str(dest), False)
    assert not (tmp_path / "cache").exists()
    assert ansible("heap_analyze", tmp_path, **arguments)["changed"]
    assert gzip.decompress(dest.read_bytes())
    assert not ansible("heap_analyze", tmp_path, **arguments)["changed"]
    dest.write_text("mine")
    refused = ansible("heap_analyze", tmp_path, **arguments)
    assert refused["failed"]
    assert "force=true" in refused["msg"]
    assert dest.read_text() == "mine"
    assert ansible("heap_analyze", tmp_path, **arguments, force=True)["changed"]
    assert [path.name for path in dest.parent.iterdir()] == [dest.name]


def test_two_processes_are_compared(dumps: list[Path], tmp_path: Path) -> None:
    result = ansible("heap_compare", tmp_path, before=str(dumps[0]), after=str(dumps[1]), dest="c.json", format="json")
    assert result["comparable"]
    assert result["before"]["build_id"] == result["after"]["build_id"]
    counts = result["counts"]
    # One in twenty unchanged stacks may be flagged; test_compare.py counts them over a hundred runs.
    assert counts["new"] == counts["gone"] == 0, "stacks are compared by name, wherever their code lies"
    assert counts["not_significant"] > 0 and counts["not_significant"] + counts["grown"] + counts["shrunk"] >= 4
    document = json.loads((tmp_path / "c.json").read_text())
    assert document["total"] == result["total"]
    assert len(document["differences"]) == sum(result["counts"].values())


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    (tmp_path / "bad.heap").write_text("no dump")
    result = ansible("heap_analyze", tmp_path, src="bad.heap")
    assert result["failed"]
    assert (
        "bad.heap: is in no known format (it begins with 'no dump'); it should be a profile of jemalloc"
        in result["msg"]
    )
