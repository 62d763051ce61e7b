# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Programs and libraries that tests compile, and processes that run them."""

from __future__ import annotations

import contextlib
import struct
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from ansible_collections.offheap.profiler.plugins.module_utils.host import procfs

# Ends with the test that has started it, whatever happens to the test.
SLEEPS = "#include <unistd.h>\nint main(void) { sleep(60); return 0; }\n"
# Its main thread ends, another goes on.
GOES_ON_WITHOUT_MAIN = """
#include <pthread.h>
#include <unistd.h>
static void *rest(void *unused) { sleep(60); return unused; }
int main(void)
{
    pthread_t thread;
    pthread_create(&thread, 0, rest, 0);
    pthread_exit(0);
}
"""


def compiled(directory: Path, name: str, source: str = SLEEPS, *flags: str) -> Path:
    """A program, or with -shared a library."""
    code = directory / f"{name}.c"
    code.write_text(source)
    target = directory / name
    subprocess.run(["gcc", "-o", target, code, *flags], check=True, cwd=directory)
    return target


def library(directory: Path, name: str, source: str = "int offheap_probe;\n", *flags: str) -> Path:
    return compiled(directory, name, source, "-shared", "-fPIC", "-nostartfiles", *flags)


def script(directory: Path, name: str, text: str) -> Path:
    path = directory / name
    path.write_text(text)
    path.chmod(0o755)
    return path


def settled(process: subprocess.Popen[bytes], name: str, state: str = "S") -> int:
    """The pid of a process, once its loader has handed over to the program of this name: then it sleeps, or is in
    another state that its main thread comes to."""
    deadline = time.monotonic() + 10
    while procfs.cmdline(process.pid)[:1] != [name] or _state(process.pid) != state:
        assert time.monotonic() < deadline and process.poll() is None, f"{name} does not run"
        time.sleep(0.002)
    return process.pid


def is_secure(pid: int) -> bool:
    """Whether the loader of a 64-bit process ran in secure mode (AT_SECURE, 23, of its auxiliary vector)."""
    return bool(dict(struct.iter_unpack("=QQ", Path(f"/proc/{pid}/auxv").read_bytes()))[23])


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@contextlib.contextmanager
def running(
    program: str | Path, *arguments: str, env: Mapping[str, str] | None = None, state: str = "S"
) -> Iterator[int]:
    """The pid of a process that has got as far as the program itself."""
    with subprocess.Popen([str(program), *arguments], env=env, stdin=subprocess.DEVNULL) as process:
        try:
            yield settled(process, str(program), state)
        finally:
            process.kill()
