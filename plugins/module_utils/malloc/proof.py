# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Prove in a throw-away process that a jemalloc library can profile on this host.

File names prove nothing: a Python process starts under the library, reports
its version, samples, and dumps. It runs as nobody, not as root: a user who can
write a library into some product's directory must not become root because we
find it, and a library that only root can read is of no use to a service. For
the same reason no library is run whose path others than root may change, and
what the process leaves behind is read with limits.

A release that is known to crash services is refused even if it profiles,
because the throw-away process does not do what these services do.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import stat
import subprocess
import sys
import tempfile
from typing import IO, Any, Mapping, NamedTuple

from ansible_collections.offheap.profiler.plugins.module_utils.formats import elf, malloc_conf, maps
from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
from ansible_collections.offheap.profiler.plugins.module_utils.host import trusted_path

TIMEOUT_SECONDS = 30
# Of each file that the process writes: its dump, and what it says. A dump takes a few hundred KiB.
_MOST_BYTES = 16 << 20
# Ansible's own interpreter comes first, but it may be where only root can run it.
_INTERPRETERS = (sys.executable, "/usr/bin/python3", "/usr/libexec/platform-python")
# By tradition this user owns nothing; it is the kernel's overflow uid.
NOBODY = 65534

# Releases under which no service must run, each with the reason and what to do.
UNSOUND = {
    "5.3.1": "jemalloc 5.3.1 can crash a service whose threads free memory while they end (jemalloc#2981); use 5.3.0,"
    " which the role offheap.profiler.jemalloc builds by default",
}

# The library still checks a user's options that would write elsewhere or empty the dump, but these overrule them.
_OVERRULED: dict[str, malloc_conf.Value] = {
    "lg_prof_interval": -1,
    "prof_final": False,
    "prof_gdump": False,
    "prof_leak": False,
    "prof_leak_error": False,
    "prof_log": False,
    "prof_thread_active_init": True,
    "stats_interval": -1,
}

# Runs under the library. Deep, varied stacks come from the interpreter itself.
_CHILD = r"""
import ctypes, json, sys
process = ctypes.CDLL(None)
if not hasattr(process, "mallctl"):
    print(json.dumps({"loaded": False}))
    sys.exit()
def control(name, kind):
    value = kind()
    size = ctypes.c_size_t(ctypes.sizeof(value))
    failed = process.mallctl(name, ctypes.byref(value), ctypes.byref(size), None, 0)
    return None if failed else value.value
answer = {"loaded": True, "version": (control(b"version", ctypes.c_char_p) or b"").decode("ascii", "replace"),
          "built_with_prof": control(b"config.prof", ctypes.c_bool), "prof": control(b"opt.prof", ctypes.c_bool),
          "page": control(b"arenas.page", ctypes.c_size_t), "dumped": False}
if answer["prof"]:
    kept = [json.dumps(list(range(n))) for n in range(0, 2000, 10)]
    path = ctypes.c_char_p(sys.argv[1].encode())
    answer["dumped"] = not process.mallctl(b"prof.dump", None, None, ctypes.byref(path), ctypes.sizeof(path))
print(json.dumps(answer))
"""

# The message of a failed proof, by the reason's name.
_REASONS = {
    "untrusted-path": "the library is not tried, because others than root could replace it: {detail}. Let root own"
    " every part of its path and nobody else write there (chown, chmod), or use another library"
    " (jemalloc_method=build)",
    "unsound": "{detail}",
    "does-not-load": "the library does not load on this host: {detail}. If it was built for another or a newer C"
    " library, or another architecture, build it on the oldest host of the platform (jemalloc_build_host). If only root"
    " can read it, open the directories above it. If its file system is mounted noexec ('failed to map segment'), mount"
    " it with exec",
    "page-size": "the library was built for smaller memory pages than this host has ({detail});"
    " build it on a host with this page size",
    "late-tls": "the library finds its thread-local storage when a thread first uses it ({detail}): from 2.39 on, glibc"
    " allocates then, so that a thread's first allocation never ends. Use a library that was configured without"
    " --disable-initial-exec-tls (jemalloc_method=build)",
    "no-prof": "the library was built without --enable-prof and cannot profile",
    "invalid-conf": "the library rejects an option: {detail}",
    "crashed": "a process under the library died: {detail}",
    "timeout": "a process under the library did not end within {detail} s; the unwinder may deadlock on this host",
    "no-dump": "the library profiles but wrote no dump ({detail})",
    "broken-unwinder": "the library's unwinder is broken here: {detail}. Every stack ends inside jemalloc,"
    " so a profile would blame jemalloc itself; build with another unwinder (jemalloc_configure_options)",
}


