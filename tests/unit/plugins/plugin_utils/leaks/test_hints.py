# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks import hints
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.hints import HintError
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.verdict import Answer
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.frame import Frame, Kind


def _path(*names: str) -> list[Frame]:
    return [Frame(name, "libx.so", Kind.NATIVE) for name in names]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (("inflateInit2_", "Java_java_util_zip_Inflater_init", "[jit]"), ["java-inflater", "zlib"]),
        (("updatewindow", "inflate", "decompress"), ["zlib"]),
        (("malloc_wrapper", "a", "b", "inflate"), []),
        (("readCEN", "ZIP_Open_Generic"), ["java-zip-file"]),
        (("os::malloc", "Unsafe_AllocateMemory0"), ["java-direct-buffer"]),
        (("os::malloc", "jvmtiAllocate"), ["jdwp"]),
        (("operator new", "rocksdb::Arena::AllocateNewBlock"), ["rocksdb"]),
        (("CRYPTO_malloc", "SSL_new"), ["tcnative"]),
        (("os::malloc", "ClassFileParser::parse_stream"), ["class-loaders"]),
        (("calloc", "_dl_allocate_tls", "pthread_create@@GLIBC_2.34"), ["threads"]),
        (("remember", "handle", "main"), []),
    ],
)
def test_known_causes(path: tuple[str, ...], expected: list[str]) -> None:
    assert [hint.id for hint in hints.for_path(hints.load(), _path(*path))] == expected


def test_a_hint_for_a_verdict_stands_only_where_the_numbers_say_so() -> None:
    def found(answer: Answer, shares: dict[str, float]) -> list[str]:
        return [hint.id for hint in hints.for_verdict(hints.load(), answer, shares)]

    assert found(Answer.NO_LEAK, {"Unexplained": 0.8}) == ["mapped-memory"]
    assert found(Answer.NO_LEAK, {"Unexplained": 0.2, "Fragmentation": 0.8}) == []
    assert found(Answer.NO_LEAK, {}) == []
    assert found(Answer.LEAK, {"Unexplained": 0.8}) == []


def test_our_own_are_complete() -> None:
    assert len(hints.load()) > 10
    for hint in hints.load():
        assert hint.link.startswith("https://") and hint.check.endswith(".")


def test_users_add_and_replace(tmp_path: Path) -> None:
    (tmp_path / "own.yml").write_text(
        "- {id: shop, title: the shop's cache, match: ['Shop::.*'], check: ask the shop team}\n"
        "- {id: zlib, title: ours, match: [never], check: x}\n"
    )
    known = hints.load([tmp_path / "own.yml"])
    (hint,) = hints.for_path(known, _path("operator new", "Shop::add"))
    assert (hint.title, hint.link) == ("the shop's cache", "")
    assert hints.for_path(known, _path("inflate")) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not YAML"),
        ("id: x", "is not a list"),
        ("- x", "entry 1 is not a mapping"),
        ("- {id: x, title: y, check: z, match: [a], when: now}", "unknown key 'when'"),
        ("- {id: x, title: y, match: [a]}", "check is missing"),
        ("- {id: x, title: y, check: z, match: ['(']}", "is not a regular expression"),
        ("- {id: x, title: y, check: z, match: a}", "not a list of regular"),
        ("- {id: x, title: y, check: z}", "either match or verdict"),
        ("- {id: x, title: y, check: z, verdict: no-leak}", "verdict, part and share belong together"),
        ("- {id: x, title: y, check: z, match: [a], share: 0.5}", "verdict, part and share belong together"),
        ("- {id: x, title: y, check: z, verdict: leak, part: a, share: 50}", "share is not a number from 0 to 1"),
        (
            "- {id: x, title: y, check: z, verdict: maybe}",
            "one of leak, bursts, overflows, grew, cannot-tell, fills-up, no-leak",
        ),
        ("- {id: x, title: y, check: z, match: [a], within: -1}", "within is not"),
    ],
)
def test_what_is_no_file_of_hints(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "own.yml").write_text(text)
    with pytest.raises(HintError, match=message):
        hints.load([tmp_path / "own.yml"])
