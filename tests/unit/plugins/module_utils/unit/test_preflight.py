# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What is refused and what is not, with real programs and scripts. Every refusal names a way out."""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.host import systemd
from ansible_collections.offheap.profiler.plugins.module_utils.malloc import proof
from ansible_collections.offheap.profiler.plugins.module_utils.unit import drop_in, health, preflight, service
from ansible_collections.offheap.profiler.tests.unit.fakes import programs
from ansible_collections.offheap.profiler.tests.unit.fakes.refusals import refusal
from ansible_collections.offheap.profiler.tests.unit.fakes.units import Systemctl, unit

pytestmark = pytest.mark.usefixtures("trusting")

LIBRARY = "/opt/offheap/jemalloc/none/lib/libjemalloc.so.2"
FOR_MUSL = "/opt/offheap/jemalloc/none-musl/lib/libjemalloc.so.2"
NOBODY = 65534
JUST_NOW = str(10**15)  # in microseconds, and not over while a test runs
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


# The unit's state


def test_a_unit_that_runs_or_is_stopped() -> None:
    preflight.check_state(unit())
    preflight.check_state(unit(ActiveState="active", SubState="running"))


@pytest.mark.parametrize(
    ("single", "reason", "way_out"),
    [
        ({"LoadState": "not-found"}, "no-such-unit", "systemctl list-units"),
        ({"LoadState": "masked"}, "masked", "systemctl unmask probe.service"),
        ({"LoadState": "bad-setting"}, "not-loaded", "systemctl status"),
        ({"FragmentPath": "/run/systemd/transient/probe.service"}, "transient", "a file in /etc/systemd/system"),
        ({"CanStart": "no"}, "no-restart", "RefuseManualStart="),
        ({"CanStop": "no", "ActiveState": "active"}, "no-restart", "in a drop-in of yours"),
        ({"ActiveState": "failed", "SubState": "failed"}, "already-failing", "journalctl -u probe.service"),
        ({"ActiveState": "activating", "SubState": "auto-restart"}, "already-failing", "Get it running first"),
        ({"NeedDaemonReload": "yes"}, "needs-daemon-reload", "systemctl daemon-reload"),
    ],
)
def test_a_unit_in_no_state_to_be_restarted(single: dict[str, str], reason: str, way_out: str) -> None:
    refusal(lambda: preflight.check_state(unit(text=single)), reason, "probe.service", way_out)


def test_an_instance_for_one_connection(systemctl: Systemctl) -> None:
    """The next one has another name (systemd.socket(5), Accept=)."""
    instance = unit(Id="echo@1-7-0.service", text={"ActiveState": "active"})
    systemctl.states("Accept=yes\n")
    refusal(lambda: preflight.check_state(instance), "one-connection", "echo.socket", "break off the connection")
    assert systemctl.questions == ["--no-pager show --property Accept -- echo.socket"]
    preflight.check_state(unit(text={"ActiveState": "active"}))
    systemctl.states("Accept=no\n")
    preflight.check_state(instance)


def test_the_systemd_of_a_user() -> None:
    """A restart would end what else the user runs."""
    manager = unit(Id="user@1000.service", text={"ActiveState": "active"})
    refusal(lambda: preflight.check_state(manager), "user-manager", "user@1000.service", "all services of that user")


def test_a_main_process_that_has_gone_into_a_session(systemctl: Systemctl) -> None:
    """A restart would not end what it has started."""
    systemctl.processes("/web", os.getpid())
    running = {"ActiveState": "active", "ControlGroup": "/web"}
    preflight.check_state(unit(text={**running, "MainPID": str(os.getpid())}))
    preflight.check_state(unit(text={**running, "MainPID": str(1 << 30)}))
    preflight.check_state(unit("/usr/bin/podman", text={**running, "MainPID": str(os.getppid())}))
    gone = unit(text={**running, "MainPID": str(os.getppid())})
    refusal(lambda: preflight.check_state(gone), "left-its-group", "probe.service", "Set User=")


def test_a_unit_that_could_not_start_again(tmp_path: Path) -> None:
    """An update has taken its program away, and the running service has not noticed."""
    preflight.check_restart(unit("/bin/sh"))
    gone = unit(tmp_path / "gone")
    refusal(lambda: preflight.check_restart(gone), "would-not-start", f"{tmp_path}/gone", "Correct that first")


