# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

import gzip
import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.base import profile_proto
from ansible_collections.offheap.profiler.plugins.plugin_utils.export import pprof
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.sampling import Measure
from ansible_collections.offheap.profiler.plugins.plugin_utils.publish import pyroscope
from ansible_collections.offheap.profiler.tests.unit.strategies.samples import samples_of


@pytest.mark.parametrize("measure", list(Measure))
def test_the_server_is_told_of_each_number_that_it_gets(measure: Measure) -> None:
    """Older ones store no others."""
    sent: list[Any] = []
    server: Any = SimpleNamespace(post=lambda _path, content: sent.append(content["fields"]))
    capture: Any = SimpleNamespace(
        host="app1", process="1-a", unit="web.service", time=9.0, facts=SimpleNamespace(label=None)
    )
    written = pprof.render(replace(samples_of(), measure=measure))
    pyroscope.push(server, capture, written)
    profile = profile_proto.profile_class().FromString(gzip.decompress(written))
    text = profile.string_table
    told = json.loads(sent[0]["sample_type_config"][1])
    assert {text[kind.type] for kind in profile.sample_type} <= set(told)
    assert {one["units"] for one in told.values()} == {"bytes", "objects"}
