# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The system calls of what our code does on a host, as strace(1) sees them, and docs/system_calls.md, which lists them.

system_calls.py        writes the page's tables anew
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / ".cache" / "collections"))

import pytest

from ansible_collections.offheap.profiler.tests.gates.files import ROOT
from ansible_collections.offheap.profiler.tests.unit.fakes.units import Systemctl, shown

PAGE = ROOT / "docs" / "system_calls.md"
_COLLECTIONS = ROOT / ".cache" / "collections"
_OURS = "ansible_collections.offheap.profiler.plugins"
_AGENT = ROOT / "tests" / "agent" / "programs"
#: what is called when Python has started, and what is to be seen begins
_BEGINS = "/offheap-begins"
#: calls on the caller's own memory, time, threads and identity, and on descriptors that it has
PLAIN = frozenset(
    """
    accept4 arch_prctl brk clock_nanosleep clone clone3 close close_range dup dup2 dup3 epoll_create1 epoll_ctl
    epoll_wait exit exit_group fadvise64 fcntl fdatasync flock fork fstat fstatfs fsync ftruncate futex getcwd
    getdents64 getegid geteuid getgid getpeername getpid getppid getrandom getresgid getresuid getsockname getsockopt
    gettid getuid ioctl listen lseek madvise memfd_create mmap mprotect mremap munmap nanosleep pipe pipe2 poll ppoll
    pread64 pselect6 pwrite64 read recvfrom recvmsg restart_syscall rseq rt_sigaction rt_sigprocmask rt_sigreturn
    rt_sigtimedwait sched_getaffinity sched_getscheduler sched_yield select sendfile sendto set_robust_list
    set_tid_address setsockopt shutdown sigaltstack socket socketpair sysinfo uname vfork wait4 waitid write writev
""".split()
)
_WORDS = {
    **dict.fromkeys(
        "stat lstat newfstatat statx access faccessat faccessat2 readlink readlinkat statfs".split(), "stat"
    ),
    **dict.fromkeys(("unlink", "unlinkat", "rmdir"), "unlink"),
    **dict.fromkeys(("rename", "renameat", "renameat2"), "rename"),
    **dict.fromkeys(("mkdir", "mkdirat"), "mkdir"),
    **dict.fromkeys(("fchmod", "chmod", "fchmodat"), "chmod"),
    **dict.fromkeys(("fchown", "chown", "lchown", "fchownat"), "chown"),
    **dict.fromkeys(("utimensat", "futimens"), "utimensat"),
}
_LINE = re.compile(r"(\d+) +(\w+)\((.*)$")
_RESUMED = re.compile(r"(\d+) +<\.\.\. \w+ resumed>(.*)$")
_AT = re.compile(r'(?:AT_FDCWD|\d+)<([^>]*)>, "((?:[^"\\]|\\.)*)"')
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_DESCRIPTOR = re.compile(r"\d+<([^>]*)>")
_STARTED = re.compile(r"\) += (\d+)")
# Where this machine has one, but for /tmp, which has other files as well.
_TMPFS = [
    words[4] for line in Path("/proc/self/mountinfo").read_text().splitlines() if "tmpfs" in (words := line.split())
]
_TMPFS = sorted({*_TMPFS, "/dev/shm"} - {"/", "/tmp"})
# What differs from one process, file or run to the next.
_ANY = (
    (r"^/proc/(?:self|thread-self)/fd/\d+", "/proc/self/fd/<n>"),
    (r"^/proc/\d+(?=/|$)", "/proc/<pid>"),
    (rf"^/proc/<pid>/root(?:{'|'.join(map(re.escape, _TMPFS))})$", "/proc/<pid>/root/<tmpfs>"),
    (r"/task/\d+", "/task/<tid>"),
    (r"/zram\d+", "/zram<n>"),
    (r"/(fd|fdinfo)/\d+", r"/\1/<n>"),
    (r"/map_files/[0-9a-f]+-[0-9a-f]+", "/map_files/<range>"),
    (r"/hsperfdata_[^/]+/\d+", "/hsperfdata_<user>/<pid>"),
    (r"_pid\d+$", "_pid<pid>"),
    (r"/perf-\d+\.map$", "/perf-<pid>.map"),
    (r"/\d+\.sock$", "/<pid>.sock"),
    (r"/tracing/\d+-[0-9a-f]+", "/tracing/<trace>"),
    (r"/jeprof\.[^/]*\.heap", "/<dump>"),
    (r"/\.jeprof\.[^/]*\.heap\.part", "/.<dump>.part"),
    (r"/core\.\w+$", "/core.<name>"),
    (r"/app\.service", "/<unit>"),
    (r"/[a-z0-9_]+-linux-gnu/", "/<platform>/"),
)


