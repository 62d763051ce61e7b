# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Build the library or the agent: on the controller for the hosts' platform, with the C compiler in ziglang, or on a
host for itself and its like, with the host's own.

Reads a description from stdin, as JSON:

- ``part``: ``library`` or ``agent``; ``source``: a tarball of the patched release or of the agent's directory, or that
- ``target``: for ziglang, such as ``x86_64-linux-gnu.2.17``: no newer glibc than that is needed on a host; or
  ``x86_64-linux-musl``; "" for the machine's own compiler, ``CC`` or gcc
- ``options``, ``cflags``: for the library's configure, and more flags for the compiler
- ``place``: where hosts install it; its last part is the directory in the tarball
- ``result``: the tarball to write; ``record``: what its offheap.json holds, but for ``files``
- ``sha256``: what the built .so must have, or "" where nobody has built it before

With ziglang, the same sources give the same bytes in any directory, on any machine. Writes the tarball and, after it,
its record with its SHA-256 beside it; without that, the tarball does not count. Prints that SHA-256. Ends with status 1
and one line on stderr otherwise. Hosts have Python 3.8.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

COMPILER = "0.17.1"
_ZIG = [sys.executable, "-m", "ziglang"]
# What the compiler adds of the C library has debug information that names the directory.
_BARE = "-Wl,--strip-debug"
_OWN_UNWINDER = "-lunwind"  # the compiler's, whose symbols stay inside
_UNWINDER = ("_Unwind_Backtrace", "_Unwind_GetIP")  # what jemalloc takes from libgcc
# Else configure takes it from the machine that it runs on. With that of a host with pages of 64 KiB, each thread
# reserves 512 MiB of addresses.
_HUGE_PAGE = "--with-lg-hugepage=21"
# The same for its processor, where 57 bits are possible. Linux hands out no address above 48 bits unasked.
_ADDRESSES = "--with-lg-vaddr=48"
_SHOWN = 15  # lines of a command that failed


class BuildError(Exception):
    """There is no build. The message says why."""


def compiler() -> str:
    """The release of the compiler beside this Python, "" if there is none."""
    asked = subprocess.run([*_ZIG, "version"], capture_output=True, text=True, check=False)
    return asked.stdout.strip() if asked.returncode == 0 else ""


