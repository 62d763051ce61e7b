# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Have a running process open a library and call a function of it, without a restart.

One thread does it, which is held meanwhile (held_thread.py). Everything that can be known is looked at before it is
held. What the process's files say is not trusted: a wrong address harms that process alone.

All of it happens in a child process of ours. Whatever becomes of that one, the kernel lets the thread go with it.

This module is private to the collection.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import platform
import time
from dataclasses import asdict, dataclass
from typing import Any, Callable, NamedTuple

from ansible_collections.offheap.profiler.plugins.module_utils.formats import elf
from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
from ansible_collections.offheap.profiler.plugins.module_utils.formats.maps import Mapping
from ansible_collections.offheap.profiler.plugins.module_utils.host import forked, procfs, trusted_path
from ansible_collections.offheap.profiler.plugins.module_utils.tracing import (
    held_thread,
    lent_memory,
    other_root,
    seccomp_filters,
    urgency,
)
from ansible_collections.offheap.profiler.plugins.module_utils.tracing.running_trace import TraceError
from ansible_collections.offheap.profiler.plugins.module_utils.tracing.thread_registers import MACHINES, Machine

_RTLD_NOW, _RTLD_DLOPEN = 2, 0x80000000
_LARGEST_TEXT = 16 << 20
_LARGEST_ANSWER = 1 << 16
_LONGEST_REASON = 500
# Seconds more than it may take: for the child to say so itself.
_GRACE = 5.0
# Seconds to leave the loader to others.
_AFTER_OTHERS = 0.01
_POINTER = 8
_UNWINDER = "libgcc_s.so.1"
_NOBODY_TRACES = 3
_FILTERS = "2"  # in the field Seccomp of status


class InjectError(TraceError):
    """Nothing can be opened in the process. The message says why, and what to do."""


@dataclass(frozen=True)
class Injected:
    """What the function has returned; what the thread was waiting in, and for how long it was held (seconds).

    ``path`` is where the process has opened the library, as its mappings say.
    """

    path: str
    result: int
    wait: str
    held: float


class Target(NamedTuple):
    """A process that can be held, and the addresses of its dlopen and dlerror; ``open_flags`` are for dlopen.

    ``function`` is where ours is in the library; ``program``, what the kernel has told the program that it runs.
    """

    pid: int
    start_ticks: int
    program: bytes
    machine: Machine
    ways: tuple[int, ...]
    open: int
    open_flags: int
    error: int | None
    function: int


def examine(pid: int, library: str, symbol: str, proc: str = "/proc") -> Target:
    """Find out whether the library can be opened in the process, without touching it.

    Raises InjectError, ElfError, ProcfsError.
    """
    functions = elf.read(library).functions([symbol])
    if symbol not in functions:
        raise InjectError(f"{library} has no function {symbol}: it is not the agent, or an older one")
    ticks, program = procfs.start_ticks(pid, proc), procfs.auxiliary(pid, proc)
    _check_state(pid, proc)
    machine = _machine(pid, library, proc)
    mapped = procfs.mapped_files(pid, proc)
    libc = _c_library(pid, mapped, proc)
    ways = _ways(pid, machine, libc, proc)
    address, flags, error = _loader(pid, mapped, proc)
    return Target(pid, ticks, program, machine, ways, address, flags, error, functions[symbol])


def have_library(
    pid: int, library: str, symbol: str, settings: bytes, patience: float = 10.0, held: float = 5.0
) -> Injected:
    """Have the process open the library and call ``int symbol(const char *settings)``.

    A thread is waited for so long (``patience``, seconds), and ``held`` so long at most, and as long again while others
    have the loader. Raises TraceError, ElfError, ProcfsError.
    """
    target = examine(pid, library, symbol)
    with contextlib.ExitStack() as stack:
        content = b""
        try:
            path = stack.enter_context(other_root.visible(pid, library))
        except other_root.LendError:
            if not other_root.has_proc(pid):
                raise
            path, content = lent_memory.MAPPED, _content(library)
        if len(os.fsencode(path)) > held_thread.LONGEST_TEXT or len(settings) > held_thread.LONGEST_TEXT:
            raise InjectError(f"the path {path} or the settings are too long")
        before = _companions(stack, pid, library)
        stack.enter_context(urgency.calm_afterwards(pid))
        try:
            answer = _in_a_child(
                lambda: asdict(_inject(target, path, content, before, settings, patience, held)),
                2 * (patience + held) + _GRACE,
            )
        except held_thread.LetGo as exc:
            exc.path = path
            raise
    return Injected(**answer)


