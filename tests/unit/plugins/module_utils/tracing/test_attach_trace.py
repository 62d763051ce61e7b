# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A process that runs is traced by an agent that is opened in it; the agent here only looks like ours from outside."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.agent import client
from ansible_collections.offheap.profiler.plugins.module_utils.host import forked, places, procfs
from ansible_collections.offheap.profiler.plugins.module_utils.spool import directory as spool
from ansible_collections.offheap.profiler.plugins.module_utils.tracing import (
    attach_trace,
    got_entries,
    held_thread,
    inject,
    kernel_trace,
    other_root,
)
from ansible_collections.offheap.profiler.plugins.module_utils.tracing.running_trace import Wanted
from ansible_collections.offheap.profiler.plugins.modules import trace_live
from ansible_collections.offheap.profiler.plugins.plugin_utils.readers import heap_v2
from ansible_collections.offheap.profiler.tests.agent import builds
from ansible_collections.offheap.profiler.tests.agent.service import tasks_of
from ansible_collections.offheap.profiler.tests.unit.fakes import programs
from ansible_collections.offheap.profiler.tests.unit.fakes.module_run import run_module
from ansible_collections.offheap.profiler.tests.unit.fakes.units import Systemctl, shown
from ansible_collections.offheap.profiler.tests.unit.plugins.module_utils.tracing.conftest import wait

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may attach"),
    pytest.mark.usefixtures("trusting"),
]

Run = Callable[..., dict[str, Any]]
_PROGRAMS = Path(__file__).resolve().parents[4] / "agent" / "programs"


def _built(directory: Path, name: str, target: str, *options: str) -> Path:
    command = ["gcc", "-O2", *options, "-o", str(directory / target), str(_PROGRAMS / f"{name}.c"), "-pthread", "-ldl"]
    subprocess.run(command, check=True)
    return directory / target


@pytest.fixture(scope="module")
def library(directory: Path) -> Path:
    (directory / "agent" / "1").mkdir(parents=True)
    # As the agent that is built for old releases of glibc, it needs a library that a process of today has not opened.
    needs = ["-Wl,--no-as-needed", "-l:libpthread.so.0"]
    return _built(directory, "attached_agent", "agent/1/liboffheap.so", "-shared", "-fPIC", *needs)


