# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What the agent says of the files that a process has mapped."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from ansible_collections.offheap.profiler.plugins.module_utils.formats import sidecar
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.samples import located
from ansible_collections.offheap.profiler.plugins.plugin_utils.readers import heap_v2
from ansible_collections.offheap.profiler.tests.agent.conftest import (
    COMPILER,
    PROGRAMS,
    compiled,
    service_program,
)
from ansible_collections.offheap.profiler.tests.agent.service import Service


def test_code_at_the_place_of_other_code_names_nothing(start: Callable[..., Service], tmp_path: Path) -> None:
    """The stacks of a plugin that was closed have addresses where another one lies now."""
    built = compiled("libplugin.so", [PROGRAMS / "plugin.c"], "-O2", "-shared", "-fPIC", compiler=COMPILER)
    plugins = [Path(shutil.copy(built, tmp_path / name)) for name in ("libparse.so", "librender.so")]
    service = start(service_program("swap"), *map(str, plugins))
    stdout = service.process.stdout
    assert stdout is not None
    first, second = (int(stdout.readline(), 16) for _plugin in plugins)
    assert first == second, "the loader has put the second elsewhere: this tries nothing"
    dump = service.ask("dump")["path"]
    reused = [sidecar.range_of(one) for one in json.loads(Path(f"{dump}.json").read_text())["reused"]]
    assert any(begin <= first < end for begin, end in reused)
    records = heap_v2.parse(Path(dump).read_bytes(), dump)

    def named(ranges: list[tuple[int, int]]) -> set[str]:
        return {Path(path).name for path, _build_id in located(records, {}, ranges).locations.images}

    assert "librender.so" in named([]), "it would be accused of what the other leaks"
    assert not {"librender.so", "libparse.so"} & named(reused)
    assert "swap" in named(reused)
