# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A program in C that is told to forget blocks and to touch pages, and the tools of the kernel that watch it."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

_HEADING = " stacks with outstanding allocations:"
_SOURCE = """\
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#define STAY __attribute__((noinline))
#define PAGE 4096L
STAY void *take(int size) { void *p = malloc(size); memset(p, 1, size); return p; }
STAY void leak(int blocks) { for (int i = 0; i < blocks; i++) take(1000 + i % 3); free(take(50)); }
STAY void touch(char *from, int pages) { for (int i = 0; i < pages; i++) from[PAGE * i] = 1; }
STAY void grow(int pages) {
  char *from = mmap(0, PAGE * pages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  madvise(from, PAGE * pages, MADV_NOHUGEPAGE);
  touch(from, pages);
}
int main(void) {
  int count;
  char what;
  while (scanf(" %c %d", &what, &count) == 2) {
    if (what == 'l') leak(count); else grow(count);
    puts("done");
    fflush(stdout);
  }
  return 0;
}
"""


class Told:
    """The running program."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.pid = process.pid
        self._in, self._out = _streams(process)

    def do(self, what: str, count: int) -> None:
        """Have it leak so many blocks (l) or touch so many new pages (g), and wait until it has."""
        self._in.write(f"{what} {count}\n")
        self._in.flush()
        assert self._out.readline() == "done\n"


def _streams(process: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    assert process.stdin is not None and process.stdout is not None
    return process.stdin, process.stdout


@contextmanager
def running(directory: Path) -> Iterator[Told]:
    """The program, with frame pointers: the kernel walks stacks by them."""
    source = directory / "told.c"
    source.write_text(_SOURCE)
    options = ["-g", "-O1", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls"]
    subprocess.run(["gcc", *options, "-o", directory / "told", source], check=True)
    with subprocess.Popen([directory / "told"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Told(process)
        _streams(process)[0].close()


def faults(program: Told, directory: Path, pages: int) -> Path:
    """What perf has recorded (perf.data) while the program touched so many pages."""
    data = directory / f"{pages}.data"
    control, answers = os.pipe(), os.pipe()
    command = ["perf", "record", "-q", "-e", "page-faults", "-c", "1", "-g", "-p", str(program.pid), "-o", str(data)]
    command += ["-D", "-1", "--control", f"fd:{control[0]},{answers[1]}"]
    with subprocess.Popen(command, pass_fds=(control[0], answers[1])) as perf:
        for what in ("enable", "stop"):
            os.write(control[1], f"{what}\n".encode())
            assert os.read(answers[0], 16).startswith(b"ack\n")
            if what == "enable":
                program.do("g", pages)
    for end in (*control, *answers):
        os.close(end)
    assert perf.returncode == 0
    return data


def script(data: Path) -> Path:
    """The same as text."""
    text = data.with_suffix(".txt")
    fields = "comm,pid,tid,time,period,event,ip,sym,symoff,dso"
    with text.open("wb") as stream:
        subprocess.run(["perf", "script", "-i", data, "-F", fields], stdout=stream, check=True)
    return text


def memleak_reports(program: Told, directory: Path, blocks: Iterable[int]) -> list[Path]:
    """What memleak says, each time after the program leaked so many blocks more."""
    command = ["memleak-bpfcc", "-p", str(program.pid), "-T", "10000", "-o", "0", "1"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", **headers(directory)}
    files = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as one:
        assert one.stdout is not None
        reports = _reports(one.stdout)
        next(reports)  # now it is attached
        for step, count in enumerate(blocks):
            program.do("l", count)
            next(reports)  # may have begun before
            files.append(directory / f"memleak{step}")
            files[-1].write_text(next(reports))
        one.terminate()
    return files


def _reports(lines: Iterable[str]) -> Iterator[str]:
    report = ""
    for line in lines:
        if _HEADING in line and _HEADING in report:
            yield report
            report = ""
        report += line
    raise AssertionError(f"memleak has ended: {report}")


def headers(directory: Path) -> dict[str, str]:
    """Debian's headers of a kernel, where the running one has none: of it, memleak needs a few types that stay."""
    if Path("/lib/modules", platform.release(), "build").exists():
        return {}
    return {"BCC_KERNEL_SOURCE": str(debians_headers(directory))}


def debians_headers(directory: Path) -> Path:
    """Those of Debian's kernel, of two packages, in one tree of links."""
    common = max(Path("/usr/src").glob("linux-headers-*-common"))
    _merge(directory / "headers", [common, common.with_name(common.name.replace("-common", "-amd64"))])
    return directory / "headers"


def _merge(directory: Path, parts: list[Path]) -> None:
    """Have the directory show what is in any of these."""
    directory.mkdir()
    for name in {entry.name for part in parts for entry in part.iterdir()}:
        found = [part / name for part in parts if (part / name).is_dir() or (part / name).is_file()]
        if len(found) > 1 and all(one.is_dir() for one in found):
            _merge(directory / name, found)
        elif found:
            (directory / name).symlink_to(found[0])