class Proof(NamedTuple):
    """What a throw-away process under the library showed; ``failure`` names the first fault."""

    failure: str | None
    message: str
    version: str | None

    @property
    def ok(self) -> bool:
        """Whether the library profiles on this host."""
        return self.failure is None


def unsound(version: str) -> str | None:
    """Why no service must run under this version of jemalloc, and what to do.

    ``None`` when nothing is known against it. ``version`` is what ``mallctl("version")``
    says (``5.3.1-0-g81034ce1f137``) or the release alone.
    """
    return UNSOUND.get(version.split("-", 1)[0])


def distrust(library: str) -> Proof | None:
    """The failed proof of a library that others than root may replace; ``None`` when only root can.

    Also ``None`` when it is not there, which the proof itself tells.
    """
    try:
        fault = trusted_path.fault(library)
    except OSError:
        return None
    return _failed("untrusted-path", fault) if fault else None


def _late_tls(library: str) -> Proof | None:
    """The failed proof of a library that would recurse without end under another C library than this host's."""
    try:
        late = elf.read(library).finds_thread_storage_late()
    except elf.ElfError:
        return None  # it does not load, as the proof itself tells
    return _failed("late-tls", "it has no STATIC_TLS, or calls __tls_get_addr") if late else None


def prove(library: str, options: Mapping[str, malloc_conf.Value] | None = None) -> Proof:
    """Start a process under ``library`` with ``options`` on top of dense sampling, and examine its dump.

    ``options`` are MALLOC_CONF options to check with it; their ``prof_prefix``
    and automatic dumps have no effect, so that nothing is written outside a
    temporary directory.

    Raises MallocConfError when the options cannot be written as MALLOC_CONF.
    """
    known = distrust(library) or _late_tls(library)
    if known:
        return known
    directory = tempfile.mkdtemp(prefix="offheap-proof-")
    try:
        if not os.geteuid():
            os.chown(directory, NOBODY, NOBODY)
        # Files, not pipes: their size has a limit, and a process that is left over cannot keep us waiting.
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            return _prove_in(directory, library, dict(options or {}), output, errors)
    finally:
        shutil.rmtree(directory)


def _prove_in(
    directory: str, library: str, options: dict[str, malloc_conf.Value], output: IO[bytes], errors: IO[bytes]
) -> Proof:
    forced = {name: value for name, value in _OVERRULED.items() if name in options}
    forced.update(prof=True, prof_active=True, lg_prof_sample=10, prof_prefix=directory + "/proof")
    dump = directory + "/dump"
    environment = {key: os.environ[key] for key in ("PATH", "HOME", "LANG") if key in os.environ}
    # If an option is repeated, the last value wins, but the library checks both.
    texts = [malloc_conf.render(part) for part in (options, forced)]
    environment.update(LD_PRELOAD=library, MALLOC_CONF=",".join(filter(None, texts)))
    for interpreter in _INTERPRETERS:
        try:
            # AnsibleModule.run_command has no time limit, and a broken unwinder may hang.
            child = subprocess.run(  # pylint: disable=ansible-bad-function,subprocess-popen-preexec-fn
                [interpreter, "-I", "-c", _CHILD, dump],
                env=environment,
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                timeout=TIMEOUT_SECONDS,
                check=False,
                preexec_fn=_give_up,
            )
        except subprocess.TimeoutExpired:
            return _failed("timeout", str(TIMEOUT_SECONDS))
        except (FileNotFoundError, PermissionError):
            continue
        return _judge(child.returncode, _text(output), _text(errors), dump, library)
    return _failed("crashed", f"the user nobody cannot run any of {', '.join(_INTERPRETERS)}")