@pytest.mark.parametrize(
    ("later", "settled"),
    [
        ({"NRestarts": "9"}, False),
        ({"ActiveState": "activating", "SubState": "auto-restart"}, False),
        ({"ActiveEnterTimestampMonotonic": "1"}, True),
    ],
)
def test_a_unit_that_ends_again_and_again(
    monkeypatch: pytest.MonkeyPatch, later: dict[str, str], settled: bool
) -> None:
    """One that was restarted just now is looked at until it has stayed up for a while."""
    now = {"ActiveState": "active", "NRestarts": "8", "ActiveEnterTimestampMonotonic": JUST_NOW}
    monkeypatch.setattr(health, "_POLL_SECONDS", 0.01)
    monkeypatch.setattr(service, "load", lambda _name: unit(text={**now, **later}))
    if settled:
        preflight.check_state(unit(text=now))
    else:
        refusal(
            lambda: preflight.check_state(unit(text=now)), "already-failing", "ends soon after each start", "8 times"
        )


def test_a_unit_of_a_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systemd, "CGROUP_ROOTS", (str(tmp_path),))
    (tmp_path / "user.slice/user-1000.slice/user@1000.service/app.slice/probe.service").mkdir(parents=True)
    missing = unit(text={"LoadState": "not-found"})
    refusal(lambda: preflight.check_state(missing), "user-unit", "of the user 1000", "systemctl --user edit")


def test_a_reload_that_our_own_file_needs() -> None:
    ours = {"DropInPaths": ["/etc/systemd/system/probe.service.d/90-offheap.conf"]}
    preflight.check_state(unit(NeedDaemonReload="yes", lists=ours))
    theirs = {"DropInPaths": ["/etc/systemd/system/probe.service.d/90-offheap.conf.d"]}
    refusal(lambda: preflight.check_state(unit(NeedDaemonReload="yes", lists=theirs)), "needs-daemon-reload")


# Containers


@pytest.mark.parametrize("command", ["/usr/bin/docker", "/usr/local/bin/podman", "/usr/bin/systemd-nspawn"])
def test_a_container_engine(command: str) -> None:
    refusal(lambda: preflight.check_container(unit("/bin/true", command)), "container", command, "set LD_PRELOAD")


def test_a_container_engine_behind_a_wrapper(directory: Path) -> None:
    """ExecStart= does not show it, but the process does."""
    docker = programs.compiled(directory, "docker")
    with programs.running(docker) as pid:
        running = unit("/bin/sh", ActiveState="active", MainPID=str(pid))
        refusal(lambda: preflight.check_container(running), "container", str(docker), "volume for the dumps")


@pytest.mark.parametrize("setting", ["RootDirectory", "RootImage"])
def test_a_root_of_its_own(setting: str) -> None:
    refusal(
        lambda: preflight.check_container(unit("/bin/true", text={setting: "/srv/root"})),
        "own-root",
        f"{setting}=/srv/root",
        "Install it there",
    )


