# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What the kernel says about a process: mappings, environment, start, open files.

Every function takes the root of procfs as ``proc``, so that tests can pass a directory of plain files. A process
that ends while it is being read raises ``ProcessGone``, which every caller must expect. Of a process whose main thread
has ended and whose others go on, the answers are those of a thread that goes on. Formats: proc(5).

This module is private to the collection.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import struct
from typing import Callable, NamedTuple, TypeVar

from ansible_collections.offheap.profiler.plugins.module_utils.formats import maps
from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError

_T = TypeVar("_T")
_AUX = struct.Struct("@LL")
_AT_SECURE = 23
_DELETED = " (deleted)"
_FLAGS = re.compile(rb"^flags:\s*([0-7]{1,12})$", re.MULTILINE)
_LIMIT = 26  # where the kernel writes a limit, behind its name


class ProcfsError(OffheapError):
    """Procfs could not be read, or has unexpected contents."""


class ProcessGone(ProcfsError):
    """The process ended (or was never there)."""

    def __init__(self, pid: int) -> None:
        super().__init__(f"process {pid} no longer exists")
        self.pid = pid


class OpenFile(NamedTuple):
    """An open descriptor of something on a file system."""

    fd: int
    dev: int
    inode: int
    writable: bool


def _failure(exc: OSError, pid: int | None, path: str) -> ProcfsError:
    if pid is not None and exc.errno in (errno.ENOENT, errno.ESRCH):
        return ProcessGone(pid)
    return ProcfsError(f"cannot read {path}: {exc.strerror or exc}")


def directory(pid: int, proc: str = "/proc") -> str:
    """Where procfs shows its memory and its files: in that of a thread that goes on if its main thread has ended
    (pthread_exit(3)), since the kernel takes them from that one; else in its own, whether it is there or not. Of each
    thread procfs has a directory like a process's, which it does not list: only there are map_files."""
    own = os.path.join(proc, str(pid))
    threads: list[str] = []
    if _has_ended(own):
        with contextlib.suppress(OSError):
            threads = sorted(set(os.listdir(f"{own}/task")) - {str(pid)})
    return next((thread for name in threads if not _has_ended(thread := os.path.join(proc, name))), own)


def _has_ended(thread: str) -> bool:
    try:
        text = _content(f"{thread}/stat")
    except OSError:
        return True
    return text[text.rfind(b")") + 1 :].split()[:1] in ([b"Z"], [b"X"])


def _content(path: str) -> bytes:
    with open(path, "rb") as stream:
        return stream.read()


def _of_process(pid: int, name: str, proc: str, read: Callable[[str], _T]) -> _T:
    """What ``read`` gets from the file: looks again, for a thread that goes on, only after nothing or an error."""
    with contextlib.suppress(OSError):
        found = read(os.path.join(proc, str(pid), name))
        if found:
            return found
    path = os.path.join(directory(pid, proc), name)
    try:
        return read(path)
    except OSError as exc:
        raise _failure(exc, pid, path) from exc


def _read(proc: str, name: str, pid: int | None = None) -> bytes:
    if pid is not None:
        return _of_process(pid, name, proc, _content)
    path = os.path.join(proc, name)
    try:
        return _content(path)
    except OSError as exc:
        raise _failure(exc, None, path) from exc


def threads(pid: int) -> list[int]:
    """The numbers of its threads. Raises ProcessGone if it has ended."""
    path = f"/proc/{pid}/task"
    try:
        return [int(name) for name in os.listdir(path)]
    except OSError as exc:
        raise _failure(exc, pid, path) from exc


def mappings(pid: int, proc: str = "/proc") -> list[maps.Mapping]:
    """The process's mappings, by address. Empty for a kernel thread and for a zombie."""
    try:
        return maps.parse(_read(proc, "maps", pid))
    except maps.MapsError as exc:
        raise ProcfsError(str(exc)) from exc


