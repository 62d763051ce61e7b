# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The host's end of a session shows that it lives while it works, and ends with its controller."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
from pathlib import Path

from ansible_collections.offheap.profiler.plugins.module_utils.formats import wire

_SERVER = """
import sys, time
sys.path[:0] = {path!r}
from ansible_collections.offheap.profiler.plugins.module_utils.formats import wire
from ansible_collections.offheap.profiler.plugins.module_utils.session import server, units
wire.BEAT = 0.05
units.ANSWERS["units"] = lambda request, write: time.sleep({seconds}) or {{}}
units.ANSWERS["sample"] = lambda request, write: {{}}["unit"]
server.serve(sys.stdin.buffer, sys.stdout.buffer)
"""


def serving(seconds: float, ask: str = "units") -> subprocess.Popen[bytes]:
    """A server that takes so long to answer about units, and was asked something."""
    script = _SERVER.format(path=sys.path, seconds=seconds)
    server = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert server.stdin
    wire.write_message(server.stdin.write, {"ask": ask})
    server.stdin.flush()
    return server


def test_it_shows_that_it_lives_until_it_answers() -> None:
    with serving(0.5) as server:
        output, _errors = server.communicate()
    stream = io.BytesIO(output)
    parts = [wire.read(stream.read, 1000) for _part in range(output.count(b"A\0\0\0\0") + 1)]
    assert len(parts) > 2
    assert [part.message for part in parts if part] == [None] * (len(parts) - 1) + [{"answer": {}}]


def test_it_ends_when_its_controller_is_gone() -> None:
    with serving(600) as server:
        assert server.stdout
        server.stdout.close()
        assert server.wait(30) == -signal.SIGTERM


_TRACE = """
import sys, time
sys.path[:0] = {path!r}
from ansible_collections.offheap.profiler.plugins.module_utils.formats import wire
from ansible_collections.offheap.profiler.plugins.module_utils.session import server, units
from ansible_collections.offheap.profiler.plugins.module_utils.tracing import running_trace
wire.BEAT = 0.05
def trace(request, write):
    with running_trace.interruptible():
        try:
            for _tick in running_trace.ticks(time.monotonic() + 600):
                pass
        finally:
            time.sleep(1)
            open({left!r}, "x").close()
units.ANSWERS["trace"] = trace
server.serve(sys.stdin.buffer, sys.stdout.buffer)
"""


def test_a_trace_ends_to_the_last_step_when_its_controller_is_gone(tmp_path: Path) -> None:
    script = _TRACE.format(path=sys.path, left=str(tmp_path / "cleaned up"))
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as server:
        assert server.stdin and server.stdout
        wire.write_message(server.stdin.write, {"ask": "trace"})
        server.stdin.flush()
        assert server.stdout.read(1), "it is at work"
        server.stdout.close()
        server.wait(30)
    assert (tmp_path / "cleaned up").exists()


def test_a_bug_does_not_look_like_a_dead_host() -> None:
    with serving(0, "sample") as server:
        output, _errors = server.communicate()
    told = wire.read(io.BytesIO(output).read, 1000)
    assert told is not None and told.message is not None
    assert told.message["error"].startswith("this is a bug of the collection, and nothing is wrong with the host")
    assert "KeyError: 'unit' in <string>, line 8" in told.message["error"]


def test_a_python_without_a_part_of_its_library_is_named() -> None:
    script = _SERVER.format(path=sys.path, seconds=0).replace("import server, units", "import server")
    script = "".join(line for line in script.splitlines(True) if not line.startswith("units."))
    script = script.replace("import sys, time", "import sys\nsys.modules['ctypes'] = None")
    question: list[bytes] = []
    wire.write_message(question.append, {"ask": "units"})
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, input=b"".join(question), capture_output=True, check=True)
    answers = io.BytesIO(done.stdout)
    while (told := wire.read(answers.read, 1000)) and told.message is None:
        pass  # a sign of life
    assert told is not None and told.message is not None
    assert told.message["error"].startswith(f"{sys.executable} is not a whole Python: import of ctypes")
