# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A process of this library finds what this one finds, wherever it was started, and none of the user's own files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.base import own_process


def say(words: Sequence[str]) -> None:
    import os

    import numpy as np

    print(*words, os.environ["OFFHEAP_SAID"], np.arange(3).sum(), input())


def test_it_calls_a_function_with_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "numpy.py").write_text("raise SystemExit('a file of whoever stands here')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    process = own_process.started(say, "a", "b c", OFFHEAP_SAID="more")
    assert process.communicate(b"told\n")[0] == b"a b c more 3 told\n"
    assert process.returncode == 0
