# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What a parser that somebody has taken over, or has overwhelmed, might do in the child process."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ansible_collections.offheap.profiler.plugins.module_utils.formats.capture_facts import CaptureFacts
from ansible_collections.offheap.profiler.plugins.plugin_utils.base.errors import ControllerError
from ansible_collections.offheap.profiler.plugins.plugin_utils.columns import sample_cache
from ansible_collections.offheap.profiler.plugins.plugin_utils.model import located_bytes
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.samples import located
from ansible_collections.offheap.profiler.plugins.plugin_utils.readers import heap_v2
from ansible_collections.offheap.profiler.plugins.plugin_utils.symbols import image_names
from ansible_collections.offheap.profiler.plugins.plugin_utils.symbols.image_names import ImageFiles
from ansible_collections.offheap.profiler.tests.unit.strategies import leaky_archives


def echo(data: bytes) -> bytes:
    return data


def number() -> bytes:
    return b"%d" % os.getpid()


def hoard() -> bytes:
    return b"%d" % len(bytes(512 << 20))


def spin() -> bytes:
    while True:
        pass


def sleep() -> bytes:
    time.sleep(600)
    return b""


def stall() -> bytes:
    """Half of an answer."""
    for descriptor in range(3, 16):  # one of them leads to the parent
        with contextlib.suppress(OSError):
            os.write(descriptor, b"A" + (1000).to_bytes(8, "big") + b"half")
    return sleep()


def talk() -> bytes:
    print("x" * 100_000, flush=True)
    os.write(1, b"y" * 100_000)
    return b"said"


def flood() -> bytes:
    return bytes((1 << 20) + 1)


def crash() -> bytes:
    os.kill(os.getpid(), signal.SIGSEGV)
    return b""


def refuse(text: str) -> bytes:
    raise ControllerError(text)


def stumble() -> bytes:
    raise KeyError("a bug")


def write(path: str) -> bytes:
    Path(path).write_bytes(b"x")
    return b"written"


def append(path: str) -> bytes:
    with open(path, "ab") as stream:
        stream.write(b"x")
    return b"written"


def remove(path: str) -> bytes:
    os.unlink(path)
    return b"removed"


def run(path: str) -> bytes:
    return subprocess.run(["/bin/cat", path], check=True, capture_output=True).stdout


def connect(port: str) -> bytes:
    with socket.create_connection(("127.0.0.1", int(port))) as connection:
        return connection.recv(1)


def overwhelmed_by_app1(path: Path, facts: CaptureFacts) -> bytes:
    """The parser of dumps, which those of the host app1 overwhelm in the way that the environment names."""
    if "/app1/" in str(path):
        return _TRICKS[os.environ["TRICK"]]()
    return sample_cache._parsed(path, facts)


def lie() -> bytes:
    """Two stacks, the second of which leads to places that do not exist."""
    dump = heap_v2.parse(leaky_archives.dump_text(1, 1), "x")
    profile = located(dump, {})
    return located_bytes.packed(replace(profile, stacks=profile.stacks + 1000), {})


def overwhelmed_by_liar(files: ImageFiles, offsets: Sequence[int]) -> bytes:
    """The reader of images, which the one called liar.so overwhelms in the way that the environment names."""
    if files.name == "liar.so":
        return _TRICKS[os.environ["TRICK"]]()
    return image_names._named(files, offsets)


_TRICKS = {"spin": spin, "hoard": hoard, "flood": flood, "crash": crash, "lie": lie}