def _run(directory: Path, environment: dict[str, str], *command: str) -> None:
    done = subprocess.run(
        command,
        cwd=directory,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        last = "\n".join(done.stdout.splitlines()[-_SHOWN:])
        raise BuildError(f"{command[0]} failed with status {done.returncode}:\n{last}")


def _tools(work: Path, target: str) -> dict[str, str]:
    # Make and configure split a compiler's name at blanks, and the path of this Python may have one.
    zig = work / "zig"
    zig.write_bytes(os.fsencode(f'#!/bin/sh\nexec {shlex.join(_ZIG)} "$@"\n'))
    zig.chmod(0o700)
    caches = {f"ZIG_{kind}_CACHE_DIR": str(work / "zig-cache") for kind in ("GLOBAL", "LOCAL")}
    return {**caches, "CC": f"{zig} cc -target {target}", "AR": f"{zig} ar", "RANLIB": f"{zig} ranlib", "LC_ALL": "C"}


def _is_musl(target: str) -> bool:
    return target.endswith("musl")


def _unwinder(work: Path, tools: dict[str, str], target: str) -> str:
    """What to link with: for glibc a stand-in, since hosts have libgcc, and this machine need not. The compiler's own
    unwinder calls dlsym at its first step, which allocates with a glibc before 2.34, and jemalloc takes that step while
    it initialises. With musl it is libgcc that allocates there, and the compiler's own is linked in."""
    if _is_musl(target):
        return _OWN_UNWINDER
    source, made = work / "libgcc.c", work / "libgcc_s.so.1"
    source.write_text("".join(f"void {name}(void);\nvoid {name}(void) {{}}\n" for name in _UNWINDER))
    command = [*tools["CC"].split(), "-shared", "-fPIC", "-nostdlib", f"-Wl,-soname,{made.name}", "-o", str(made)]
    _run(work, tools, *command, str(source))
    return str(made)


def _tree(work: Path, source: Path) -> Path:
    """The directory of the sources, unpacked if they are a tarball."""
    if source.is_dir():
        return source
    (work / "source").mkdir()
    _run(work / "source", {}, "tar", "--extract", f"--file={source}")
    (tree,) = (work / "source").iterdir()
    return tree


def library(work: Path, tree: Path, wanted: dict[str, Any]) -> dict[str, Path]:
    """The library's files by their place in the tarball."""
    environment = {"EXTRA_CFLAGS": wanted["cflags"]}
    own = [f"--prefix={wanted['place']}", _HUGE_PAGE]
    if wanted["target"]:
        tools = _tools(work, wanted["target"])
        environment.update(
            tools,
            CFLAGS=f"-O3 -g0 -fPIC -ffile-prefix-map={tree}=.",
            LDFLAGS=_BARE,
            LIBS=_unwinder(work, tools, wanted["target"]),
            ac_cv_lib_gcc__Unwind_Backtrace="yes",
        )
        if _is_musl(wanted["target"]):
            environment["je_cv_pthread_getname_np"] = "no"  # musl has it from 1.2.3 on
        own += [f"--host={wanted['target'].partition('.')[0]}", _ADDRESSES]
    _run(tree, environment, "./configure", *own, *wanted["options"])
    _run(tree, environment, "make", f"-j{os.cpu_count() or 1}", "build_lib_shared")
    return {name: tree / name for name in ("lib/libjemalloc.so.2", "bin/jeprof")}


def agent(work: Path, tree: Path, wanted: dict[str, Any]) -> dict[str, Path]:
    """The agent's file by its place in the tarball."""
    tools = _tools(work, wanted["target"]) if wanted["target"] else {}
    linked = f"{_BARE} {_OWN_UNWINDER}" if _is_musl(wanted["target"]) else _BARE
    flags = (f"CC={tools['CC']}", "CFLAGS=-O2 -g0", f"LDFLAGS={linked}") if tools else ()
    _run(tree, tools, "make", f"BUILD={work}", *flags)
    return {"liboffheap.so": work / "liboffheap.so"}


def _sum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _write(path: Path, content: bytes) -> None:
    """Whole or not at all, even where the power fails: a record that is there counts."""
    part = path.with_name(f"{path.name}.part")
    with part.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    part.replace(path)


def _packed(name: str, files: dict[str, bytes]) -> bytes:
    """A tarball of these files below a directory, which is the same for the same files."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.USTAR_FORMAT) as tarball:
        for directory in sorted({str(parent) for inner in files for parent in Path(name, inner).parents} - {"."}):
            member = tarfile.TarInfo(directory)
            member.type, member.mode = tarfile.DIRTYPE, 0o755
            tarball.addfile(member)
        for inner, content in sorted(files.items()):
            member = tarfile.TarInfo(f"{name}/{inner}")
            member.size, member.mode = len(content), 0o644 if inner.endswith(".json") else 0o755
            tarball.addfile(member, io.BytesIO(content))
    return gzip.compress(plain.getvalue(), mtime=0)


def _named_compiler(target: str) -> str:
    """What the record says of it. Raises BuildError if it is not the one that is needed."""
    if not target:
        command = [*shlex.split(os.environ.get("CC") or "gcc"), "--version"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.partition("\n")[0]
    if compiler() != COMPILER:
        raise BuildError(
            f"{sys.executable} has {compiler() or 'no'} ziglang, and {COMPILER} is needed:"
            f" {sys.executable} -m pip install ziglang=={COMPILER}"
        )
    return f"ziglang {COMPILER}"


def build(wanted: dict[str, Any]) -> str:
    """The tarball's SHA-256. Raises BuildError, OSError."""
    named = _named_compiler(wanted["target"])
    result = Path(wanted["result"])
    work = Path(tempfile.mkdtemp(prefix="offheap-build-"))
    try:
        if len(str(work).split()) > 1:
            raise BuildError(f"make can't build in {work.parent}, which has a blank: set TMPDIR to another directory")
        tree = _tree(work, Path(wanted["source"]))
        built = (library if wanted["part"] == "library" else agent)(work, tree, wanted)
        files = {name: path.read_bytes() for name, path in built.items()}
        sums = {name: _sum(content) for name, content in files.items()}
        got = next(found for name, found in sums.items() if ".so" in name)
        if wanted["sha256"] not in ("", got):
            raise BuildError(
                f"the SHA-256 of the {wanted['part']} that was built is {got}, and everybody else's is"
                f" {wanted['sha256']}: the compiler or the sources were changed; install the compiler anew"
            )
        record = {**wanted["record"], "compiler": named, "files": sums}
        files["offheap.json"] = _text(record)
        packed = _packed(Path(wanted["place"]).name, files)
        sha256 = _sum(packed)
        _write(result, packed)
        _write(Path(f"{result}.json"), _text({**record, "sha256": sha256}))
        return sha256
    finally:
        shutil.rmtree(work)


def _text(record: dict[str, Any]) -> bytes:
    return json.dumps(record, indent=4, sort_keys=True).encode() + b"\n"


if __name__ == "__main__":
    try:
        print(build(json.load(sys.stdin)))
    except (BuildError, OSError) as error:
        sys.exit(str(error))
