# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Attaching to JVMs, to processes that only look like one, and to processes that SIGQUIT would kill."""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.host import procfs
from ansible_collections.offheap.profiler.plugins.module_utils.runtimes import hotspot_attach, hotspot_protocol
from ansible_collections.offheap.profiler.tests.unit.fakes import programs

needs_java = pytest.mark.skipif(not shutil.which("java") or not shutil.which("javac"), reason="no JDK")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

MAPS = b"7f0000000000-7f0000001000 r-xp 00000000 08:01 77 %s\n"
STATUS = "Name:\tjava\nNSpid:\t50\t5\nUid:\t1\t990\t1\t1\nGid:\t1\t991\t1\t1\nGroups:\t4 5\nSigCgt:\t%016x\n"

# A JVM only by its socket. argv: answer (in parts: |), how often, seconds after each part. Reports when it listens.
IMPOSTOR = """
import os, socket, sys, time
path = f"/tmp/.java_pid{os.getpid()}"
if os.path.lexists(path):
    os.unlink(path)  # of a JVM that was killed, whose process ID came round again
listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
listener.listen()
print("listening", flush=True)
try:
    connection, _ = listener.accept()
    os.write(2, connection.recv(1000))
    for _ in range(int(sys.argv[2])):
        for part in sys.argv[1].split("|"):
            connection.sendall(os.fsencode(part))
            time.sleep(float(sys.argv[3]))
finally:
    os.unlink(path)
"""


@pytest.fixture
def proc(tmp_path: Path) -> Callable[..., str]:
    def make(library: str = "libjvm.so", caught: int = 4, arguments: str = "java", environment: str = "A=b") -> str:
        directory = tmp_path / "50"
        directory.mkdir()
        (directory / "stat").write_text("50 (java) S " + " ".join(str(n) for n in range(1, 40)))
        (directory / "maps").write_bytes(b"".join(MAPS % f"/jdk/lib/server/{n}".encode() for n in library.split()))
        (directory / "status").write_text(STATUS % caught)
        (directory / "cmdline").write_bytes(arguments.replace(" ", "\0").encode())
        (directory / "environ").write_bytes(environment.encode())
        return str(tmp_path)

    return make


def test_what_a_jvm_looks_like(proc: Callable[..., str]) -> None:
    assert hotspot_attach.look(50, proc()) == hotspot_protocol.Jvm(50, 5, 19, 990, 991, (4, 5), True)


def test_xrs(proc: Callable[..., str]) -> None:
    assert not hotspot_attach.look(50, proc(caught=8)).catches


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ({"library": "libc.so.6"}, "not a JVM"),
        ({"library": "libjvm.so libj9vm29.so"}, "OpenJ9"),
        ({"arguments": "java -XX:+DisableAttachMechanism x"}, "DisableAttach"),
        ({"environment": "JAVA_TOOL_OPTIONS=-Xmx1g -XX:+DisableAttachMechanism"}, "DisableAttach"),
    ],
)
def test_what_is_left_alone(proc: Callable[..., str], made: dict[str, str], message: str) -> None:
    with pytest.raises(hotspot_attach.NotHotspot, match=message):
        hotspot_attach.look(50, proc(**made))


def test_a_process_that_would_die_of_it_lives() -> None:
    with subprocess.Popen(["sleep", "100"]) as process:
        programs.settled(process, "sleep")
        with pytest.raises(hotspot_attach.NotHotspot):
            hotspot_attach.look(process.pid)
        jvm = jvm_of(process.pid, catches=False)  # as if it had libjvm mapped
        with pytest.raises(hotspot_protocol.HotspotError, match="SIGQUIT"):
            hotspot_attach.command(jvm, "VM.version", 2)
        assert process.poll() is None
        process.kill()


def test_a_process_that_has_ended() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    with pytest.raises(procfs.ProcessGone):
        hotspot_attach.look(process.pid)


def jvm_of(pid: int, catches: bool = True) -> hotspot_protocol.Jvm:
    return hotspot_protocol.Jvm(pid, pid, procfs.start_ticks(pid), os.geteuid(), os.getegid(), (), catches)


