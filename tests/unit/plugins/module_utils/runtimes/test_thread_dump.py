# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The forms of thread dumps. Real ones are in tests/integration."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.offheap.profiler.plugins.module_utils.runtimes.thread_dump import Stack, stacks, standing_in

TEXT = """2026-11-21 13:00:00
Full thread dump OpenJDK 64-Bit Server VM (17.0.15+6-Debian-1deb12u1 mixed mode, sharing):

"worker-1" #12 prio=5 os_prio=0 cpu=93.95ms elapsed=51.56s tid=0x00007f tid nid=0x1f runnable  [0x00007f1c]
   java.lang.Thread.State: RUNNABLE
\tat java.util.zip.Inflater.inflateBytesBytes(java.base@17.0.15/Native Method)
\tat java.util.zip.Inflater.inflate(java.base@17.0.15/Inflater.java:378)
\t- locked <0x00000000e1a7d8f8> (a java.util.zip.Inflater$InflaterZStreamRef)
\tat Frontend.unpack(Frontend.java:88)

"main" #1 prio=5 os_prio=0 cpu=1ms elapsed=1s tid=0x0 nid=0x1 waiting on condition  [0x0]
   java.lang.Thread.State: TIMED_WAITING (sleeping)
\tat java.lang.Thread.sleep(java.base@17.0.15/Native Method)
\tat app//Frontend.main(Frontend.java:20)

"odd
\tat Evil.name(Native Method)
name" #13 prio=5 os_prio=0 tid=0x0 nid=0x2 runnable
   java.lang.Thread.State: RUNNABLE
\tat Loop.run(Loop.java:1)

"VM Thread" os_prio=0 cpu=3.79ms elapsed=51.58s tid=0x00007f1c0c0e1b70 nid=0xa runnable

JNI global refs: 15, weak refs: 0
"""


def test_stacks() -> None:
    assert list(stacks(TEXT)) == [
        Stack(
            (
                "java.util.zip.Inflater.inflateBytesBytes",
                "java.util.zip.Inflater.inflate",
                "Frontend.unpack",
            ),
            True,
        ),
        Stack(("java.lang.Thread.sleep", "Frontend.main"), True),
        Stack(("Evil.name",), True),
        Stack(("Loop.run",), False),
    ]


def test_those_in_a_native_method() -> None:
    found = standing_in(TEXT, re.compile(r"java\.util\.zip\..*"))
    assert [frames[-1] for frames in found] == ["Frontend.unpack"]
    assert standing_in(TEXT, re.compile("java")) == [], "the whole name has to fit"
    assert standing_in(TEXT, re.compile(".*run")) == [], "Loop.run is no native method"


def test_recursion_is_cut_off() -> None:
    deep = "".join(f"\tat A.f{number}(A.java:1)\n" for number in range(5000))
    assert [len(stack.frames) for stack in stacks(deep)] == [64]


@given(st.text(alphabet='\t\n "at.()/AN', max_size=200))
def test_any_text(text: str) -> None:
    for stack in stacks(text):
        assert stack.frames


@pytest.mark.parametrize(
    "hidden", ["Shop$$Lambda/0x000000000d040210", "Shop$$Lambda$2/0x7f38b8", "Shop$$Lambda$1/1072"]
)
def test_a_hidden_class_has_no_address(hidden: str) -> None:
    """It is another in each process, so the same stack would count as many."""
    assert [one.frames for one in stacks(f"\tat {hidden}.run(Unknown Source)")] == [("Shop$$Lambda.run",)]
