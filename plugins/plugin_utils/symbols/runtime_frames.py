# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What language runtimes call their compiled code, as frames that people recognise.

- HotSpot (Method::external_name): ``int java.util.zip.Inflater.inflate(byte[], int, int)``, and bare words for other
  code: ``Interpreter``, ``StubRoutines (1)``. A hidden class has an address in its name, which differs between
  processes: ``Frontend$$Lambda$1/0x00007f0f17000cd8.run`` is shown as ``Frontend$$Lambda.run``.
- CPython (Python/perf_trampoline.c): ``py::serve_asset:/srv/app.py``.
- V8 (log.cc): ``JS:*handle /srv/app.js:12:34``; the mark says which compiler. Old versions write ``LazyCompile:``. An
  accessor is ``get total`` or ``set total``, what eval has made has no file.

Anything else is shown as it is.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import PurePosixPath

from ...module_utils.formats.perf_map_line import without_hidden_class
from ..base.printable import printable
from ..model.frame import Frame, Kind

_LONGEST = 1000
_JAVA = re.compile(r"(?:[^\s()]+ )?([^\s()]+\.[^\s().]+)\(([^()]*)\)\Z")
_PYTHON = re.compile(r"py::([^:]+):(.+)\Z")
_JS = re.compile(
    r"(?:JS|LazyCompile|Function|Eval|Script):[*~^+]?((?:[gs]et (?![^ ]*[/:]))?\S*) ?(.*?)"
    r"(?::([0-9]{1,9}):[0-9]{1,9})?\Z"
)


@lru_cache(maxsize=16384)
def frame_of(name: str) -> Frame:
    """The frame for a name in a perf map; its ``signature`` is that name."""
    name = printable(name)
    java = _JAVA.match(name)
    if java:
        return Frame(_short(without_hidden_class(java[1])), "[java]", Kind.JAVA, signature=name)
    python = _PYTHON.match(name)
    if python:
        shown = f"{python[1]} ({PurePosixPath(python[2]).name or python[2]})"
        return Frame(_short(shown), "[python]", Kind.PYTHON, file=python[2], signature=name)
    script = _JS.match(name)
    if script and any(script.groups()):
        return _script_frame(name, script)
    return Frame(_short(name), "[jit]", Kind.JIT, signature=name)


def _script_frame(name: str, match: re.Match[str]) -> Frame:
    function, file, line = match[1] or "(anonymous)", match[2], int(match[3] or 0)
    where = PurePosixPath(file).name or file
    if where:
        function = f"{function} ({where}:{line})" if line else f"{function} ({where})"
    return Frame(_short(function), "[js]", Kind.JS, file=file, line=line, signature=name)


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
