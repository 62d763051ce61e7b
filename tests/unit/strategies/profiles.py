# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Profiles without a dump: by hand, and any."""

from __future__ import annotations

from array import array

from hypothesis import strategies as st

from ansible_collections.offheap.profiler.plugins.plugin_utils.model.profile import Frame, Kind, Profile

INTERVAL = 1 << 19


def profile(stacks: dict[tuple[str, ...], float], size: int = 4096) -> Profile:
    """A profile with these stacks (leaf first) and their live bytes, in objects of ``size`` bytes.

    ``[jit]`` is code made at run time, ``java:name`` a Java method, ``module+0x10`` a place without a symbol, anything
    else a function.
    """
    frames: dict[Frame, int] = {}
    keys = [tuple([frames.setdefault(_frame(name), len(frames)) for name in stack]) for stack in stacks]
    sizes = array("d", list(stacks.values()))
    objects = array("d", [value / size for value in sizes])
    return Profile(INTERVAL, list(frames), keys, objects, sizes, array("d", objects), array("d", sizes))


def _frame(name: str) -> Frame:
    if name == "[jit]":
        return Frame("", "", Kind.JIT)
    if name.startswith("java:"):
        return Frame(name[5:], "[java]", Kind.JAVA)
    module, plus, offset = name.partition("+0x")
    return Frame("", module, Kind.NATIVE, int(offset, 16)) if plus else Frame(name, "app")


def profiles() -> st.SearchStrategy[Profile]:
    """Any profile; names are whatever the symbol reader lets through, which is any printable text."""
    names = st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), min_size=1, max_size=12).filter(
        str.isprintable
    )
    special = st.sampled_from(["</script>", "<!--", "a;b", "100%", "&amp;", "'\"", "[jit]", "libz.so+0x10"])
    stacks = st.lists(names | special, max_size=6).map(tuple)
    return st.dictionaries(stacks, st.floats(0, 1e12), max_size=8).map(profile)