def traced(code: str, directory: Path) -> str:
    """What strace writes of the part of a Python program that follows ``BEGIN``. It must end well."""
    log, program = directory / "calls", directory / "program.py"
    # In two parts, since what Python reads of the program is in the log, too.
    begin = f"import os; os.path.exists({_BEGINS[:5]!r} + {_BEGINS[5:]!r})"
    program.write_text(f"import sys; sys.path.insert(0, {str(_COLLECTIONS)!r})\n{code.replace('BEGIN', begin)}\n")
    command = ["strace", "-f", "-y", "-s", "400", "-o", str(log), sys.executable, "-IB", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    before, begun, text = log.read_text(errors="replace").partition(_BEGINS)
    assert begun, before[-1000:]
    return text.partition("\n")[2]


def told(text: str, shown: Mapping[str, str]) -> set[tuple[str, str]]:
    """Each kind of call with what it is on. ``shown`` are names for the beginnings of paths; "" leaves a path out."""
    parents: dict[str, str] = {}
    lines = [*_whole(text)]
    for pid, call, rest in lines:
        if call in ("clone", "clone3", "fork", "vfork") and (started := _STARTED.search(rest)):
            parents[started[1]] = pid
    others: set[str] = set()
    found = set()
    for pid, call, rest in lines:
        if pid in others or parents.get(pid) in others:
            others.add(pid)  # another program, which systemctl is
            continue
        if call == "execve":
            if rest.endswith(" = 0"):
                others.add(pid)
                found.add(("execve", os.path.basename(_path(rest))))
        elif call not in PLAIN and "AT_EMPTY_PATH" not in rest:
            word, place = _said(call, rest)
            name = _shown(place, shown)
            if name is not None:
                found.add((word, name))
    return found


def _whole(text: str) -> Iterator[tuple[str, str, str]]:
    """(pid, call, arguments and result) of each call, also of one that others have interrupted."""
    begun: dict[str, str] = {}
    for line in text.splitlines():
        if line.endswith("<unfinished ...>"):
            begun[line.split()[0]] = line[: -len("<unfinished ...>")].rstrip()
            continue
        resumed = _RESUMED.match(line)
        match = _LINE.match(begun.pop(resumed[1], "") + resumed[2] if resumed else line)
        if match:
            yield match[1], match[2], match[3]


def _said(call: str, rest: str) -> tuple[str, str]:
    if call in ("open", "openat"):
        if "O_PATH" in rest:
            return "stat", _path(rest)
        writes = any(flag in rest for flag in ("O_WRONLY", "O_RDWR"))
        way = "create" if "O_CREAT" in rest else "write" if writes else "list" if "O_DIRECTORY" in rest else "read"
        return f"open, to {way}", _path(rest)
    if call in _WORDS:
        return _WORDS[call], _path(rest)
    if call in ("connect", "bind"):
        found = _STRING.search(rest)
        return call, found[1] if found and "sun_path" in rest else "the network"
    if call == "ptrace":
        return call, rest.partition(",")[0]
    if call in ("kill", "tkill", "tgkill"):
        return "kill", rest.split(")")[0].split(", ")[-1]
    return call, _path(rest) or "-"


def _path(rest: str) -> str:
    at = _AT.match(rest)
    if at:
        return os.path.join(at[1], at[2]) if at[2] else at[1]
    descriptor = _DESCRIPTOR.match(rest)
    if descriptor:
        return descriptor[1]
    found = _STRING.search(rest)
    return found[1] if found else ""


def _shown(path: str, shown: Mapping[str, str]) -> str | None:
    for beginning, name in shown.items():
        if path.startswith(beginning):
            if not name:
                return None
            path = name + path[len(beginning) :]
            break
    for pattern, name in _ANY:
        path = re.sub(pattern, name, path)
    return path


def _dump_of(pid: int) -> bytes:
    head = b"heap_v2/524288\n  t*: 1: 100 [0: 0]\n@ 0x1\n  t*: 1: 100 [0: 0]\n\nMAPPED_LIBRARIES:\n"
    return head + Path(f"/proc/{pid}/maps").read_bytes()


_JVM = """public class Waits {
  public static void main(String[] words) throws Exception { System.out.println("up"); Thread.sleep(600_000); }
}"""
_COLLECTION = """
from {ours}.module_utils.formats import pack_request as asked
from {ours}.module_utils.session import fetch
from {ours}.module_utils.runtimes import jvm_heap, live_perf_map
from {ours}.module_utils.spool import zstd
zstd.library()
BEGIN
options = {{"units": [], "max_dump": 1 << 30, "max_captures": 9}}
found = fetch.ANSWERS["find"]({{"options": options, "ask_jvms": True}}, None)
dumps = [{{key: one[key] for key in ("unit", "name", "identity")}} for one in found["captures"]]
images = [one for one in found["images"] if one["path"] == {program!r}]
assert len(dumps) == 2 and len(images) == 1 and any(one["jvm"] for one in found["captures"]), found
beside = [{{**dump, "member": "x", "identity": one["lives"]}} for dump, one in zip(dumps, found["captures"])]
maps = [{{**dump, "member": "m", "identity": None, **found["processes"][one["process"]]}} for dump, one in
        zip(dumps, found["captures"])]
request = {{"dumps": [{{**one, "member": "d"}} for one in dumps], "lives": beside, "holders": [], "maps": maps,
            "images": [{{**one, "member": "i", "sources": [one["source"], one["path"]]}} for one in images]}}
fetch.ANSWERS["stream"]({{"request": request}}, lambda block: None)
assert fetch.ANSWERS["mark"]({{"dumps": dumps, "delete": False}}, None)["collected"] == 2
"""
_TRIAGE = """
from {ours}.modules import native_memory_info
from {ours}.module_utils.host import cgroup
from {ours}.module_utils.memory import files_in_memory
files_in_memory._LEAST = 1 << 60  # what lies there is this machine's
cgroup._UNIFIED = (systemd.CGROUP_ROOTS[0],)
BEGIN
samples = [sample] = native_memory_info.of_units(["app"], 20)
native_memory_info.add_host(samples)
native_memory_info.add_files(samples, print)
assert len(sample["processes"]) == 2 and sample["cgroup"]["current"], sample
"""
_TRACE = """
from {ours}.module_utils.host import trusted_path
from {ours}.module_utils.tracing import running_trace, windows
trusted_path.fault = lambda path: None  # everybody may write to /tmp, where a test's library is
wanted = running_trace.Wanted("app", {library!r}, 5, 1, 1 << 19, 1 << 20, {pid}, "attach")
BEGIN
assert len(windows.trace(wanted).dumps) == 1
"""
_PLACES = """
from {ours}.module_utils.host import places, systemd
from {ours}.module_utils.spool import directory
places.SPOOLS, places.SOCKETS, places.TRACING = {spools!r}, {sockets!r}, {sockets!r} + "/tracing"
directory.Root.__init__.__defaults__ = ({spools!r},)
systemd.CGROUP_ROOTS = ({groups!r},)
"""


class Calls:
    """A unit with two processes, one of which is a JVM, on a host of which systemctl is made up."""

    def __init__(self, directory: Path, systemctl: Systemctl, pid: int, jvm: int) -> None:
        self._directory, self._pid, self._groups = directory, pid, systemctl.cgroups
        self._program = str(directory / "hooked")
        self._spools, self._sockets = directory / "spools", directory / "run"
        spool = self._spools / "app.service"
        spool.mkdir(parents=True)
        self._sockets.mkdir()
        for one in (pid, jvm):
            (spool / f"jeprof.{one}.0.m0.heap").write_bytes(_dump_of(one))
            for suffix in ("json", "lives", "holders"):
                (spool / f"jeprof.{one}.0.m0.heap.{suffix}").write_bytes(b"{}")
        systemctl.states(shown("/usr/bin/app", Id="app.service", ActiveState="active", ControlGroup="/app.service"))
        systemctl.processes("/app.service", pid, jvm)
        (self._groups / "app.service" / "memory.current").write_text("4096\n")

    def of(self, code: str) -> set[tuple[str, str]]:
        """Of one of the tasks."""
        library = str(self._directory / "liboffheap.so")
        places = {"spools": str(self._spools), "sockets": str(self._sockets), "groups": str(self._groups)}
        text = (_PLACES + code).format(ours=_OURS, program=self._program, library=library, pid=self._pid, **places)
        named = {
            places["spools"]: "/var/lib/offheap",
            places["sockets"]: "/run/offheap",
            places["groups"]: "/sys/fs/cgroup",
            library: "/opt/offheap/agent/<version>/liboffheap.so",
            self._program: "<a file that is mapped>",
        }
        # What Python and the loader open for themselves.
        for path in (sys.prefix, sys.base_prefix, str(ROOT), "/lib", "/usr/lib", "/etc/ld.so", "/etc/ssl"):
            named[path] = ""
        named[str(self._directory)] = ""
        # The way to where this test has its files.
        above = {*map(str, self._directory.parents), "/tmp"}
        return {(call, place) for call, place in told(traced(text, self._directory), named) if place not in above}


TASKS = {"Collecting": _COLLECTION, "Triage": _TRIAGE, "Attaching": _TRACE}


@contextmanager
def calls(directory: Path, patch: pytest.MonkeyPatch) -> Iterator[Calls]:
    """Where each task can be tried."""
    for name, target, *flags in (
        ("hooked", "hooked", "-rdynamic"),
        ("attached_agent", "liboffheap.so", "-shared", "-fPIC"),
    ):
        built = ["gcc", "-O2", *flags, "-o", str(directory / target), str(_AGENT / f"{name}.c"), "-pthread", "-ldl"]
        subprocess.run(built, check=True)
    (directory / "Waits.java").write_text(_JVM)
    subprocess.run(["javac", "-d", directory, directory / "Waits.java"], check=True)
    with ExitStack() as stack:
        pids = []
        for command in ([str(directory / "hooked")], ["java", "-Xmx64m", "-cp", str(directory), "Waits"]):
            process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))
            stack.callback(process.kill)
            stack.callback(Path(f"/tmp/.java_pid{process.pid}").unlink, missing_ok=True)
            assert process.stdout and process.stdout.readline()
            pids.append(process.pid)
        yield Calls(directory, Systemctl(directory, patch), *pids)


