# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Secrets in command lines, and command lines that were made to be slow to search."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.formats import command_line
from ansible_collections.offheap.profiler.plugins.module_utils.spool import provenance
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.archive import Archive
from ansible_collections.offheap.profiler.plugins.plugin_utils.fetch.collect import Wanted, collect
from ansible_collections.offheap.profiler.tests.hostile.bounds import costs_at_most
from ansible_collections.offheap.profiler.tests.hostile.test_planted_secrets import LINES, SECRETS, words_of
from ansible_collections.offheap.profiler.tests.unit.plugins.plugin_utils.fetch.test_collect import Host

WORDS = [
    ["app", "--password", "geheim"],
    ["java", "-Dssl.keyStorePassword=geheim", "-jar", "app.jar"],
    ["app", "postgres://app:geheim@db/app"],
    ["sh", "-c", "API_TOKEN=geheim exec app"],
]


@pytest.mark.parametrize("words", WORDS)
def test_what_a_host_sends_whole_is_not_stored(tmp_path: Path, words: list[str]) -> None:
    archive, host = Archive.create(tmp_path / "archive"), Host()
    host.listing["processes"][0]["cmdline"] = words
    assert len(collect(host, archive, Wanted("liar")).captures) == 3
    files = [path for path in (tmp_path / "archive").rglob("*") if path.is_file()]
    assert files and not any(b"geheim" in path.read_bytes() for path in files)
    assert len(collect(Host(), archive, Wanted("next")).captures) == 3


def test_a_host_that_sends_every_line_whole(tmp_path: Path) -> None:
    """One of each: in the archive, in what the run returns, and in its warnings is the program and no secret."""
    contents = [b"dump of %d" % number for number in range(len(LINES))]
    archive, host = Archive.create(tmp_path / "archive"), Host(contents)
    (sample,) = host.listing["processes"]
    lines = [words_of(line, SECRETS[number % len(SECRETS)]) for number, line in enumerate(LINES)]
    host.listing["processes"] = [
        {**sample, "pid": number + 2, "key": f"{number + 2}-1a2b3c4d", "cmdline": words}
        for number, words in enumerate(lines)
    ]
    for number, capture in enumerate(host.listing["captures"]):
        capture.update(process=number, name=f"jeprof.{number + 2}.0.i0.heap")
    done = collect(host, archive, Wanted("liar"))
    assert len(done.captures) == len(LINES) and "geheim" not in repr(done).lower()
    kept = b"".join(path.read_bytes() for path in (tmp_path / "archive").rglob("*") if path.is_file()).lower()
    assert b"geheim" not in kept
    assert {words[0].split()[0] for words in lines} == {
        capture.facts.process.cmdline[0].split()[0] for capture in archive.captures() if capture.facts.process.cmdline
    }


@pytest.mark.parametrize("words", WORDS)
def test_what_a_host_reads_of_a_process_is_not_sent(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "12").mkdir()
    (tmp_path / "12" / "exe").symlink_to("/bin/app")
    (tmp_path / "12" / "maps").write_text("")
    (tmp_path / "12" / "stat").write_text("12 (app) S" + " 0" * 50)
    (tmp_path / "stat").write_text("btime 1\n")
    (tmp_path / "sys/kernel/random").mkdir(parents=True)
    (tmp_path / "sys/kernel/random/boot_id").write_text("3311dc9f-1808-4ca7-82ce-6a2ac4a132ac\n")
    (tmp_path / "12" / "cmdline").write_bytes("\0".join(words).encode() + b"\0")
    found = provenance.Examiner(str(tmp_path)).process(12, [], 2.0)
    assert found.cmdline and found.cmdline[0] == words[0] and "geheim" not in str(found)


SLOW = ["key" * 350000, "a.key" * 200000, "key " * 250000, "key:" * 250000, "\"'" * 500000, "-" * 1000000]
SLOW += ["key" + " " * 1000000, "://@" * 250000, "/key:" * 200000]


@pytest.mark.parametrize("text", SLOW, ids=range(len(SLOW)))
def test_a_megabyte_without_an_end(text: str) -> None:
    with costs_at_most(15, 16):
        command_line.known_words([text, "--password", text])
        command_line.without_secret(text)
