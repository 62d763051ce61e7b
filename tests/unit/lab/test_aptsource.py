# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The mirror is Debian's archive among the configured sources, whatever else they contain."""

from __future__ import annotations

import subprocess

import pytest

from ansible_collections.offheap.profiler.tests.lab.nspawnlab import aptsource
from ansible_collections.offheap.profiler.tests.lab.nspawnlab.settings import LabError

OTHERS = """Node Source|Node Source|main|https://deb.example.org/node/
Debian|Debian-Security|main|http://mirror.example.org/debian-security/
Debian|Debian|contrib|http://mirror.example.org/debian/
||main|http://not-yet-updated.example.org/debian/
"""


def _apt(monkeypatch: pytest.MonkeyPatch, *answers: str) -> list[str]:
    """Make APT list ``answers`` in turn; returns the calls."""
    calls: list[str] = []
    rest = list(answers)

    def run(argv: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        calls.append(argv[1])
        return subprocess.CompletedProcess(argv, 0, rest.pop(0) if argv[1] == "indextargets" else "", "")

    monkeypatch.setattr(aptsource, "run", run)
    return calls


def test_main_archive_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = _apt(monkeypatch, OTHERS + "Debian|Debian|main|http://mirror.example.org/debian/\n")
    assert aptsource.mirror() == "http://mirror.example.org/debian/"
    assert calls == ["indextargets"]


def test_lists_are_updated_where_apt_knows_no_origin_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = _apt(monkeypatch, OTHERS, "Debian|Debian|main|https://mirror.example.org/debian/\n")
    assert aptsource.mirror() == "https://mirror.example.org/debian/"
    assert calls == ["indextargets", "update", "indextargets"]


def test_no_debian_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    _apt(monkeypatch, OTHERS, OTHERS)
    with pytest.raises(LabError, match="needs an APT source of the Debian archive") as caught:
        aptsource.mirror()
    assert caught.value.status == 2