@pytest.fixture
def program(directory: Path) -> Iterator[int]:
    built = _built(directory, "hooked", "hooked", "-rdynamic")
    with subprocess.Popen([built], stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline()
        yield process.pid
        process.kill()


@pytest.fixture
def spools(tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "spools"
    monkeypatch.setattr(places, "SPOOLS", str(directory))
    monkeypatch.setattr(places, "AGENT", str(library.parents[1]))
    root = spool.Root
    monkeypatch.setattr(spool, "Root", lambda path=str(directory): root(path))
    return directory


@pytest.fixture
def run(
    systemctl: Systemctl,
    spools: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    """Runs the module for a unit with these processes."""

    # A second says all that is wanted to know here.
    monkeypatch.setattr(Wanted, "check", lambda _wanted: None)

    def go(pids: list[int], check: bool = False, **arguments: Any) -> dict[str, Any]:
        systemctl.states(shown("/usr/bin/app", Id="app.service", ActiveState="active", ControlGroup="/app.service"))
        systemctl.processes("/app.service", *pids)
        return run_module(trace_live.main, monkeypatch, capsys, check, unit="app", **{"window": 1, **arguments})

    return go


def _with(monkeypatch: pytest.MonkeyPatch, setting: bytes) -> None:
    own = attach_trace.AttachTrace._settings
    monkeypatch.setattr(attach_trace.AttachTrace, "_settings", lambda self: own(self) + setting)


@pytest.mark.slow
@pytest.mark.parametrize("source", ["attach", "auto"])
def test_each_window_ends_in_a_dump_of_the_agent(
    source: str, run: Run, program: int, spools: Path, library: Path
) -> None:
    result = run([program], source=source, windows=2, interval="512K")
    assert (result["source"], result["pid"], result["ended"], result["changed"]) == ("attach", program, "", True)
    assert sorted(os.listdir(spools / "app.service")) == result["dumps"] and len(result["dumps"]) == 2
    text = (spools / "app.service" / result["dumps"][1]).read_bytes()
    assert text.startswith(b"heap_v2/524288\n") and b"@ 0x1\n  t*: 2: 200" in text
    assert got_entries.into(program, str(library)) == 0, "it is mapped, and nothing leads to it"
    assert os.listdir(places.TRACING) == [], "what it was lent is gone"


@pytest.mark.parametrize(
    ("result", "why"),
    [(errno.EAGAIN, "limit of processes"), (errno.EBUSY, "one that was killed"), (errno.ENOMEM, "Cannot allocate")],
)
def test_why_the_agent_does_not_sample_is_told_in_words(
    result: int, why: str, run: Run, program: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = inject.Injected("/liboffheap.so", result, "", 0.001)
    monkeypatch.setattr(inject, "have_library", lambda *_arguments: answer)
    told = run([program], source="attach")
    assert told["failed"] and why in told["msg"] and "source: perf" in told["msg"]


_HAS_AN_AGENT = """
#include <pthread.h>
#include <unistd.h>
static void *agent(void *unused) { pthread_setname_np(pthread_self(), "offheap"); sleep(60); return unused; }
int main(void) { pthread_t thread; pthread_create(&thread, 0, agent, 0); sleep(60); return 0; }
"""


def test_one_that_another_copy_of_the_agent_is_in_is_left_alone(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a root of its own, to which it is lent anew each time: the new copy does not know the other one."""
    attached: list[object] = []
    monkeypatch.setattr(inject, "have_library", attached.append)
    with programs.running(programs.compiled(tmp_path, "offheap.so", _HAS_AN_AGENT, "-pthread")) as pid:
        wait(lambda: "offheap" in tasks_of(pid), "its thread has its name")
        told = run([pid], source="attach")
    assert told["failed"] and "it has an agent already" in told["msg"] and not attached


@pytest.mark.parametrize(
    ("environment", "samples"),
    [({}, True), ({"OFFHEAP_EXECUTABLE": "/x"}, False), ({"OFFHEAP_EXECUTABLE": "/x", "OFFHEAP_PREFIX": "/y"}, True)],
)
def test_who_draws_the_samples(environment: dict[str, str], samples: bool, tmp_path: Path) -> None:
    program = programs.compiled(tmp_path, "offheap.so", _HAS_AN_AGENT, "-pthread")
    with programs.running(program, env=environment) as pid:
        wait(lambda: "offheap" in tasks_of(pid), "its thread has its name")
        assert attach_trace.has_sampler(pid) is samples
    with programs.running(programs.compiled(tmp_path, "offheap.so")) as pid:
        assert not attach_trace.has_sampler(pid)
    with pytest.raises(procfs.ProcessGone):
        attach_trace.has_agent(pid)


def test_what_async_profiler_has_traced_is_left_alone(run: Run, tmp_path: Path) -> None:
    """Its hooks stay, and come before the agent's: it would see nothing, and call that no leak."""
    with programs.running(programs.compiled(tmp_path, "libasyncProfiler.so")) as pid:
        told = run([pid], source="attach")
    assert told["failed"] and "async-profiler is in process" in told["msg"]


def test_what_has_its_allocator_inside_is_left_alone(run: Run, tmp_path: Path) -> None:
    """No call of its own would lead to the agent, and that would be called no leak."""
    source = f"void *malloc(unsigned long size) {{ return size ? 0 : 0; }}\n{programs.SLEEPS}"
    program = programs.compiled(tmp_path, "own", source, "-fno-builtin")
    with programs.running(program) as pid:
        told = run([pid], source="attach")
    assert told["failed"] and f"{program}, which app.service runs, has its allocator linked into it" in told["msg"]


def _children() -> set[int]:
    tasks = Path("/proc/self/task").iterdir()
    return {int(word) for task in tasks for word in (task / "children").read_text().split()}


@pytest.mark.parametrize("limit", [0, 100])
def test_what_forbids_itself_more_threads_may_start_the_agents(
    limit: int, run: Run, program: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As HAProxy does. Not every root may change another's limits, so the kernel's part is played here."""
    limits, seen = [(limit, limit)], []

    def prlimit(pid: int, which: int, *new: tuple[int, int]) -> tuple[int, int]:
        assert (pid, which) == (program, resource.RLIMIT_NPROC)
        limits.extend(new)
        return limits[-1]

    def attached(*_arguments: object) -> inject.Injected:
        seen.append(limits[-1])
        return inject.Injected("/liboffheap.so", errno.EBUSY, "", 0.001)

    monkeypatch.setattr(resource, "prlimit", prlimit)
    monkeypatch.setattr(inject, "have_library", attached)
    run([program], source="attach")
    assert seen == [(resource.RLIM_INFINITY, resource.RLIM_INFINITY) if limit == 0 else (limit, limit)]
    assert limits[-1] == (limit, limit), "as before"


def test_who_is_killed_while_more_threads_may_start_leaves_them_forbidden(
    run: Run, program: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    limit = tmp_path / "limit"
    limit.write_text("0")

    def prlimit(pid: int, which: int, *new: tuple[int, int]) -> tuple[int, int]:
        assert (pid, which) == (program, resource.RLIMIT_NPROC)
        for most, _hard in new:
            limit.write_text(str(most))
        return int(limit.read_text()), int(limit.read_text())

    def killed(*_arguments: object) -> None:
        assert limit.read_text() == str(resource.RLIM_INFINITY)
        os.killpg(0, signal.SIGKILL)

    monkeypatch.setattr(resource, "prlimit", prlimit)
    monkeypatch.setattr(inject, "have_library", killed)
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            run([program], source="attach")
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    wait(lambda: limit.read_text() == "0", "it is forbidden as before")


@pytest.mark.slow
def test_a_signal_ends_it_early_and_detaches(run: Run, program: int, spools: Path, library: Path) -> None:
    before = _children()

    def interrupt() -> None:
        wait(lambda: bool(got_entries.into(program, str(library))), "it is attached")
        wait(lambda: len(_children() - before) == 1, "who held its thread has ended, and who waits for our end has not")
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=interrupt)
    thread.start()
    result = run([program], source="attach", window=60)
    thread.join()
    assert "it was interrupted" in result["ended"] and len(result["dumps"]) == 1
    assert got_entries.into(program, str(library)) == 0


@pytest.mark.slow
def test_an_agent_that_ends_itself_leaves_a_dump(
    run: Run, program: int, spools: Path, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _with(monkeypatch, b"DEAR=1\n")
    result = run([program], source="attach", windows=3, max_cost=1.5)
    assert "more than 1.5 % of the process's CPU time" in result["ended"]
    assert sorted(os.listdir(spools / "app.service")) == result["dumps"] and len(result["dumps"]) == 2
    assert got_entries.into(program, str(library)) == 0


@pytest.mark.slow
def test_an_agent_that_stays_is_told(run: Run, program: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says that it has detached; what leads to it says otherwise."""
    _with(monkeypatch, b"KEEP=1\n")
    result = run([program], source="attach", windows=1)
    assert result["failed"] and f"1 entries of process {program} still lead to the agent" in result["msg"]


def test_an_agent_that_does_not_begin(run: Run, program: int, monkeypatch: pytest.MonkeyPatch) -> None:
    _with(monkeypatch, b"FAIL=1\n")
    result = run([program], source="attach")
    assert result["failed"] and f"process {program}: {os.strerror(3)}" in result["msg"]


@pytest.mark.slow
def test_a_process_that_ends(run: Run, program: int, library: Path) -> None:
    def end() -> None:
        wait(lambda: bool(got_entries.into(program, str(library))), "it is attached")
        os.kill(program, signal.SIGKILL)

    thread = threading.Thread(target=end)
    thread.start()
    result = run([program], source="attach", window=60)
    thread.join()
    assert result["ended"] == "the process has ended"


_STARTS_ITSELF_AGAIN = """
#include <signal.h>
#include <unistd.h>
void *hook = (void *)1;
int main(int count, char **words)
{
    sigset_t reload;
    int number;
    sigemptyset(&reload);
    sigaddset(&reload, SIGHUP);
    sigprocmask(SIG_BLOCK, &reload, 0);
    sigwait(&reload, &number);
    return execv(words[0], words);
}
"""


@pytest.mark.slow
def test_a_process_that_starts_itself_again(run: Run, library: Path, tmp_path: Path) -> None:
    """As HAProxy's first process does to read its settings."""
    with programs.running(programs.compiled(tmp_path, "program", _STARTS_ITSELF_AGAIN, "-rdynamic")) as pid:

        def reload() -> None:
            wait(lambda: bool(got_entries.into(pid, str(library))), "it is attached")
            os.kill(pid, signal.SIGHUP)

        thread = threading.Thread(target=reload)
        thread.start()
        began = time.monotonic()
        result = run([pid], source="attach", window=3, windows=2)
        thread.join()
    assert result["ended"] == "the process runs another program now, without the agent", result
    assert time.monotonic() - began < 15


def test_check_mode_leaves_the_process_alone(run: Run, program: int, spools: Path, library: Path) -> None:
    assert run([program], check=True, source="attach")["dumps"] == []
    assert not spools.exists() and got_entries.into(program, str(library)) is None


def test_where_the_agent_cannot_be_a_tool_of_the_kernel_is_taken(
    run: Run, program: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_trace, "_found", lambda source: "/usr/bin/perf" if source == "perf" else "")
    monkeypatch.setattr(places, "AGENT", "/nowhere")
    assert run([program], check=True)["source"] == "perf"
    monkeypatch.setattr(kernel_trace, "_found", lambda _source: "")
    said = run([program])["msg"]
    assert "the agent is not in /nowhere here" in said and "neither memleak nor perf is installed" in said


def test_a_library_that_is_not_the_agent(run: Run, program: int, directory: Path) -> None:
    other = _built(directory, "hooked", "other.so", "-shared", "-fPIC")
    result = run([program], source="attach", library=str(other))
    assert result["failed"] and "has no function offheap_attach" in result["msg"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sandbox", "root", "nothing"])
def test_what_hides_the_spool(kind: str, run: Run, directory: Path, spools: Path, library: Path) -> None:
    """As ProtectSystem=strict does, or a root directory of its own, as another user: it is lent what it needs."""
    above, root = spools.parent, spools.parent / "root"
    root.mkdir()
    script, arguments = f"mount --bind {above} {above}; mount -o remount,bind,ro {above};", [""]
    if kind == "root":
        script, arguments = "", [str(root), "65534"]
    if kind == "nothing":
        script, arguments = f"mount -t tmpfs -o ro none {root};", [str(root)]
    built = _built(directory, "hooked", "hooked", "-rdynamic")
    command = ["unshare", "--mount", "sh", "-ec", script + 'exec "$@"', "sh", str(built), *filter(None, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline()
        result = run([process.pid], source="attach", windows=1)
        left = os.listdir(f"/proc/{process.pid}/root")
        process.kill()
    assert [name for name in left if name.startswith(".offheap")] == [], "what was lent is gone"
    if kind == "nothing":
        assert result["failed"] and "may write nowhere" in result["msg"]
    else:
        assert result["ended"] == "" and os.listdir(spools / "app.service") == result["dumps"] != []


@pytest.fixture
def in_a_root(directory: Path, tmp_path: Path) -> Iterator[int]:
    """Sees the library only where it is lent to it."""
    (tmp_path / "root").mkdir()
    built = _built(directory, "hooked", "hooked", "-rdynamic")
    with subprocess.Popen([built, tmp_path / "root", "65534"], stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline()
        yield process.pid
        process.kill()


@pytest.mark.slow
def test_a_signal_while_it_attaches_waits_until_that_is_done(
    run: Run, in_a_root: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    have, lent = inject.have_library, []

    def interrupted(*arguments: Any) -> inject.Injected:
        found = have(*arguments)
        lent.append(found.path)
        os.kill(os.getpid(), signal.SIGTERM)
        return found

    monkeypatch.setattr(inject, "have_library", interrupted)
    over = threading.Event()
    other = threading.Thread(target=over.wait)  # which the kernel may give the signal to
    other.start()
    result = run([in_a_root], source="attach", window=60)
    over.set()
    other.join()
    assert "it was interrupted" in result["ended"] and len(result["dumps"]) == 1, (
        "attached to its end, dumped, detached"
    )
    assert got_entries.into(in_a_root, lent[0]) == 0


@pytest.mark.slow
def test_who_attaches_is_killed_and_what_was_lent_is_detached(
    run: Run, in_a_root: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fork, visible, lent = forked.run, other_root.visible, []

    def killed(*arguments: Any) -> None:
        fork(*arguments)
        raise forked.ForkedError("the process that attaches did not answer in time")

    @contextlib.contextmanager
    def seen(pid: int, library: str) -> Iterator[str]:
        with visible(pid, library) as path:
            lent.append(path)
            yield path

    monkeypatch.setattr(forked, "run", killed)
    monkeypatch.setattr(other_root, "visible", seen)
    result = run([in_a_root], source="attach", window=60)
    assert result["failed"] and "did not answer in time" in result["msg"]
    assert got_entries.into(in_a_root, lent[0]) == 0


@pytest.mark.slow
def test_who_traces_is_killed_with_its_group_and_the_agent_detaches_at_once(run: Run, in_a_root: int) -> None:
    root = Path(f"/proc/{in_a_root}/root")
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            run([in_a_root], source="attach", window=60)
        finally:
            os._exit(1)
    wait(lambda: list(root.glob(f".offheap-*/{in_a_root}.sock")) != [], "it is attached")
    lent = {one.path for one in procfs.mappings(in_a_root) if ".offheap-" in one.path and one.executable}
    assert sum(got_entries.into(in_a_root, path) or 0 for path in lent) == 1
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    wait(lambda: list(root.glob(".offheap-*")) == [], "what it was lent is gone")
    assert sum(got_entries.into(in_a_root, path) or 0 for path in lent) == 0


def test_who_is_killed_with_its_group_while_a_thread_is_held_leaves_nothing(
    run: Run, in_a_root: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Path(f"/proc/{in_a_root}/root")

    def killed(_held: held_thread.Held) -> None:
        assert list(root.glob(".offheap-*.so")) != [], "a library is lent"
        os.killpg(0, signal.SIGKILL)

    monkeypatch.setattr(held_thread.Held, "__enter__", killed)
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            run([in_a_root], source="attach", window=60)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    wait(lambda: list(root.glob(".offheap-*")) == [], "what it was lent is gone")
    wait(lambda: os.sched_getscheduler(in_a_root) == os.SCHED_OTHER, "it is scheduled as before")


def test_the_least_cost_is_a_limit_as_well(run: Run, program: int, monkeypatch: pytest.MonkeyPatch) -> None:
    own = attach_trace.AttachTrace._settings
    said: list[bytes] = []

    def noted(self: attach_trace.AttachTrace) -> bytes:
        said.append(own(self))
        return said[-1]

    monkeypatch.setattr(attach_trace.AttachTrace, "_settings", noted)
    run([program], source="attach", windows=1, max_cost=0.01)
    assert b"OFFHEAP_MAX_COST=1\n" in said[0]


def test_a_library_that_has_no_room_is_lent_to_nobody(tmp_path: Path) -> None:
    (tmp_path / "library").write_bytes(bytes(200_000))
    (tmp_path / "full").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", tmp_path / "full"], check=True)
    try:
        with (
            (tmp_path / "library").open("rb") as ours,
            (tmp_path / "full" / "copy").open("wb") as copy,
            pytest.raises(OSError, match="No space left"),
        ):
            other_root._copy(ours.fileno(), copy.fileno())
    finally:
        subprocess.run(["umount", tmp_path / "full"], check=True)


_IN_A_ROOT = """
import os, sys, time
os.chroot(sys.argv[1])
os.chdir("/")
os.setuid(65534)
kept = []
print("runs", flush=True)
while True:
    kept.append(bytearray(3000))
    time.sleep(0.005)
"""


@pytest.mark.slow
def test_what_sees_no_proc_has_stacks_and_a_map_all_the_same(run: Run, spools: Path) -> None:
    """As HAProxy in its chroot: it is lent its memory map, and an unwinder."""
    root = spools.parent / "root"
    (root / "tmp").mkdir(parents=True)
    command = ["/usr/bin/python3", "-c", _IN_A_ROOT, str(root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline()
        result = run([process.pid], source="attach", windows=1, interval="4K", library=str(builds.agent()))
        process.kill()
    assert result["ended"] == "" and os.listdir(root) == ["tmp"] and os.listdir(root / "tmp") == []
    dump = (spools / "app.service" / result["dumps"][0]).read_bytes()
    records = heap_v2.parse(dump, "a dump")
    assert max(len(stack) for stack in records.stacks()) > 5
    assert os.path.realpath("/usr/bin/python3") in {mapped.path for mapped in records.mappings}


@pytest.mark.parametrize("kind", ["link", "fifo", "large", "other"])
def test_what_the_user_puts_in_place_of_a_dump(
    kind: str, run: Run, program: int, spools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may take over the process while we ask for a dump: nothing but a file of its own comes into the spool."""
    dump = client.Connection.dump

    def replaced(self: client.Connection, place: str) -> client.WrittenDump:
        written = dump(self, place)
        os.unlink(written.path)
        if kind == "link":
            os.symlink("/etc/shadow", written.path)
        elif kind == "fifo":
            os.mkfifo(written.path)
        else:
            Path(written.path).touch()
            os.truncate(written.path, (1 << 40) if kind == "large" else 10)
            os.chown(written.path, 0 if kind == "large" else 65534, 0)
        return written

    monkeypatch.setattr(client.Connection, "dump", replaced)
    result = run([program], source="attach", windows=1)
    assert result["failed"] and ("has written no dump" in result["msg"] or "is no dump, or too large" in result["msg"])
    assert not (spools / "app.service").exists(), "nothing came into it, so it is gone again"