def listed() -> dict[str, set[tuple[str, str]]]:
    """What the page has, by task."""
    found = {}
    for part in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]:
        rows = re.findall(r"^\| `([^`]+)` \| (.*) \|$", part, re.MULTILINE)
        found[part.partition("\n")[0]] = {(call, place) for call, on in rows for place in re.findall(r"`([^`]+)`", on)}
    return found


def _table(found: set[tuple[str, str]]) -> str:
    words = sorted({word for word, _place in found})
    rows = [
        f"| `{word}` | {', '.join(f'`{place}`' for one, place in sorted(found) if one == word)} |" for word in words
    ]
    return "\n".join(["| call | on |", "|---|---|", *rows])


def main() -> None:
    head, *parts = PAGE.read_text(encoding="utf-8").split("\n## ")
    with (
        tempfile.TemporaryDirectory() as directory,
        pytest.MonkeyPatch.context() as patch,
        calls(Path(directory), patch) as of,
    ):
        for number, part in enumerate(parts):
            name = part.partition("\n")[0]
            if name in TASKS:
                words = part.partition("\n| call")[0].rstrip()
                parts[number] = f"{words}\n\n{_table(of.of(TASKS[name]))}\n"
    PAGE.write_text("\n## ".join([head, *parts]), encoding="utf-8")


if __name__ == "__main__":
    main()