def _content(library: str) -> bytes:
    with open(library, "rb") as file:
        return file.read()


def _companions(stack: contextlib.ExitStack, pid: int, library: str) -> list[str]:
    """Where the process finds what is to be opened before the library, as it has to be lent: what the library needs,
    and libgcc's unwinder, which the agent takes."""
    mapped = procfs.mapped_files(pid)
    libc = next((path for path in mapped if os.path.basename(path).startswith(("libc.so.6", "libc-2."))), "")
    found = []
    for name in [*elf.read(library).needed, _UNWINDER] if libc else []:
        file = os.path.realpath(os.path.join(os.path.dirname(libc), name))
        if file in mapped or os.path.exists(f"{procfs.directory(pid)}/root{file}") or not os.path.exists(file):
            continue
        with contextlib.suppress(other_root.LendError, OSError):
            if not trusted_path.fault(file):
                found.append(stack.enter_context(other_root.visible(pid, file)))
    return found


def _inject(
    target: Target, path: str, content: bytes, before: list[str], settings: bytes, patience: float, seconds: float
) -> Injected:
    """With a ``content``, the library is lent in memory. What is opened ``before`` may fail to: the library says so."""
    if _has_filters_of_its_own(target.pid):
        with held_thread.held(target.pid, target.machine, target.ways, patience) as thread:
            filters = thread.filters()
        seccomp_filters.check(target.pid, filters, platform.machine(), in_memory=bool(content))
    copies = lent_memory.copies(target.pid) if content else 0
    deadline, longest = time.monotonic() + seconds, 0.0
    while True:
        thread = held_thread.held(target.pid, target.machine, target.ways, patience)
        try:
            result = _opened(target, thread, path, content, copies, before, settings, seconds)
        except held_thread.LoaderBusy:
            longest = max(longest, thread.seconds)
            if time.monotonic() > deadline:
                raise
            time.sleep(_AFTER_OTHERS)
        else:
            return Injected(path, result, thread.name, max(longest, thread.seconds))


def _opened(
    target: Target,
    held: held_thread.Held,
    path: str,
    content: bytes,
    copies: int,
    before: list[str],
    settings: bytes,
    seconds: float,
) -> int:
    """What the library's function returns, called by a thread that is held."""
    with held as thread:
        if procfs.start_ticks(target.pid) != target.start_ticks:
            raise procfs.ProcessGone(target.pid)
        if procfs.auxiliary(target.pid) != target.program:
            raise InjectError(f"process {target.pid} has begun to run another program (exec) meanwhile. Try again")
        deadline = time.monotonic() + seconds
        for one in before:
            thread.call(target.open, os.fsencode(one), target.open_flags, deadline=deadline, gives_way=True)
        number = _in_memory(target, thread, content) if content else -1
        opened = lent_memory.path(number, copies) if content else path
        try:
            file = os.fsencode(opened)
            handle = thread.call(target.open, file, target.open_flags, deadline=deadline, gives_way=True)
        except held_thread.LoaderBusy:
            if content:
                thread.system_call(target.machine.close, number)
            raise
        if content:
            thread.system_call(target.machine.close, number)
        if not handle:
            raise InjectError(f"process {target.pid} cannot open {opened}: {_reason(target, thread, deadline)}")
        # A handle is the loader's struct link_map (link.h), which begins with where the library lies.
        base = int.from_bytes(thread.read(handle, _POINTER), "little")
        result = thread.call((base + target.function) & ((1 << 64) - 1), settings, deadline=deadline)
    result &= 0xFFFFFFFF
    return result - (1 << 32) if result >> 31 else result


def _in_memory(target: Target, thread: held_thread.Held, content: bytes) -> int:
    """A descriptor of the process with the library. If the thread has to be let go later, it stays open."""
    number, flags = -errno.EINVAL, [lent_memory.MAY_EXECUTE, 0]
    while number == -errno.EINVAL and flags:
        flag = lent_memory.CLOSE_ON_EXEC | flags.pop(0)
        number = thread.system_call(target.machine.memfd_create, lent_memory.NAME, flag)
    if number < 0:
        raise InjectError(f"process {target.pid} has no memory for the library: {os.strerror(-number)}")
    lent_memory.fill(target.pid, number, content)
    return number