def mapped_files(pid: int, proc: str = "/proc") -> dict[str, list[maps.Mapping]]:
    """The mappings that are backed by a file, by path."""
    found: dict[str, list[maps.Mapping]] = {}
    try:
        for line in _read(proc, "maps", pid).split(b"\n"):
            if b"/" in line:  # in a process with many mappings, most have no path
                mapping = maps.parse_line(line)
                if mapping.is_file:
                    found.setdefault(mapping.path, []).append(mapping)
    except maps.MapsError as exc:
        raise ProcfsError(str(exc)) from exc
    return found


def environ(pid: int, proc: str = "/proc") -> dict[str, str]:
    """The environment that the process was started with; if a name is repeated, the first wins, as in getenv."""
    found: dict[str, str] = {}
    for entry in _read(proc, "environ", pid).split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if equals:
            found.setdefault(os.fsdecode(name), os.fsdecode(value))
    return found


def auxiliary(pid: int, proc: str = "/proc") -> bytes:
    """What the kernel has told the program that it runs (getauxval(3)): where it lies, among others."""
    return _read(proc, "auxv", pid)


def is_secure(pid: int, proc: str = "/proc") -> bool:
    """Whether the kernel has started it so that the loader trusts no variable (AT_SECURE, getauxval(3))."""
    content = auxiliary(pid, proc)
    pairs = _AUX.iter_unpack(content[: len(content) // _AUX.size * _AUX.size])
    return any(kind == _AT_SECURE and value for kind, value in pairs)


def security_label(pid: int, proc: str = "/proc") -> str:
    """The domain or profile that a security module has put the process in; empty if there is none."""
    try:
        return _read(proc, "attr/current", pid).rstrip(b"\0\n").decode("ascii", "replace")
    except ProcfsError:
        return ""  # no security module


def cmdline(pid: int, proc: str = "/proc") -> list[str]:
    """The arguments, the program's name first. Empty for a kernel thread and for a zombie."""
    text = _read(proc, "cmdline", pid)
    if text.endswith(b"\0"):
        text = text[:-1]
    return [os.fsdecode(argument) for argument in text.split(b"\0")] if text else []


def exe(pid: int, proc: str = "/proc") -> str | None:
    """The path of the program's file, without the kernel's " (deleted)"; None for a kernel thread."""
    try:
        target = _of_process(pid, "exe", proc, os.readlink)
    except ProcessGone:
        if os.path.isdir(os.path.join(proc, str(pid))):
            return None
        raise
    return target[: -len(_DELETED)] if target.endswith(_DELETED) else target


def pid_namespace(pid: int, proc: str = "/proc") -> int:
    """The number of the namespace that its pid is of (pid_namespaces(7)); 0 where the kernel does not tell."""
    number = _of_process(pid, "ns/pid", proc, os.readlink)[len("pid:[") : -1]
    return int(number) if number.isdigit() else 0


def start_ticks(pid: int, proc: str = "/proc") -> int:
    """When the process started, in clock ticks since boot. With the pid it names one process of this boot."""
    return _of_stat(pid, 22, proc)


def runs(pid: int, started: int, proc: str = "/proc") -> bool:
    """Whether the process that began at these ``start_ticks`` still runs: one that its parent has not noticed to have
    ended does not."""
    try:
        return start_ticks(pid, proc) == started and not status(pid, proc).get("State", "Z").startswith("Z")
    except ProcfsError:
        return False


def cpu_ticks(pid: int, proc: str = "/proc") -> tuple[int, int]:
    """The CPU time of all its threads, ended ones included, in clock ticks: (outside the kernel, inside)."""
    return _of_stat(pid, 14, proc), _of_stat(pid, 15, proc)


def page_faults(pid: int, proc: str = "/proc") -> int:
    """Those of all its threads, ended ones included, with and without a disk."""
    return _of_stat(pid, 10, proc) + _of_stat(pid, 12, proc)


def _of_stat(pid: int, field: int, proc: str) -> int:
    """A field by its number in proc(5)."""
    text = _read(proc, "stat", pid)
    # The second field is the program's name in parentheses and may hold anything, parentheses included.
    fields = text[text.rfind(b")") + 1 :].split()
    try:
        return int(fields[field - 3])
    except (IndexError, ValueError) as exc:
        raise ProcfsError(f"no field {field} in the stat of process {pid}") from exc


def start_time(pid: int, proc: str = "/proc") -> float:
    """When the process started, in seconds since the epoch (to a second, like boot_time())."""
    return boot_time(proc) + start_ticks(pid, proc) / float(os.sysconf("SC_CLK_TCK"))


def boot_time(proc: str = "/proc") -> float:
    """When the kernel started, in seconds since the epoch."""
    found = re.search(rb"^btime ([0-9]{1,12})$", _read(proc, "stat"), re.MULTILINE)
    if not found:
        raise ProcfsError(f"no btime in {proc}/stat")
    return float(found[1])


def boot_id(proc: str = "/proc") -> str:
    """The random id of this boot, as "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"."""
    return _read(proc, "sys/kernel/random/boot_id").decode("ascii", "replace").strip()


def status(pid: int, proc: str = "/proc") -> dict[str, str]:
    """The fields of status, as the kernel writes them: ``VmRSS`` is ``1234 kB``."""
    found = _fields(_read(proc, "status", pid))
    if not found.get("State", "").startswith("Z"):
        return found
    del found["State"]  # the ids that are there are those of the process
    path = f"{directory(pid, proc)}/status"
    try:
        return {**_fields(_content(path)), **found}
    except OSError as exc:
        raise _failure(exc, pid, path) from exc


def _fields(text: bytes) -> dict[str, str]:
    pairs = [line.partition(":") for line in text.decode("utf-8", "replace").split("\n")]
    return {key: value.strip() for key, _colon, value in pairs}


def own_pids(pid: int, proc: str = "/proc") -> list[int]:
    """Its pids in its namespaces, from the one of ``proc`` to the one that it sees itself; none if nobody knows, as
    before Linux 4.1."""
    try:
        return [int(word) for word in status(pid, proc).get("NSpid", "").split()]
    except (ProcfsError, ValueError):
        return []


def limits(pid: int, proc: str = "/proc") -> dict[str, int]:
    """The soft limits (setrlimit(2)) that it has, as the kernel names them: ``Max data size`` in bytes."""
    found = {}
    for line in _read(proc, "limits", pid).decode("ascii", "replace").split("\n")[1:]:
        name, value = line[:_LIMIT].strip(), line[_LIMIT:].split()[:1]
        if value and value[0].isdigit():
            found[name] = int(value[0])
    return found


def resident(pid: int, proc: str = "/proc") -> int:
    """Its resident memory in bytes; 0 if it is gone or a kernel thread."""
    try:
        return int(status(pid, proc).get("VmRSS", "0 kB").split()[0]) << 10
    except (ProcfsError, ValueError, IndexError):
        return 0


def pids(proc: str = "/proc") -> list[int]:
    """All processes, by number."""
    try:
        return sorted(int(name) for name in os.listdir(proc) if name.isdigit() and name.isascii())
    except OSError as exc:
        raise _failure(exc, None, proc) from exc


def open_files(pid: int, proc: str = "/proc") -> list[OpenFile]:
    """The process's descriptors, without those closed meanwhile."""
    return _of_process(pid, "fd", proc, _open_files)


def _open_files(descriptors: str) -> list[OpenFile]:
    found = []
    for name in os.listdir(descriptors):
        try:
            status = os.stat(os.path.join(descriptors, name))
            flags = _FLAGS.search(_content(f"{descriptors}info/{name}"))
        except OSError:
            continue
        writable = flags is not None and int(flags[1], 8) & os.O_ACCMODE != os.O_RDONLY
        found.append(OpenFile(int(name), status.st_dev, status.st_ino, writable))
    return found
