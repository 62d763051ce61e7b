# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Another process of this library beside this one: the same Python, which finds the same libraries.

It starts anew instead of being forked, since a fork of a process with threads may hang.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[3]
_START = """\
import importlib, sys, types
sys.path[:] = {path}
for name, places in (("", []), (".offheap", []), (".offheap.profiler", sys.argv[1:2])):
    package = sys.modules["ansible_collections" + name] = types.ModuleType("ansible_collections" + name)
    package.__path__ = places
getattr(importlib.import_module(sys.argv[2]), sys.argv[3])(sys.argv[4:])
"""


def started(function: Callable[[Sequence[str]], None], *words: str, **environment: str) -> subprocess.Popen[bytes]:
    """A process that calls ``function`` (of a module) with these words; there is a pipe to it and one from it.

    ``environment`` is added to ours. Its errors are not shown.
    """
    start = [sys.executable, "-I", "-S", "-B", "-c", _START.format(path=_library_path()), str(_ROOT)]
    return subprocess.Popen(
        [*start, function.__module__, function.__name__, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **environment},
    )


def _library_path() -> list[str]:
    """Where this process finds libraries, but for where its user happens to stand. What site would add takes time."""
    return [place for place in sys.path if os.path.isabs(place)]