@pytest.fixture
def impostor() -> Iterator[Callable[..., hotspot_protocol.Jvm]]:
    started: list[subprocess.Popen[bytes]] = []

    def start(answer: str, count: int = 1, pause: float = 0.0) -> hotspot_protocol.Jvm:
        command = [sys.executable, "-c", IMPOSTOR, answer, str(count), str(pause)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        started.append(process)
        assert process.stdout and process.stderr
        assert process.stdout.readline() == b"listening\n", process.stderr.read()
        return jvm_of(process.pid)

    yield start
    for process in started:
        process.kill()
        process.communicate()
        Path(f"/tmp/.java_pid{process.pid}").unlink(missing_ok=True)


@pytest.mark.parametrize("answer", ["0\nwell\n", "0\n|well\n", "0|\nwell|\n"])
def test_the_protocol(impostor: Callable[..., hotspot_protocol.Jvm], answer: str) -> None:
    assert hotspot_attach.command(impostor(answer, 1, 0.1), "VM.version") == "well\n"


@pytest.mark.parametrize(
    ("answer", "count", "pause", "message"),
    [
        ("1\nno such command", 1, 0, "error 1: no such command"),
        ("nonsense that is not a number at all", 1, 0, "not an answer"),
        ("", 1, 0, "not an answer"),
        ("0", 1, 20, "in time"),
        ("0\nx", 1, 20, "was cut off"),
    ],
)
def test_answers_that_are_none(
    impostor: Callable[..., hotspot_protocol.Jvm], answer: str, count: int, pause: float, message: str
) -> None:
    with pytest.raises(hotspot_protocol.HotspotError, match=message):
        hotspot_attach.command(impostor(answer, count, pause), "VM.version", 1)


def test_an_answer_without_end(impostor: Callable[..., hotspot_protocol.Jvm], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hotspot_attach, "_MAX_OUTPUT", 1 << 20)
    with pytest.raises(hotspot_protocol.HotspotError, match="more than 1048576 bytes"):
        hotspot_attach.command(impostor("0\n" + "x" * 60000, 10000), "VM.version")


@pytest.mark.parametrize("answer", ["0\nreturn code: 3\n", "0\n3\n"], ids=["JDK 9 and later", "JDK 8"])
def test_what_an_agent_returns(impostor: Callable[..., hotspot_protocol.Jvm], answer: str) -> None:
    assert hotspot_attach.load(impostor(answer), os.path.realpath(__file__), "") == 3


def test_jdk_11_has_no_perf_map(impostor: Callable[..., hotspot_protocol.Jvm]) -> None:
    with pytest.raises(hotspot_protocol.HotspotError, match=r"JDK 11.*needs JDK 17"):
        hotspot_attach.perf_map(impostor("0\nOpenJDK 64-Bit Server VM version 11.0.2+9\nJDK 11.0.2\n"), io.BytesIO())


def test_a_socket_of_another_process(impostor: Callable[..., hotspot_protocol.Jvm]) -> None:
    jvm = impostor("0\n")
    other = jvm._replace(own_pid=jvm.pid, pid=os.getpid(), start_ticks=procfs.start_ticks(os.getpid()), catches=False)
    with pytest.raises(hotspot_protocol.HotspotError, match="not the JVM's"):
        hotspot_attach.command(other, "VM.version", 1)


def test_no_child_is_left(impostor: Callable[..., hotspot_protocol.Jvm]) -> None:
    jvm = impostor("0\n")
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    before = children.read_text()
    hotspot_attach.command(jvm, "VM.version")
    assert children.read_text() == before


SLEEPER = """
public class Sleeper {
    public static void main(String[] arguments) throws Exception {
        System.out.println("up");
        Thread.sleep(60000);
    }
}
"""


@pytest.fixture(scope="session")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("classes")
    (directory / "Sleeper.java").write_text(SLEEPER)
    subprocess.run(["javac", "-d", str(directory), str(directory / "Sleeper.java")], check=True)
    for path in (directory, *directory.parents):
        if path.is_relative_to("/tmp/") and path.owner() == Path.home().owner():
            path.chmod(0o755)
    return directory


@pytest.fixture
def java(classes: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []

    def start(*options: str, before: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
        command = [*before, "java", *options, "-Xmx64m", "-cp", str(classes), "Sleeper"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        started.append(process)
        assert process.stdout and process.stdout.readline() == b"up\n"
        return process

    yield start
    for process in started:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)


@needs_java
def test_a_jvm(java: Callable[..., subprocess.Popen[bytes]]) -> None:
    jvm = hotspot_attach.look(java().pid)
    assert hotspot_attach.version(jvm) >= 8
    text = io.BytesIO()
    size = hotspot_attach.perf_map(jvm, text)
    lines = text.getvalue().decode().splitlines()
    assert size == len(text.getvalue()) and len(lines) > 50
    assert any("StubRoutines" in line for line in lines)
    assert all(line.startswith("0x") for line in lines)
    with pytest.raises(hotspot_protocol.HotspotError, match="Unknown diagnostic command"):
        hotspot_attach.command(jvm, "No.such")
    for left in (f"/tmp/perf-{jvm.pid}.map", f"/tmp/.attach_pid{jvm.pid}"):
        assert not os.path.lexists(left)


@needs_java
def test_a_perf_map_that_was_there_stays(java: Callable[..., subprocess.Popen[bytes]]) -> None:
    jvm = hotspot_attach.look(java().pid)
    theirs = Path(f"/tmp/perf-{jvm.pid}.map")
    theirs.write_text("theirs")
    hotspot_attach.perf_map(jvm, io.BytesIO())
    assert theirs.exists()
    theirs.unlink()


@needs_java
def test_a_jvm_is_not_led_to_another_file(java: Callable[..., subprocess.Popen[bytes]], tmp_path: Path) -> None:
    jvm = hotspot_attach.look(java().pid)
    other, link = tmp_path / "other", Path(f"/tmp/perf-{jvm.pid}.map")
    other.write_text("the service's own")
    link.symlink_to(other)
    try:
        with pytest.raises(hotspot_protocol.HotspotError, match="is not a file of the JVM's user"):
            hotspot_attach.perf_map(jvm, io.BytesIO())
        assert other.read_text() == "the service's own" and link.is_symlink()
    finally:
        link.unlink()


@needs_java
def test_xrs_listens_from_the_start(java: Callable[..., subprocess.Popen[bytes]]) -> None:
    jvm = hotspot_attach.look(java("-Xrs").pid)
    assert not jvm.catches
    assert hotspot_attach.version(jvm) >= 8


@needs_java
def test_attaching_switched_off(java: Callable[..., subprocess.Popen[bytes]]) -> None:
    process = java("-XX:+DisableAttachMechanism")
    with pytest.raises(hotspot_attach.NotHotspot):
        hotspot_attach.look(process.pid)
    process.terminate()
    assert process.communicate(timeout=20)[0] == b""  # no thread dump


@needs_java
@needs_root
def test_another_user_with_a_private_tmp(java: Callable[..., subprocess.Popen[bytes]], classes: Path) -> None:
    """As with PrivateTmp: another /tmp in a mount namespace, another user, and nothing of it outside."""
    script = (
        f"mkdir -p /var/tmp/offheap-hotspot && cp {classes}/*.class /var/tmp/offheap-hotspot/ && "
        "chmod -R a+rX /var/tmp/offheap-hotspot && mount -t tmpfs -o mode=1777 tmpfs /tmp && "
        "exec setpriv --reuid 64001 --regid 64002 --clear-groups java -Xmx64m -cp /var/tmp/offheap-hotspot Sleeper"
    )
    process = subprocess.Popen(["unshare", "-m", "sh", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        assert process.stdout and process.stdout.readline() == b"up\n"
        jvm = hotspot_attach.look(process.pid)
        assert (jvm.uid, jvm.gid) == (64001, 64002)
        assert hotspot_attach.perf_map(jvm, io.BytesIO()) > 1000
        assert not os.path.lexists(f"/tmp/.java_pid{jvm.pid}")
    finally:
        process.terminate()
        process.communicate(timeout=20)
        shutil.rmtree("/var/tmp/offheap-hotspot")