@as_root
def test_a_process_that_was_started_in_another_root(directory: Path, tmp_path: Path) -> None:
    """As a snap, and unlike a daemon that has gone into a root of its own since."""
    source = "#include <unistd.h>\nint main(int n, char **a) { return n > 1 && chroot(a[1]) ? 1 : (int)sleep(60); }\n"
    program = programs.compiled(directory, "sleeper", source)
    listed = subprocess.run(["ldd", program], check=True, stdout=subprocess.PIPE, text=True).stdout
    root = tmp_path / "root"
    for needed in [*re.findall(r"/\S+", listed), str(program)]:
        (root / needed[1:]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(needed, root / needed[1:])

    def judged(pid: int) -> None:
        preflight.check_container(unit(program, ActiveState="active", MainPID=str(pid)))

    for arguments in ([], [str(tmp_path)], [str(root)]):
        with programs.running(program, *arguments) as pid:
            judged(pid)
    alone = f"mount --rbind {root} {root} && cd {root} && mkdir -p old && pivot_root . old && exec {program}"
    for command in (["chroot", str(root), str(program)], ["unshare", "-m", "sh", "-c", alone]):
        with subprocess.Popen(command) as process:
            refusal(lambda: judged(programs.settled(process, str(program))), "own-root", "another root", "fab trace")
            process.kill()


@pytest.mark.parametrize("command", ["/usr/bin/dockerize", "/opt/docker/bin/java", "/usr/bin/java"])
def test_what_is_no_container_engine(command: str) -> None:
    preflight.check_container(unit(command))


# Programs


def check(program: Path | str, library: Path | str = LIBRARY, **single: str) -> None:
    preflight.check_programs(unit(program, text=single), str(library))


def test_a_dynamic_program(dynamic: Path, library: Path) -> None:
    check(dynamic, library)
    check("/bin/ls", library)
    check("/usr/bin/python3", library)


def test_a_script_by_its_interpreter(tmp_path: Path, library: Path) -> None:
    check(programs.script(tmp_path, "start", "#!/bin/sh\nexec java\n"), library)
    check(programs.script(tmp_path, "env", "#! /usr/bin/env python3\n"), library)
    static = programs.compiled(tmp_path, "static", programs.SLEEPS, "-static")
    start = programs.script(tmp_path, "with-static", f"#!{static} -x\n")
    refusal(lambda: check(start), "static-binary", str(static))


@pytest.mark.parametrize("flag", ["-static", "-static-pie"])
def test_a_static_program(tmp_path: Path, flag: str) -> None:
    static = programs.compiled(tmp_path, "static", programs.SLEEPS, flag)
    refusal(lambda: check(static), "static-binary", str(static), "Use a dynamically linked build")


def test_musl(tmp_path: Path) -> None:
    program = programs.compiled(tmp_path, "musl", programs.SLEEPS, "-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1")
    refusal(lambda: check(program), "musl", "/lib/ld-musl-x86_64.so.1", "Use a glibc build")
    preflight.check_program(str(program), unit(), FOR_MUSL)
    refusal(lambda: preflight.check_program(str(program), unit(), FOR_MUSL, replaces=False), "musl")


def thirty_two_bits() -> bytes:
    """A program for i386: its header and the name of its loader."""
    at = 52 + 32
    ident = b"\x7fELF\x01\x01\x01" + bytes(9)
    header = struct.pack("<HHIIIIIHHHHHH", 2, 3, 1, 0, 52, 0, 0, 52, 32, 1, 40, 0, 0)
    return ident + header + struct.pack("<IIIIIIII", 3, at, at, at, 19, 19, 4, 1) + b"/lib/ld-linux.so.2\0"


def test_another_architecture(tmp_path: Path, dynamic: Path, library: Path) -> None:
    small = tmp_path / "i386"
    small.write_bytes(thirty_two_bits())
    refusal(lambda: check(small, library), "other-architecture", "32-bit i386", "64-bit", "Build jemalloc for")
    check(small)  # the library is not there yet, so nobody can tell
    other = tmp_path / "other"
    content = bytearray(dynamic.read_bytes())
    struct.pack_into("<H", content, 18, 243)
    other.write_bytes(content)
    refusal(lambda: check(other, library), "other-architecture", "64-bit riscv")


@pytest.mark.parametrize("symbol", ["mallctl", "je_mallctl", "_rjem_mallctl"])
def test_a_jemalloc_inside(tmp_path: Path, symbol: str) -> None:
    source = f"int {symbol}(void) {{ return 0; }}\n{programs.SLEEPS}"
    program = programs.compiled(tmp_path, "own", source)
    refusal(lambda: check(program), "own-jemalloc", str(program), "mode: own", "offheap_offered", "--enable-prof")


MESSAGES = 'const char *a = "<jemalloc>: %s", *b = "MALLOC_CONF";\n'


def test_a_stripped_jemalloc_inside(tmp_path: Path) -> None:
    program = programs.compiled(tmp_path, "stripped", MESSAGES + programs.SLEEPS, "-s")
    refusal(lambda: check(program), "own-jemalloc")
    half = programs.compiled(tmp_path, "half", MESSAGES.replace("MALLOC_", "") + programs.SLEEPS, "-s")
    check(half)


def test_a_program_that_links_jemalloc_may_have_it_preloaded(tmp_path: Path) -> None:
    programs.library(tmp_path, "libjemalloc.so.2", "int mallctl(void) { return 0; }\n", "-Wl,-soname,libjemalloc.so.2")
    source = f"extern int mallctl(void);\n{MESSAGES}int (*used)(void) = mallctl;\n{programs.SLEEPS}"
    check(programs.compiled(tmp_path, "linked", source, "-L.", "-l:libjemalloc.so.2"))


def check_kept(program: Path) -> None:
    """As where the allocator stays."""
    preflight.check_programs(unit(program), LIBRARY, replaces=False)


def test_a_program_that_keeps_its_allocator_must_not_have_it_inside(tmp_path: Path) -> None:
    for symbol in ("malloc", "je_mallctl", "tc_malloc", "mi_malloc"):
        source = f"void *{symbol}(unsigned long size) {{ return size ? 0 : 0; }}\n{programs.SLEEPS}"
        program = programs.compiled(tmp_path, "inside", source, "-fno-builtin")
        refusal(lambda program=program: check_kept(program), "allocator-linked-in", str(program), "offheap_offered")  # type: ignore[misc]
    refusal(
        lambda: check_kept(programs.compiled(tmp_path, "stripped", MESSAGES + programs.SLEEPS, "-s")),
        "allocator-linked-in",
    )
    programs.library(tmp_path, "libtcmalloc.so.4", "int tc_malloc;\n", "-Wl,-soname,libtcmalloc.so.4")
    source = f"extern int tc_malloc;\nint *used = &tc_malloc;\n{programs.SLEEPS}"
    check_kept(programs.compiled(tmp_path, "linked", source, "-L.", "-l:libtcmalloc.so.4"))


def test_a_script_that_sets_options_of_its_own_allocator(tmp_path: Path) -> None:
    started = programs.script(tmp_path, "start", "#!/bin/sh\nMALLOC_CONF=narenas:1 exec /bin/sleep 60\n")
    nothing = drop_in.Environment({}, [])
    refusal(lambda: preflight.check_wrappers(unit(started), LIBRARY, nothing), "wrapper-overwrites-preload")
    preflight.check_wrappers(unit(started), LIBRARY, nothing, replaces=False)
    started.write_text("#!/bin/sh\nLD_PRELOAD=/x.so exec /bin/sleep 60\n")
    refusal(
        lambda: preflight.check_wrappers(unit(started), LIBRARY, nothing, replaces=False), "wrapper-overwrites-preload"
    )


@pytest.mark.parametrize("content", [b"", b"#!", b"text", b"\x7fELF" + bytes(100)])
def test_what_is_no_program(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    refusal(lambda: check(path), "not-readable", str(path), "probe.service")


def test_a_program_that_is_not_there() -> None:
    refusal(lambda: check("/nowhere/program"), "not-readable", "/nowhere/program")


def secure(program: Path, uid: int = 0, gid: int = 0) -> bool:
    """Whether the kernel starts the program so that the loader ignores LD_PRELOAD."""
    code = "import os, sys; os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[1])); os.execv(sys.argv[3], ['x'])"
    arguments = ["/usr/bin/python3", "-c", code, str(uid), str(gid), str(program)]
    with subprocess.Popen(arguments, stdin=subprocess.DEVNULL) as process:
        answer = programs.is_secure(programs.settled(process, "x"))
        process.kill()
    return answer


@as_root
def test_file_capabilities(tmp_path: Path, directory: Path) -> None:
    program = programs.compiled(tmp_path, "capable")
    net_bind_service = struct.pack("<IIIII", 0x02000001, 1 << 10, 0, 0, 0)
    os.setxattr(program, "security.capability", net_bind_service)
    refusal(lambda: check(program), "file-capabilities", f"getcap {program}", f"setcap -r {program}")
    refusal(lambda: check(program, NoNewPrivileges="yes"), "file-capabilities", "AmbientCapabilities=")
    os.removexattr(program, "security.capability")
    check(program)


@as_root
@pytest.mark.parametrize("bit", [0o4000, 0o2000])
def test_another_user_or_group_than_the_service(bit: int, public_directory: Path) -> None:
    """As in the kernel: there is no secure mode if the bit changes nothing."""
    program = programs.compiled(public_directory, f"bit-{bit:o}")
    os.chown(program, NOBODY, NOBODY)
    program.chmod(0o755 | bit)
    refusal(lambda: check(program), "setuid", str(program), "NoNewPrivileges=yes")
    assert secure(program)
    refusal(lambda: check(program, DynamicUser="yes"), "setuid")
    check(program, NoNewPrivileges="yes")
    check(program, User=str(NOBODY), Group=str(NOBODY))
    assert not secure(program, uid=NOBODY, gid=NOBODY)
    other = (0, NOBODY) if bit == 0o4000 else (NOBODY, 0)
    os.chown(program, *other)
    program.chmod(0o755 | bit)
    check(program)  # the other of the two differs, but its bit is not set
    assert not secure(program)
    os.chown(program, NOBODY, NOBODY)
    program.chmod(0o644 | bit if bit == 0o2000 else 0o755)
    check(program)  # without execute permission for the group the bit means mandatory locking


def test_only_the_main_program_decides_or_all_of_them(tmp_path: Path, dynamic: Path, systemctl: Systemctl) -> None:
    static = programs.compiled(tmp_path, "static", programs.SLEEPS, "-static")
    with programs.running(dynamic) as good, programs.running(static) as bad:
        systemctl.processes("/g", good, bad)
        mixed = {"ActiveState": "active", "ControlGroup": "/g"}
        preflight.check_programs(unit(static, MainPID=str(good), text=mixed), LIBRARY)
        refusal(
            lambda: preflight.check_programs(unit(dynamic, MainPID=str(bad), text=mixed), LIBRARY),
            "static-binary",
            str(static),
        )
        systemctl.processes("/g", bad)
        refusal(lambda: preflight.check_programs(unit(MainPID="0", text=mixed), LIBRARY), "static-binary")


def test_a_script_that_runs_is_judged_by_its_process(tmp_path: Path, dynamic: Path) -> None:
    """Such as a shell that is static itself, and has long since executed something else."""
    static = programs.compiled(tmp_path, "static", programs.SLEEPS, "-static")
    start = programs.script(tmp_path, "start", f"#!{static}\n")
    with programs.running(dynamic) as pid:
        preflight.check_programs(unit(start, ActiveState="active", MainPID=str(pid)), LIBRARY)


def test_an_active_unit_without_processes(systemctl: Systemctl) -> None:
    umbrella = unit("/bin/true", ActiveState="active", SubState="exited", Type="oneshot", ControlGroup="")
    refusal(lambda: preflight.check_programs(umbrella, LIBRARY), "no-process", "Name the unit whose processes")
    preflight.check_programs(unit("/bin/true", ActiveState="inactive", Type="oneshot"), LIBRARY)


# The library and its options


@pytest.fixture
def proved(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    """Replaces the proof, which has its own tests, with one that records the options and succeeds."""
    seen: list[dict[str, object]] = []

    def prove(_library: str, options: dict[str, object]) -> proof.Proof:
        seen.append(dict(options))
        return proof.Proof(None, "", "5.3.0")

    monkeypatch.setattr(proof, "prove", prove)
    return seen


def test_a_library_that_profiles(library: Path, proved: list[dict[str, object]]) -> None:
    preflight.check_library(str(library), {"lg_prof_sample": 19}, None, may_be_missing=False)
    assert proved == [{"lg_prof_sample": 19}]


def test_units_of_a_run_that_get_the_same_share_its_proof_and_those_of_the_next_do_not(
    library: Path, proved: list[dict[str, object]]
) -> None:
    with preflight.proven_once():
        for options in ({"lg_prof_sample": 19}, {"lg_prof_sample": 17}, {"lg_prof_sample": 19}):
            preflight.check_library(str(library), options, None, may_be_missing=False)
    assert proved == [{"lg_prof_sample": 19}, {"lg_prof_sample": 17}]
    with preflight.proven_once():
        preflight.check_library(str(library), {"lg_prof_sample": 19}, None, may_be_missing=False)
    preflight.check_library(str(library), {"lg_prof_sample": 19}, None, may_be_missing=False)
    assert len(proved) == 4


def test_the_library_for_musl_is_that_of_the_host_beside_it(
    monkeypatch: pytest.MonkeyPatch, proved: list[dict[str, object]]
) -> None:
    """Which can be tried here."""
    refusal(
        lambda: preflight.check_library(FOR_MUSL, {}, None, may_be_missing=False), "musl", FOR_MUSL, "it has ziglang"
    )
    preflight.check_library(FOR_MUSL, {}, "5.3.0", may_be_missing=True)
    monkeypatch.setattr(os.path, "exists", lambda _path: True)
    preflight.check_library(FOR_MUSL, {"lg_prof_sample": 19}, None, may_be_missing=False)
    assert proved == [{"lg_prof_sample": 19}]


def test_a_library_that_does_not(library: Path) -> None:
    refusal(
        lambda: preflight.check_library(str(library), {}, None, may_be_missing=False),
        "library-does-not-load",
        str(library),
        "build it on the oldest host",
    )


def test_a_library_of_a_release_that_crashes_services(public_directory: Path) -> None:
    """By the version that it reports, or the one to be installed."""
    source = Path(programs.__file__).with_name("broken_jemalloc.c").read_text()
    there = str(programs.library(public_directory, "libcrashes.so", source, '-DVERSION="5.3.1-0-g81034ce1f137"'))
    for library, version in ((there, None), (there, "5.3.0"), (LIBRARY, "5.3.1")):
        refusal(
            lambda library=library, version=version: preflight.check_library(library, {}, version, may_be_missing=True),  # type: ignore[misc]
            "library-unsound",
            library,
            "5.3.1 can crash a service",
            "use 5.3.0",
        )


def test_a_library_that_is_not_there() -> None:
    refusal(
        lambda: preflight.check_library(LIBRARY, {}, None, may_be_missing=False),
        "no-library",
        LIBRARY,
        "the role offheap.profiler.jemalloc installs it",
    )
    preflight.check_library(LIBRARY, {"lg_prof_sample": 19}, "5.3.0", may_be_missing=True)


@pytest.mark.parametrize("path", ["lib/libjemalloc.so.2", "/opt/my lib/x.so", "/opt/a:b/x.so", "/opt/%n.so", "", "/"])
def test_a_path_that_ld_preload_cannot_hold(path: str) -> None:
    refusal(lambda: preflight.check_path(path), "bad-library-path", "another directory")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"prof": True}, ["this module sets prof", "remove it"]),
        ({"prof_prefix": "/tmp/x"}, ["prof_prefix", "remove it"]),
        ({"lg_prof_sampel": 19}, ["5.3.0 has no option lg_prof_sampel", "TUNING.md"]),
        ({"narenas": "1,2"}, ["the value of narenas", "Correct it"]),
        ({"Prof": True}, ["'Prof' is not the name", "Correct it"]),
    ],
)
def test_bad_options(options: dict[str, str | bool], words: list[str]) -> None:
    refusal(lambda: preflight.check_library(LIBRARY, options, "5.3.0", may_be_missing=True), "bad-option", *words)


