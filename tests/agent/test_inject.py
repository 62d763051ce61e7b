# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A thread of a running process opens a library and calls it, and nothing else in the process notices."""

from __future__ import annotations

import os
import platform
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.agent import client
from ansible_collections.offheap.profiler.plugins.module_utils.host import procfs
from ansible_collections.offheap.profiler.plugins.module_utils.tracing import held_thread, inject, lent_memory, tracee
from ansible_collections.offheap.profiler.plugins.module_utils.tracing.inject import InjectError, have_library
from ansible_collections.offheap.profiler.plugins.module_utils.tracing.running_trace import TraceError
from ansible_collections.offheap.profiler.tests.agent.conftest import FOREIGN, PROGRAMS, compiled
from ansible_collections.offheap.profiler.tests.agent.service import wait_for

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the programs here are for x86_64")

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(scope="session")
def attached() -> str:
    return str(compiled("told.so", [PROGRAMS / "told.c"], "-O2", "-shared", "-fPIC"))


@pytest.fixture
def run() -> Iterator[Start]:
    """Starts a program that says a line when it has begun; it is killed at the end."""
    started: list[subprocess.Popen[str]] = []

    def go(*command: str | Path) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [str(one) for one in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout and process.stdout.readline()
        return process

    yield go
    for process in started:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream:
                stream.close()


def program(name: str) -> Path:
    return compiled(name, [PROGRAMS / f"{name}.c"], "-O2")


def rest(process: subprocess.Popen[str]) -> str:
    """What it has said until now, at its end."""
    process.kill()
    return process.stdout.read() if process.stdout else ""


def have(process: subprocess.Popen[str], library: str, out: Path, words: str = "", **limits: float) -> inject.Injected:
    return have_library(process.pid, library, "offheap_attach", f"{out} {words}".encode(), **limits)


# Of most, the kernel knows how long they have waited; of those with 9, only that they were interrupted.
@pytest.mark.parametrize(
    ("number", "name", "longest"),
    [(0, "epoll_wait", 9), (1, "poll", 0.6), (2, "pselect6", 0.6), (3, "clock_nanosleep", 0.6), (4, "recvfrom", 9),
     (5, "futex", 0.6), (10, "sendto", 9)],
)  # fmt: skip
def test_a_wait_goes_on_for_as_long_as_was_left(
    number: int, name: str, longest: float, run: Start, attached: str, tmp_path: Path
) -> None:
    process = run(program("waits"), str(number), str(longest))
    for _time in range(5):
        time.sleep(0.17)
        found = have(process, attached, tmp_path / "out")
        assert found.result == 42 and found.wait in (name, "restart_syscall")
    time.sleep(0.5)
    assert rest(process) == ""
    said = (tmp_path / "out").read_text().splitlines()
    assert len(said) == 5 and {line.split()[0] for line in said} == {str(process.pid)}


@pytest.mark.parametrize(("number", "name"), [(0, "epoll_wait"), (4, "recvfrom"), (10, "sendto")])
def test_a_wait_that_begins_while_the_thread_is_being_stopped_goes_on(
    number: int, name: str, run: Start, attached: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was busy when it was looked at. Its wait would end early if it were let run from there."""
    monkeypatch.setattr(held_thread, "_waiting", lambda *_unused: [])
    process = run(program("waits"), str(number), "9")
    for _time in range(5):
        time.sleep(0.1)
        found = have(process, attached, tmp_path / "out")
        assert found.result == 42 and found.wait == name
    time.sleep(0.5)
    assert rest(process) == ""


def test_a_wait_that_goes_on_is_one_as_well(run: Start, attached: str, tmp_path: Path) -> None:
    """The kernel has another name for it then (restart_syscall), and still knows how long it lasts."""
    began = time.monotonic()
    process = run("sh", "-c", "echo waits; exec sleep 8")
    for _time in range(5):
        time.sleep(0.2)
        assert have(process, attached, tmp_path / "out").result == 42
    last = time.monotonic()
    assert process.wait(20) == 0
    assert time.monotonic() - began > 7.9
    assert time.monotonic() - last < 7.5, "what was left of it, and not all of it again"


def test_a_thread_in_another_call_is_let_go(run: Start, attached: str, tmp_path: Path) -> None:
    """It waits for a lock of a file, which is none of the waits that are known."""
    (tmp_path / "lock").touch()
    script = "import fcntl; a, b = (open('lock', 'r+') for _ in 'ab'); fcntl.flock(a, 2); print('waits', flush=True); "
    process = run("sh", "-c", f'cd {tmp_path}; exec /usr/bin/env python3 -c "{script}fcntl.flock(b, 2)"')
    time.sleep(0.2)
    with pytest.raises(InjectError, match="waits where it may be held"):
        have(process, attached, tmp_path / "out", patience=0.3)
    wait_for("it waits again", lambda: procfs.status(process.pid)["State"].startswith("S"))
    assert process.poll() is None


def test_no_register_changes(run: Start, attached: str, tmp_path: Path) -> None:
    process = run(program("registers"))
    for _time in range(20):
        assert have(process, attached, tmp_path / "out").result == 42
        time.sleep(0.03)
    assert process.poll() is None, rest(process)


def test_a_thread_that_is_let_go_finds_its_way_back(run: Start, attached: str, tmp_path: Path) -> None:
    """The call is not back in time; it goes on by itself, and all registers are what they were."""
    process = run(program("registers"))
    began = time.monotonic()
    with pytest.raises(TraceError, match="it was let go, and finishes by itself"):
        have(process, attached, tmp_path / "out", "1", held=0.3)
    assert time.monotonic() - began < 1
    assert not (tmp_path / "out").exists()
    time.sleep(1)
    assert (tmp_path / "out").exists(), "the call has gone on"
    assert have(process, attached, tmp_path / "out").result == 42, "and the thread waits again"
    assert process.poll() is None, rest(process)


def test_a_call_that_faults_leaves_the_process_alive(run: Start, attached: str, tmp_path: Path) -> None:
    process = run(program("registers"))
    with pytest.raises(InjectError, match="failed with signal 11"):
        have(process, attached, tmp_path / "out", "0 fault")
    assert have(process, attached, tmp_path / "out").result == 42
    assert process.poll() is None, rest(process)


def test_a_thread_that_never_waits_for_long(run: Start, attached: str, tmp_path: Path) -> None:
    """It is stopped at the entry of a wait that would end at once."""
    process = run(program("waits"), "6")
    for _time in range(20):
        found = have(process, attached, tmp_path / "out")
        assert found.result == 42 and found.wait in ("poll", "restart_syscall")
    time.sleep(0.1)
    assert rest(process) == ""


def test_a_thread_that_never_waits(run: Start, attached: str, tmp_path: Path) -> None:
    process = run(program("waits"), "7")
    with pytest.raises(InjectError, match="waits where it may be held"):
        have(process, attached, tmp_path / "out", patience=0.3)
    assert process.poll() is None and not (tmp_path / "out").exists()
    assert procfs.status(process.pid)["State"].startswith("R"), "it was let go"


@pytest.mark.parametrize("number", [8, 9], ids=["pause", "epoll_wait"])
def test_a_signal_that_comes_meanwhile_ends_the_wait(number: int, run: Start, attached: str, tmp_path: Path) -> None:
    """Its handler runs, and whoever waits for that is told: a wait that began anew behind its back would never end."""
    process = run(program("waits"), str(number))
    sender = threading.Timer(0.2, os.kill, (process.pid, signal.SIGUSR1))
    sender.start()
    assert have(process, attached, tmp_path / "out", "0.5").result == 42
    sender.join()
    time.sleep(0.2)
    assert rest(process) == "woken by 1\n"


def test_a_lock_of_the_loader_that_waits_for_the_held_thread(run: Start, attached: str, tmp_path: Path) -> None:
    """Each would wait for the other, for ever; so the thread is brought back, without its call."""
    source = PROGRAMS / "loading.c"
    slow = compiled("slow.so", [source], "-O2", "-shared", "-fPIC", "-DSLOW")
    process = run(compiled("loading", [source], "-O2", "-rdynamic"), slow)
    assert process.stdin and process.stdout
    with pytest.raises(TraceError, match="opening or closing another library"):
        have(process, attached, tmp_path / "out", held=0.3)
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "loaded 1\n"
    assert have(process, attached, tmp_path / "out").result == 42
    assert process.communicate("\n")[0] == "" and process.returncode == 0
    assert len((tmp_path / "out").read_text().splitlines()) == 1, "the first call did not go on"


@pytest.mark.skipif(os.geteuid() != 0, reason="the kernel shows filters to root")
@pytest.mark.parametrize(
    ("action", "attaches"),
    [
        ("0x80000000", False),  # kill the process
        ("0", False),  # the thread
        ("0x30000", False),  # SIGSYS
        ("0x80000000 40", False),  # for some arguments, which we do not know
        ("0x50001", True),  # EPERM
        ("0x7ffc0000", True),  # written to a log
    ],
)
def test_a_filter_that_would_kill_the_process(
    action: str, attaches: bool, run: Start, attached: str, tmp_path: Path
) -> None:
    process = run(program("filtered"), *action.split())
    if attaches:
        assert have(process, attached, tmp_path / "out").result == 42
        return
    with pytest.raises(InjectError, match=r"may be killed for what the agent does \(socket\)"):
        have(process, attached, tmp_path / "out")
    time.sleep(0.1)
    assert process.poll() is None and not (tmp_path / "out").exists()


def test_a_tracer_that_is_killed_leaves_the_process_alive(run: Start, attached: str, tmp_path: Path) -> None:
    process = run(program("registers"))
    killed = threading.Thread(target=kill_tracer, args=(process.pid,))
    killed.start()
    with pytest.raises(held_thread.LetGo, match="the attempt ended early"):
        have(process, attached, tmp_path / "out", "1")
    killed.join()
    assert policies(process) == {os.SCHED_OTHER}, "nor is it hurried any more"
    time.sleep(1.2)
    assert (tmp_path / "out").exists(), "the call has gone on"
    assert have(process, attached, tmp_path / "out").result == 42, "and the thread waits again"
    assert process.poll() is None, rest(process)


def kill_tracer(pid: int) -> None:
    """Half a second after it has begun to trace."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        tracer = int(procfs.status(pid)["TracerPid"])
        if tracer:
            time.sleep(0.5)
            os.kill(tracer, signal.SIGKILL)
            return


def test_a_tracer_that_is_killed_between_any_two_steps_leaves_the_process_alive(
    run: Start, attached: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for those that map the thread's stack, and unmap it."""
    process = run(program("registers"))
    step, enter, restore = tracee.Tracee._ptrace, held_thread.Held.__enter__, held_thread.Held._restore
    first, left = 0, -1

    def entered(held: held_thread.Held) -> held_thread.Held:
        nonlocal left
        found, left = enter(held), first
        return found

    def restored(held: held_thread.Held) -> None:
        nonlocal left
        left = -1
        restore(held)

    def stepped(thread: tracee.Tracee, *given: int) -> None:
        nonlocal left
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1
        step(thread, *given)

    monkeypatch.setattr(held_thread.Held, "__enter__", entered)
    monkeypatch.setattr(held_thread.Held, "_restore", restored)
    monkeypatch.setattr(tracee.Tracee, "_ptrace", stepped)
    while True:
        try:
            found = have(process, attached, tmp_path / "out")
        except held_thread.LetGo:
            first += 1
        else:
            break
    assert found.result == 42 and first > 20
    assert process.poll() is None, rest(process)
    assert int(procfs.status(process.pid)["SigBlk"], 16) == 0


@pytest.mark.parametrize("times", [60, pytest.param(1000, marks=pytest.mark.soak_only)])
@pytest.mark.parametrize("kind", ["idle", "busy"])
def test_many_times_in_a_crowd(kind: str, times: int, run: Start, attached: str, tmp_path: Path) -> None:
    """Threads come and go, children are forked, libraries opened, 1,000 signals a second sent: none is lost."""
    process = run(program("crowd"), kind)
    held, waits = [], Counter[str]()
    for _time in range(times):
        found = have(process, attached, tmp_path / "out")
        assert found.result == 42 and process.poll() is None
        held.append(found.held)
        waits[found.wait] += 1
    said, _nothing = process.communicate("\n", timeout=60)
    print(f"{kind}: held {1000 * median(held):.1f} ms, at most {1000 * max(held):.0f} ms, in {dict(waits)}; {said}")
    assert process.returncode == 0, said
    assert len((tmp_path / "out").read_text().splitlines()) == times
    assert median(held) < 0.2


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_on_a_busy_host_as_well_it_is_held_for_milliseconds(run: Start, attached: str, tmp_path: Path) -> None:
    for _one in range(6 * (os.cpu_count() or 1)):
        run("sh", "-c", "echo runs; while :; do :; done")
    process = run(program("registers"))
    held = [have(process, attached, tmp_path / "out").held for _time in range(20)]
    print(f"held {1000 * median(held):.1f} ms, at most {1000 * max(held):.1f} ms")
    assert median(held) < 0.02


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_thread_is_hurried_while_it_is_held(run: Start, attached: str, tmp_path: Path) -> None:
    process = run(program("registers"))
    held = threading.Thread(target=have, args=(process, attached, tmp_path / "out", "0.3"))
    held.start()
    wait_for("its hurry", lambda: policies(process) == {os.SCHED_RR | os.SCHED_RESET_ON_FORK})
    held.join()
    assert policies(process) == {os.SCHED_OTHER}


def policies(process: subprocess.Popen[str]) -> set[int]:
    """How its threads are scheduled."""
    return {os.sched_getscheduler(int(name)) for name in os.listdir(f"/proc/{process.pid}/task")}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_user_namespace_in_which_root_is_root(run: Start, attached: str, tmp_path: Path) -> None:
    """As systemd's PrivateUsers= makes one."""
    process = run("unshare", "--user", "--map-root-user", program("registers"))
    assert have(process, attached, tmp_path / "out").result == 42


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_library_is_lent_into_another_root(run: Start, attached: str, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "out").touch()
    (root / "out").chmod(0o666)
    process = run(program("hooked"), root, "65534")
    assert have(process, attached, Path("/out")).result == 42
    assert [path.name for path in root.iterdir()] == ["out"], "what was lent is gone"
    assert (root / "out").read_text().startswith(str(process.pid))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_library_is_lent_in_memory_where_no_file_of_ours_may_be_run(
    run: Start, attached: str, tmp_path: Path
) -> None:
    """As under systemd's NoExecPaths=/. Each time it is another copy."""
    library = tmp_path / "told.so"
    shutil.copy(attached, library)
    where = program("registers")
    mounts = f"for there in /usr {where.parent}; do mount --bind $there $there; done; mount -o remount,bind,noexec /"
    mounts += "; for there in /run /tmp /var/tmp /dev/shm; do mount -t tmpfs -o noexec none $there; done"
    process = run("unshare", "--mount", "sh", "-ec", f'{mounts}; exec "$0"', where)
    for copies in (1, 2):
        injected = have(process, str(library), Path("/tmp/out"))
        assert (injected.result, lent_memory.copies(process.pid)) == (42, copies)
        assert injected.path == lent_memory.MAPPED
    assert sorted(os.listdir(f"/proc/{process.pid}/fd")) == ["0", "1", "2"], "no descriptor stays"
    assert "memfd" in (Path(f"/proc/{process.pid}/maps").read_text())


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_file_in_the_place_of_what_is_lent_in_memory_is_not_written(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("as it was")
    with precious.open() as file, pytest.raises(TraceError, match="put another file in the place"):
        lent_memory.fill(os.getpid(), file.fileno(), b"the library")
    assert precious.read_text() == "as it was"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_no_link_in_another_root_is_followed(run: Start, attached: str, tmp_path: Path) -> None:
    """It may be anybody's. It has a link that leads out of it, and one directory that can be written, then none."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    mounts = f"mount -t tmpfs none {root}; ln -s {outside} {root}/run; mkdir {root}/tmp; mkdir {root}/dev;" + (
        f"mount -t tmpfs none {root}/tmp; mount -o remount,ro {root}"
    )
    there = ["unshare", "--mount", "sh", "-ec", f'{mounts}; exec "$@"', "sh"]
    process = run(*there, program("hooked"), root)
    seen = watched(outside)
    assert have(process, attached, Path("/tmp/out")).result == 42
    assert seen() == [], "nothing was made where the link leads"
    assert os.listdir(f"/proc/{process.pid}/root/tmp") == ["out"]
    process = run(*there[:-2], f'{mounts}; umount {root}/tmp; exec "$@"', "sh", program("hooked"), root)
    with pytest.raises(TraceError, match="read-only or noexec"):
        have(process, attached, Path("/tmp/out"))
    assert seen() == []


def watched(directory: Path) -> Callable[[], list[str]]:
    """What has changed in it: its time does, even if what was made is gone."""
    before = directory.stat().st_mtime_ns

    def changes() -> list[str]:
        return [*os.listdir(directory), *(["touched"] if directory.stat().st_mtime_ns != before else [])]

    return changes


@pytest.mark.skipif(FOREIGN, reason="the agent is for other programs")
def test_two_copies_of_the_agent_leave_each_other_alone(
    run: Start, workload: Path, library: Path, tmp_path: Path
) -> None:
    """Each would lead the other's calls to itself, without an end."""
    process = run("sh", "-c", f"echo begins; exec {workload} leak 60")
    wait_for("the program", lambda: procfs.exe(process.pid) == str(workload))
    agents = []
    for name in ("one", "other"):
        place = tmp_path / name
        place.mkdir()
        copy = shutil.copy(library, place / library.name)
        settings = {"PREFIX": place / "jeprof", "SOCKET_DIR": place, "START_DELAY": 0, "LG_SAMPLE": 12}
        text = "".join(f"OFFHEAP_{key}={value}\n" for key, value in settings.items())
        assert have_library(process.pid, str(copy), "offheap_attach", text.encode()).result == 0
        agents.append(client.AgentSocket(process.pid, str(place / f"{process.pid}.sock")))
        wait_for("its socket", Path(agents[-1].path).exists)
    began = time.monotonic()
    while time.monotonic() < began + 2.5:  # objects that came later are looked at each second
        assert process.poll() is None
        time.sleep(0.1)
    for agent in agents:
        with client.Connection(agent) as connection:
            assert connection.request("detach")["left"] == 0
    assert process.poll() is None


def test_a_process_that_becomes_another_program_meanwhile(
    run: Start, attached: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was known of its addresses is of the program before."""
    process, held = run("sh", "-c", "echo waits; read line; exec sleep 100"), held_thread.held

    def later(*given: Any) -> held_thread.Held:
        assert process.stdin
        process.stdin.write("go on\n")
        process.stdin.flush()
        wait_for("another program", lambda: procfs.cmdline(process.pid) == ["sleep", "100"])
        return held(*given)

    monkeypatch.setattr(held_thread, "held", later)
    with pytest.raises(InjectError, match="another program"):
        have(process, attached, tmp_path / "out")
    assert process.poll() is None and not (tmp_path / "out").exists()


def test_why_it_cannot_be_opened(run: Start, tmp_path: Path) -> None:
    """The loader's own words, and the thread goes on."""
    source = tmp_path / "needs.c"
    source.write_text("int nobody_has_this(void); int offheap_attach(const char *s) { return nobody_has_this(); }")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", tmp_path / "needs.so", source], check=True)
    process = run(program("registers"))
    with pytest.raises(InjectError, match="undefined symbol: nobody_has_this"):
        have(process, str(tmp_path / "needs.so"), tmp_path / "out")
    time.sleep(0.2)
    assert process.poll() is None


@pytest.mark.parametrize("name", ["python3", "perl", "java"])
def test_programs_of_the_distribution(name: str, run: Start, attached: str, tmp_path: Path) -> None:
    """Debian's python3 is not position independent; Java has its own signals and stacks."""
    source = tmp_path / "Waits.java"
    source.write_text("class Waits { public static void main(String[] a) throws Exception {"
                      ' System.out.println("runs"); for (;;) { Thread.sleep(20); System.gc(); } } }')  # fmt: skip
    options = {
        "python3": ["-uc", "import time\nprint('runs')\nwhile True: time.sleep(0.02); x = bytearray(10**6)"],
        "perl": ["-e", "$|=1; print qq(runs\\n); while (1) { select(undef, undef, undef, 0.02); }"],
        "java": ["-Xmx64m", str(source)],
    }[name]
    process = run(f"/usr/bin/{name}", *options)
    time.sleep(0.3)
    held = [have(process, attached, tmp_path / "out").held for _time in range(10)]
    time.sleep(0.3)
    assert process.poll() is None
    print(f"{name}: held {1000 * median(held):.1f} ms, at most {1000 * max(held):.1f} ms")
    assert len((tmp_path / "out").read_text().splitlines()) == 10
