# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What no reader takes is told for what it is, with what to do instead."""

from __future__ import annotations

import contextlib
import re
import time
import tracemalloc
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.readers import detect
from ansible_collections.offheap.profiler.plugins.plugin_utils.readers.format_error import UnusableError
from ansible_collections.offheap.profiler.tests.conftest import ROOT


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (b"v 10500 3\nX /srv/app\n", "is heaptrack's own.*--source live:bytes:1"),
        (b"memray\0\x0c", "is memray's own"),
        (b"PERFILE2" + bytes(99), "is perf's own: run 'perf script"),
        (b"goroutine profile: total 51\n1 @ 0x1 0x2\n", "not of memory: ask the service for its heap"),
        (b"threadcreate profile: total 7\n", "not of memory"),
        (b"--- contentionz 1 ---\ncycles/second = 3201000000\n", "not of memory"),
        (bytes(8) + b"\x03" + bytes(15) + b"\x10\x27", "CPU profile of gperftools"),
        (b"JAVA PROFILE 1.0.2\0", "Eclipse MAT"),
        (b"version: 1\ncreator: xdebug 3.1.0 (PHP 8.1.2)\n", "is callgrind's, of time or made from another"),
        (b"# callgrind format\nversion: 1\n", "is callgrind's, of time or made from another"),
        (b"events: Hits\n\n", "is callgrind's"),
        (b"= Start\n@ ./app:(main+0x4)[0x401156] + 0x1a2b 0x64\n", "glibc's mtrace"),
        (b"\x80\x04\x95" + bytes(8) + b"\x8c\x0btracemalloc\x94", "tracemalloc"),
        (b"\x7fELF\x02\x01\x01", "is a program, a library or a core dump"),
        (b"<!DOCTYPE html>\n<html>", "is a page or a picture"),
        (b'{"head":{"callFrame":{}}}', "V8's own objects"),
        (b'{"nodes":[{"id":1,"callFrame":{}}]}', "a CPU profile of V8"),
        (b'{"frames": 3}', "is JSON"),
        (b'{"resourceProfiles":[]}', "OpenTelemetry's profiles as JSON"),
        (b"Nettrace\x14\0\0\0!FastSerialization.1", "is a trace of .NET"),
        (
            b"hello\x1b[31m\nworld\n",
            r"in no known format \(it begins with 'hello.*'\); it should be a profile of jemalloc",
        ),
    ],
)
def test_what_cannot_be_read_is_named(data: bytes, why: str) -> None:
    with pytest.raises(UnusableError, match=why) as caught:
        detect.source_of(data, "x")
    assert str(caught.value).isprintable()


def test_stacks_that_begin_like_json_are_stacks() -> None:
    assert detect.source_of(b"[jit];main 3\n", "x") == "collapsed"


def test_each_row_of_the_sources_page_names_a_test() -> None:
    table = (ROOT / "docs" / "sources.md").read_text().split("| tested with |\n", 1)[1].split("\n\n", 1)[0]
    rows = table.splitlines()[1:]
    assert len(rows) > len(detect.FORMATS)
    for row in rows:
        (test,) = re.findall(r"\(`(test_[a-z_]+\.py)`\) \|$", row)
        assert Path(__file__).with_name(test).exists(), row


def test_a_large_file_is_not_copied_to_see_what_it_is() -> None:
    data = b"main;work 4096\n" * (1 << 18)
    tracemalloc.start()
    try:
        assert detect.source_of(data, "x") == "collapsed"
        assert tracemalloc.get_traced_memory()[1] < len(data) / 2
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "unit", [b" ", b"\n", b"\n\0", b"\x12\0", b"\n\x02\n\0\x12\x02\n\0", b"#\n", b"==7== ", b"@[\n", b"a;b 1 "]
)
def test_what_a_large_file_is_takes_no_time(unit: bytes) -> None:
    """Of 256 MiB, the largest that are read, it may take ten seconds."""
    data = unit * ((16 << 20) // len(unit)) + b"x"
    began = time.process_time()
    with contextlib.suppress(UnusableError):
        detect.source_of(data, "x")
    assert time.process_time() - began < 10 / 16