# Space


def test_space(tmp_path: Path) -> None:
    spool = str(tmp_path / "not" / "there" / "yet")
    preflight.check_space(spool, 1)
    refusal(lambda: preflight.check_space(spool, 1 << 40), "disk-full", spool, "profiled_service_min_free_mib")


@as_root
def test_a_full_file_system(tmp_path: Path) -> None:
    """A real file system, full of bytes or full of files."""
    for options, words in (("size=1m", "MiB free"), ("size=64m,nr_inodes=50", "inodes free")):
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(tmp_path)], check=False)
        if done.returncode:
            pytest.skip("this machine mounts no tmpfs")
        try:
            refusal(lambda words=words: preflight.check_space(str(tmp_path / "x"), 2), "disk-full", words)  # type: ignore[misc]
        finally:
            subprocess.run(["umount", str(tmp_path)], check=True)


def test_every_refusal_has_a_test() -> None:
    """Compares with the reasons in the source."""
    reasons = set(re.findall(r'Refusal\(\s*"([a-z-]+)"[,)]', Path(preflight.__file__).read_text()))
    assert len(reasons) > 15
    here = "".join(path.read_text() for path in Path(__file__).parent.glob("test_preflight*.py"))
    assert not {reason for reason in reasons if here.count(f'"{reason}"') == 0}