def _has_filters_of_its_own(pid: int) -> bool:
    """Beside those of a container that we run in as well: these the kernel shows to nobody in it, and we live with
    them."""
    theirs, ours = (procfs.status(one) for one in (pid, os.getpid()))
    count = [int(status.get("Seccomp_filters", "0")) for status in (theirs, ours)]
    return theirs.get("Seccomp") == _FILTERS and not (ours.get("Seccomp") == _FILTERS and count[0] <= count[1])


def _reason(target: Target, thread: held_thread.Held, deadline: float) -> str:
    """What the loader says."""
    if target.error is None:
        return "its loader does not say why"
    address = thread.call(target.error, deadline=deadline)
    text = thread.read(address, _LONGEST_REASON).split(b"\0")[0] if address else b""
    return text.decode("utf-8", "replace") or "its loader does not say why"


def _machine(pid: int, library: str, proc: str) -> Machine:
    try:
        program = elf.read(os.path.join(procfs.directory(pid, proc), "exe"))
    except elf.ElfError as exc:
        raise InjectError(f"process {pid} has no program that can be read: {exc}") from exc
    ours = elf.read(library)
    if program.bits != 64:
        raise InjectError(f"process {pid} is a 32-bit program; perf can say what makes it grow (source: perf)")
    if (ours.bits, ours.machine) != (program.bits, program.machine):
        raise InjectError(f"{library} is for {ours.machine_name}, process {pid} is {program.machine_name}")
    if program.interpreter is None:
        raise InjectError(
            f"process {pid} is a static program (as many in Go are): nothing can be opened in it, and its malloc is its"
            " own. perf can say what makes it grow (source: perf)"
        )
    machine = MACHINES.get(program.machine_name)
    if machine is None or program.machine_name != platform.machine():
        raise InjectError(f"attaching is for {' and '.join(MACHINES)}, not for {program.machine_name} here")
    return machine()


def _check_state(pid: int, proc: str) -> None:
    status = procfs.status(pid, proc)
    state, tracer = status.get("State", "")[:1], status.get("TracerPid", "0")
    if state in ("Z", "X"):
        raise InjectError(f"process {pid} has ended, and its parent has not noticed yet")
    if state in ("T", "t") and tracer == "0":
        raise InjectError(f"process {pid} is stopped: let it go on first (kill -CONT {pid})")
    if tracer != "0":
        raise InjectError(
            f"process {pid} is traced already, by process {tracer} (a debugger or strace). End that one first"
        )
    if status.get("Seccomp") == "1":
        raise InjectError(f"process {pid} is in seccomp's strict mode: any call but read and write would kill it")
    if "shstk" in status.get("x86_Thread_features", "").split():
        raise InjectError(f"process {pid} has a shadow stack, which lets no thread be lent. perf can trace it")
    if _ptrace_scope(proc) == _NOBODY_TRACES:
        raise InjectError(
            "the kernel lets nobody trace until the next boot (kernel.yama.ptrace_scope=3). perf can say what makes it"
            " grow (source: perf)"
        )
    if not _knows_us(pid, proc):
        raise InjectError(
            f"process {pid} is in a user namespace in which we are nobody, as in a rootless container: trace it in"
            " there"
        )


def _knows_us(pid: int, proc: str) -> bool:
    """Whether our user is one in its user namespace as well: the agent answers root, and nobody else's user."""
    path = os.path.join(proc, str(pid), "uid_map")
    try:
        with open(path, encoding="ascii") as file:
            ranges = [[int(word) for word in line.split()] for line in file]
    except (OSError, ValueError) as exc:
        raise InjectError(f"the namespaces of process {pid} cannot be looked at: {exc}") from exc
    return any(outside <= os.geteuid() < outside + count for _inside, outside, count in ranges)


