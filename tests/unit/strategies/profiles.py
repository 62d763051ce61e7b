# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Samples without a dump: by hand, and any."""

from __future__ import annotations

import re
from array import array

from hypothesis import strategies as st

from ansible_collections.offheap.profiler.plugins.plugin_utils.model import samples
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.frame import Frame, Kind
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.raw import CountColumns, Counts, Records
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.samples import (
    ACCUM_BYTES,
    ACCUM_OBJECTS,
    BYTES,
    OBJECTS,
    Samples,
)
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.sampling import Measure, Sampling, Scheme

INTERVAL = 1 << 19
_WITH_LINE = re.compile(r"(\w+) at (\S+):([0-9]+)")


def profile(stacks: dict[tuple[str, ...], float], size: int = 4096) -> Samples:
    """Samples with these stacks (leaf first) and their live bytes, in objects of ``size`` bytes.

    ``[jit]`` is code made at run time, ``java:name`` a Java method, ``module+0x10`` a place without a symbol,
    ``name at file.c:12`` a function with its line, anything else a function.
    """
    found = samples.named(samples.located(_records(list(stacks)), {}), lambda _locations: [])
    for objects, row in ((OBJECTS, BYTES), (ACCUM_OBJECTS, ACCUM_BYTES)):
        found.values[row] = list(stacks.values())
        found.values[objects] = found.values[row] / size
    found.variance[:] = samples.variances(found.values, found.sampling)
    return found


def _records(stacks: list[tuple[str, ...]]) -> Records:
    """What a reader would say of a file that names its code itself, without numbers."""
    places: dict[str, int] = {}
    stack_places = array("I", [places.setdefault(name, len(places)) for stack in stacks for name in stack])
    ends = array("Q")
    for stack in stacks:
        ends.append((ends[-1] if ends else 0) + len(stack))
    counts = CountColumns()
    for _stack in stacks:
        counts.append(b"0", b"0", b"0", b"0")
    return Records(
        file="by hand",
        measure=Measure.LIVE,
        sampling=Sampling(Scheme.POISSON, INTERVAL),
        total=Counts(0, 0, 0, 0),
        threads=[],
        addresses=array("Q"),
        stack_places=stack_places,
        stack_ends=ends,
        counts=counts,
        thread_stack=array("I"),
        thread_uid=array("Q"),
        thread_counts=CountColumns(),
        mappings=[],
        names=[_frame(name) for name in places],
    )


def _frame(name: str) -> Frame:
    if name == "[jit]":
        return Frame("", "", Kind.JIT)
    if name.startswith("java:"):
        return Frame(name[5:], "[java]", Kind.JAVA)
    if known := _WITH_LINE.fullmatch(name):
        return Frame(known[1], "app", file=known[2], line=int(known[3]))
    module, plus, offset = name.partition("+0x")
    return Frame("", module, Kind.NATIVE, int(offset, 16)) if plus else Frame(name, "app")


def profiles() -> st.SearchStrategy[Samples]:
    """Any samples; names are whatever the symbol reader lets through, which is any printable text."""
    names = st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), min_size=1, max_size=12).filter(
        str.isprintable
    )
    special = st.sampled_from(["</script>", "<!--", "a;b", "100%", "&amp;", "'\"", "[jit]", "libz.so+0x10"])
    stacks = st.lists(names | special, max_size=6).map(tuple)
    return st.dictionaries(stacks, st.floats(0, 1e12), max_size=8).map(profile)