def _give_up() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (_MOST_BYTES, _MOST_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if not os.geteuid():
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read(_MOST_BYTES).decode("utf-8", "replace")


def _judge(status: int, output: str, errors: str, dump: str, library: str) -> Proof:
    complaint = _line_with("Unsupported system page size", errors)
    if complaint:
        return _failed("page-size", complaint)
    complaint = _line_with("cannot be preloaded", errors) or _line_with("version `", errors)
    if complaint:
        return _failed("does-not-load", complaint)
    invalid = re.findall(r"<jemalloc>: (?:Invalid|Out-of-range) [^:\n]+: (\S+)", errors)
    if "prof:true" in invalid:
        return _failed("no-prof", "")
    if invalid:
        return _failed("invalid-conf", ", ".join(invalid))
    if status:
        return _failed(
            "crashed", f"signal {-status}" if status < 0 else f"exit status {status}: {errors.strip()[-300:]}"
        )
    answer = _answer(output)
    if answer is None:
        return _failed("crashed", f"it did not answer, and said: {(output + errors).strip()[-300:]!r}")
    version = answer.get("version")
    if not answer.get("loaded"):
        return _failed("does-not-load", "it was not mapped, or defines no mallctl")
    danger = unsound(version or "")
    if danger:
        return _failed("unsound", danger, version)
    if not answer.get("prof"):
        return _failed("no-prof", "", version)
    if not answer.get("dumped") or not os.path.lexists(dump):
        return _failed("no-dump", errors.strip()[-300:] or "mallctl prof.dump failed", version)
    try:
        stacks, outside = _count_stacks(_read_dump(dump), os.path.realpath(library))
    except (OSError, ValueError, OffheapError) as error:
        return _failed("no-dump", f"what it wrote cannot be read: {error}", version)
    if not stacks:
        return _failed("no-dump", "the dump holds no sample", version)
    if outside * 2 < stacks:
        return _failed("broken-unwinder", f"only {outside} of {stacks} stacks leave the library", version)
    return Proof(None, f"{stacks} stacks sampled, {outside} of them with callers", version)


def _failed(reason: str, detail: str, version: str | None = None) -> Proof:
    return Proof(reason, _REASONS[reason].format(detail=detail), version)


def _line_with(text: str, errors: str) -> str:
    return next((line.strip() for line in errors.splitlines() if text in line), "")


def _answer(output: str) -> dict[str, Any] | None:
    """What the process said about the library; ``None`` when it said something else."""
    try:
        answer = json.loads(output)
    except (ValueError, RecursionError):
        return None
    sound = isinstance(answer, dict) and isinstance(answer.get("version", ""), str)
    return answer if sound else None


def _read_dump(path: str) -> bytes:
    """Raises OSError when it is no regular file: the process could put anything in its place, such as a pipe."""
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError("it is no regular file")
        return file.read(_MOST_BYTES)


def _count_stacks(dump: bytes, library: str) -> tuple[int, int]:
    """How many stacks a dump holds, and how many of them have a frame outside the library.

    Raises ValueError or OffheapError when it is no dump.
    """
    samples, _marker, listing = dump.partition(b"\nMAPPED_LIBRARIES:\n")
    ranges = [(mapping.start, mapping.end) for mapping in maps.parse(listing) if mapping.path == library]
    stacks = outside = 0
    for line in samples.splitlines():
        if line.startswith(b"@"):
            stacks += 1
            addresses = [int(address, 16) for address in line.split()[1:]]
            outside += any(not any(start <= address < end for start, end in ranges) for address in addresses)
    return stacks, outside