def _ptrace_scope(proc: str) -> int:
    """Yama's; 0 where the kernel has no Yama."""
    try:
        with open(os.path.join(proc, "sys/kernel/yama/ptrace_scope"), encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 0


def _c_library(pid: int, mapped: dict[str, list[Mapping]], proc: str) -> list[Mapping]:
    """The mappings of its glibc. Raises InjectError for another C library, or none."""
    names = {os.path.basename(path): path for path in mapped}
    found = [path for name, path in names.items() if name == "libc.so.6" or name.startswith("libc-2.")]
    if found:
        return mapped[found[0]]
    if any(name.startswith(("ld-musl", "libc.musl")) for name in names):
        raise InjectError(f"process {pid} uses musl, not glibc. perf can say what makes it grow (source: perf)")
    raise InjectError(f"process {pid} has no glibc mapped (libc.so.6). perf can say what makes it grow (source: perf)")


def _ways(pid: int, machine: Machine, libc: list[Mapping], proc: str) -> tuple[int, ...]:
    kernel = [one for one in procfs.mappings(pid, proc) if one.path == "[vdso]"]
    try:
        memory = os.open(os.path.join(procfs.directory(pid, proc), "mem"), os.O_RDONLY | os.O_CLOEXEC)
    except OSError as exc:
        raise InjectError(f"the memory of process {pid} may not be read: {exc.strerror}") from exc
    try:
        for one in [*libc, *kernel]:
            if one.executable:
                text = os.pread(memory, min(one.end - one.start, _LARGEST_TEXT), one.start)
                ways = machine.returns(text, one.start)
                if ways:
                    return ways
    except OSError as exc:
        raise InjectError(f"the memory of process {pid} cannot be read: {exc.strerror}") from exc
    finally:
        os.close(memory)
    raise InjectError(f"process {pid} has a C library in which no way back is known")


def _loader(pid: int, mapped: dict[str, list[Mapping]], proc: str) -> tuple[int, int, int | None]:
    """The address of dlopen, its flags, and the address of dlerror."""
    places: dict[str, int] = {}
    for path, mappings in mapped.items():
        name = os.path.basename(path)
        if name == "libc.so.6" or name.startswith(("libc-2.", "libdl.so.2", "libdl-2.")):
            for function, address in _functions(pid, mappings, proc).items():
                places.setdefault(function, address)
    if "dlopen" in places:
        return places["dlopen"], _RTLD_NOW, places.get("dlerror")
    if "__libc_dlopen_mode" in places:
        return places["__libc_dlopen_mode"], _RTLD_NOW | _RTLD_DLOPEN, None
    raise InjectError(f"process {pid} has a C library without dlopen")


def _functions(pid: int, mappings: list[Mapping], proc: str) -> dict[str, int]:
    """Where in the process these functions of a mapped file are."""
    first = mappings[0]
    file = os.path.join(procfs.directory(pid, proc), "map_files", first.range_name)
    try:
        library = elf.read(file)
        start = library.address_of_offset(first.offset)
        found = library.functions(("dlopen", "dlerror", "__libc_dlopen_mode"))
    except elf.ElfError as exc:
        raise InjectError(f"the C library of process {pid} cannot be read: {exc}") from exc
    places = {name: first.start - start + value for name, value in found.items()}
    code = [one for one in mappings if one.executable]
    return {name: place for name, place in places.items() if any(one.start <= place < one.end for one in code)}


def _in_a_child(work: Callable[[], dict[str, Any]], seconds: float) -> dict[str, Any]:
    """What ``work`` returns, in a child process that is killed after so long. Raises the TraceError that it raises."""
    parts: list[bytes] = []
    try:
        forked.run(
            "the process that attaches", lambda write: write(_answer(work)), parts.append, _LARGEST_ANSWER, seconds
        )
    except forked.ForkedError as exc:  # with its end, the kernel has let the thread go
        raise held_thread.LetGo(str(exc)) from exc
    answer = json.loads(b"".join(parts))
    if answer["error"] is None:
        return dict(answer["result"])
    error = held_thread.LetGo if answer["let_go"] else InjectError
    raise error(answer["error"])


def _answer(work: Callable[[], dict[str, Any]]) -> bytes:
    """In the child."""
    urgency.hurry_ourselves()  # a held thread waits for us
    answer: dict[str, Any] = {"result": None, "error": None, "let_go": False}
    try:
        answer["result"] = work()
    except OffheapError as exc:
        answer["error"], answer["let_go"] = str(exc), isinstance(exc, held_thread.LetGo)
    return json.dumps(answer).encode("ascii")
