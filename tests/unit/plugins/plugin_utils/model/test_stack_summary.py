# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.model import stack_summary
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.frame import Frame
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.stack_summary import sources, with_source
from ansible_collections.offheap.profiler.tests.unit.strategies.profiles import profile


@pytest.mark.parametrize(
    ("stack", "line"),
    [
        (
            ("app+0xbdc5", "inflate", "Java_java_util_zip_Inflater_inflateBytesBytes", "[jit]"),
            "inflate ← Java_java_util_zip_Inflater_inflateBytesBytes ← [jit]",
        ),
        (("std::vector<int>::push_back", "shop::add", "main"), "shop::add ← main"),
        (("std::string::append", "libc.so.6+0x10"), "std::string::append ← libc.so.6+0x10"),
        (("libz.so.1+0x1", "libz.so.1+0x2", "[jit]"), "libz.so.1+0x1 ← libz.so.1+0x2 ← [jit]"),
        (("a", "b", "b", "b", "c", "d", "e", "f"), "a ← b ← c ← d ← e ← …"),
        (("libshop.so+0x10", "libshop.so+0x20", "main", "libc.so.6+0x10"), "libshop.so ← main"),
        (("g_malloc", "libshop.so+0x10", "main"), "g_malloc ← libshop.so ← main"),
        (("libshop.so+0x10", "Java_Shop_add", "java:Shop.add"), "libshop.so ← Shop.add"),
        ((), "[no stack]"),
    ],
)
def test_a_path_in_one_line_keeps_the_frames_that_tell(stack: tuple[str, ...], line: str) -> None:
    (frames,) = profile({stack: 1.0}).each_stack_of_frames()
    assert stack_summary.render(frames) == line


def test_where_a_function_is_in_the_source() -> None:
    def at(function: str, file: str = "", line: int = 0) -> Frame:
        return Frame(function, "shop", file=file, line=line)

    path = [at("keep"), at("render"), at("twice"), at("bare"), at("many")]
    stacks = [
        [at("keep", "/src/keep.c", 9), at("render", "/src/render.py"), at("twice", "/src/a.c", 1), at("bare")],
        [at("keep", "/src/keep.c", 7), at("twice", "/src/b.c", 1)],
        *([at("many", "/src/many.c", line)] for line in range(8, 0, -1)),
    ]
    assert sources(path, stacks) == ["/src/keep.c:7, 9", "/src/render.py", "", "", "/src/many.c:1, 2, 3, 4, 5, …"]
    assert with_source("keep", "/src/keep.c:7") == "keep  (/src/keep.c:7)" and with_source("bare", "") == "bare"
