# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The proof against Debian's library, which profiles, and against libraries that are broken in one way each."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import yaml

from ansible_collections.offheap.profiler.plugins.module_utils.formats import malloc_conf
from ansible_collections.offheap.profiler.plugins.module_utils.malloc import proof as jemalloc_proof
from ansible_collections.offheap.profiler.tests.unit.fakes import programs
from ansible_collections.offheap.profiler.tests.unit.plugins.plugin_utils.views import profiled_programs

pytestmark = pytest.mark.usefixtures("trusting")

ROOT = Path(__file__).resolve().parents[5]
FAKE = Path(programs.__file__).with_name("broken_jemalloc.c").read_text()


@pytest.fixture(scope="session")
def jemalloc() -> str:
    found = sorted(Path("/usr/lib").glob("*/libjemalloc.so.2"))
    if not found:
        pytest.fail("no libjemalloc2: apt-get install libjemalloc-dev")
    return str(found[0])


@pytest.fixture
def temporary(public_directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the proof makes its own directory, to check that it is removed."""
    directory = Path(tempfile.mkdtemp(dir=public_directory))
    directory.chmod(0o777)
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    return directory


def fake_release(directory: Path, version: str) -> str:
    return str(programs.library(directory, f"libjemalloc-{version}.so", FAKE, f'-DVERSION="{version}"'))


def fake(directory: Path, fault: str) -> str:
    name = f"libjemalloc-{fault.lower()}.so"
    return str(programs.library(directory, name, FAKE, f"-DFAULT={fault}", "-nostartfiles"))


def expect(proof: jemalloc_proof.Proof, failure: str | None, *words: str) -> None:
    assert proof.failure == failure, proof.message
    assert proof.ok == (failure is None)
    for word in words:
        assert word in proof.message


# A library that profiles


def test_debians_library(jemalloc: str, temporary: Path) -> None:
    proof = jemalloc_proof.prove(jemalloc)
    expect(proof, None, "stacks sampled")
    assert proof.version is not None and proof.version.startswith("5.")
    assert list(temporary.iterdir()) == []


def test_all_that_would_write_elsewhere_is_kept_from_it(
    jemalloc: str, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = temporary / "elsewhere"
    elsewhere.mkdir(mode=0o777)
    elsewhere.chmod(0o777)
    monkeypatch.chdir(elsewhere)
    options: dict[str, malloc_conf.Value] = {
        "prof_prefix": str(elsewhere / "x"),
        "lg_prof_interval": 12,
        "prof_final": True,
        "prof_gdump": True,
        "prof_leak": True,
        "prof_leak_error": True,
    }
    expect(jemalloc_proof.prove(jemalloc, options), None)
    assert list(elsewhere.iterdir()) == []
    assert list(temporary.iterdir()) == [elsewhere]


@pytest.mark.parametrize("name", ["prof_active", "prof_thread_active_init"])
def test_options_that_leave_sampling_off_are_no_failure(jemalloc: str, name: str) -> None:
    expect(jemalloc_proof.prove(jemalloc, {name: False, "lg_prof_sample": 19}), None)


def test_options_are_given_back_untouched(jemalloc: str) -> None:
    options: dict[str, malloc_conf.Value] = {"prof_final": True, "lg_prof_sample": 19}
    jemalloc_proof.prove(jemalloc, options)
    assert options == {"prof_final": True, "lg_prof_sample": 19}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"no_such_option": 1}, "no_such_option:1"),
        ({"narenas": "many"}, "narenas:many"),
        ({"lg_prof_sample": "often"}, "lg_prof_sample:often"),
        ({"prof_final": "maybe"}, "prof_final:maybe"),
        ({"dirty_decay_ms": -7}, "dirty_decay_ms:-7"),
        ({"bin_shards": "x"}, "bin_shards:x"),
        ({"abort_conf": True, "no_such_option": 1}, "no_such_option:1"),
    ],
)
def test_an_option_that_it_rejects(jemalloc: str, options: dict[str, malloc_conf.Value], named: str) -> None:
    expect(jemalloc_proof.prove(jemalloc, options), "invalid-conf", named)


def test_options_that_cannot_be_written(jemalloc: str, temporary: Path) -> None:
    with pytest.raises(malloc_conf.MallocConfError):
        jemalloc_proof.prove(jemalloc, {"narenas": "1,2"})
    assert list(temporary.iterdir()) == []


# Libraries that do not


def test_the_fake_without_a_fault_profiles(public_directory: Path) -> None:
    """So that each of the following fails only through its own fault."""
    proof = jemalloc_proof.prove(fake(public_directory, "NONE"))
    expect(proof, None, "100 stacks sampled, 100 of them with callers")
    assert proof.version == "5.3.0-fake"


@pytest.mark.parametrize(
    ("fault", "failure", "words"),
    [
        ("CRASHES", "crashed", ["signal 11"]),
        ("SILENT", "crashed", ["did not answer"]),
        ("PAGES", "page-size", ["Unsupported system page size", "build it on a host with this page size"]),
        ("NO_PROF", "no-prof", ["--enable-prof"]),
        ("NO_DUMP", "no-dump", ["mallctl prof.dump failed"]),
        ("LIES_ABOUT_DUMP", "no-dump", ["wrote no dump"]),
        ("EMPTY_DUMP", "no-dump", ["holds no sample"]),
        ("ONLY_ITSELF", "broken-unwinder", ["only 0 of 100 stacks", "another unwinder"]),
        ("MOSTLY_ITSELF", "broken-unwinder", ["only 10 of 100 stacks"]),
        ("DUMPS_A_PIPE", "no-dump", ["is no regular file"]),
        ("DUMPS_ZEROS", "no-dump", ["symbolic links"]),
        ("DUMPS_NONSENSE", "no-dump", ["cannot be read", "'none'"]),
        ("SAYS_NONSENSE", "crashed", ["did not answer, and said: '[1]'"]),
        ("TALKS_FOR_EVER", "crashed", ["signal 25"]),
    ],
)
def test_a_fault(public_directory: Path, temporary: Path, fault: str, failure: str, words: list[str]) -> None:
    expect(jemalloc_proof.prove(fake(public_directory, fault)), failure, *words)
    assert list(temporary.iterdir()) == []


def test_prof_that_is_off_without_a_word(public_directory: Path) -> None:
    library = programs.library(
        public_directory, "libquiet.so", FAKE.replace('strstr(conf, "prof:true")', "0"), "-DFAULT=NO_PROF"
    )
    proof = jemalloc_proof.prove(str(library))
    expect(proof, "no-prof")
    assert proof.version == "5.3.0-fake"


@pytest.mark.parametrize(
    "source", ["__thread int kept;\n", "extern __thread int kept;\nint use(void) { return kept; }\n"]
)
def test_storage_that_is_found_late(public_directory: Path, source: str) -> None:
    """glibc 2.39 allocates then. What is not initial-exec is refused on every host, before it is run."""
    flags = ("-DFAULT=NONE", "-nostartfiles", "-ftls-model=global-dynamic")
    library = programs.library(public_directory, "liblate.so", FAKE + source, *flags)
    expect(jemalloc_proof.prove(str(library)), "late-tls", "STATIC_TLS", "jemalloc_method=build")


def test_storage_whose_place_is_known_at_the_start(public_directory: Path) -> None:
    source = FAKE + "__thread int kept;\nint use(void) { return kept; }\n"
    flags = ("-DFAULT=NONE", "-nostartfiles", "-ftls-model=initial-exec")
    library = programs.library(public_directory, "libearly.so", source, *flags)
    expect(jemalloc_proof.prove(str(library)), None)


def test_one_that_never_returns(public_directory: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jemalloc_proof, "TIMEOUT_SECONDS", 0.5)
    library = fake(public_directory, "HANGS")
    started = time.monotonic()
    expect(jemalloc_proof.prove(library), "timeout", "within 0.5 s", "may deadlock")
    assert time.monotonic() - started < 5
    assert list(temporary.iterdir()) == []
    assert not [pid for pid in filter(str.isdigit, os.listdir("/proc")) if library in maps(pid)], "it was ended"


def maps(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return ""


def test_what_is_no_library(public_directory: Path) -> None:
    text = public_directory / "libtext.so"
    text.write_text("text")
    for path in (str(text), str(public_directory / "gone.so")):
        expect(jemalloc_proof.prove(path), "does-not-load", path, "oldest host of the platform")


def test_another_architecture(public_directory: Path, jemalloc: str) -> None:
    content = bytearray(Path(jemalloc).read_bytes())
    content[18] = 243  # e_machine: riscv
    path = public_directory / "libother.so"
    path.write_bytes(content)
    expect(jemalloc_proof.prove(str(path)), "does-not-load", str(path))


def test_a_newer_c_library(public_directory: Path) -> None:
    """Built on a newer host: every program under it dies while the loader works."""
    stub = public_directory / "newer"
    stub.mkdir()
    (stub / "versions").write_text("GLIBC_2.99 { global: newer; };\n")
    programs.library(
        stub,
        "libc.so.6",
        "int newer(void) { return 0; }\n",
        "-Wl,--version-script=versions",
        "-Wl,-soname,libc.so.6",
        "-nostdlib",
    )
    source = "extern int newer(void);\nint mallctl(void) { return newer(); }\n"
    library = programs.library(stub, "libnewer.so", source, "-nostdlib", "-L.", "-l:libc.so.6")
    expect(jemalloc_proof.prove(str(library)), "does-not-load", "version `GLIBC_2.99' not found")


def test_a_library_without_mallctl(public_directory: Path) -> None:
    expect(
        jemalloc_proof.prove(str(programs.library(public_directory, "libplain.so"))),
        "does-not-load",
        "defines no mallctl",
    )


# Libraries that others than root may replace


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_library_that_another_user_could_replace_is_not_run(
    public_directory: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even as nobody."""
    told = temporary / "told"
    library = programs.library(public_directory, "libtheirs.so", SPIES, f'-DSPOOL="{told}"')
    os.chown(library, 65534, 0)
    monkeypatch.undo()
    expect(jemalloc_proof.prove(str(library)), "untrusted-path", "chown, chmod")
    assert not told.exists()


def test_a_library_that_is_a_pipe_is_not_opened(public_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    path = public_directory / "libpipe.so"
    os.mkfifo(path)
    expect(jemalloc_proof.prove(str(path)), "untrusted-path")


# Releases that crash services


@pytest.mark.parametrize("version", ["5.3.1", "5.3.1-0-g81034ce1f1373e37dc865038e1bc8eeecf559ce8"])
def test_a_release_that_crashes_services(public_directory: Path, version: str) -> None:
    """Although it profiles, since the proof's process has no threads that end."""
    proof = jemalloc_proof.prove(fake_release(public_directory, version))
    expect(proof, "unsound", "5.3.1 can crash a service", "jemalloc#2981", "use 5.3.0")
    assert proof.version == version


@pytest.mark.parametrize(
    "version", ["5.3.0-0-g54eaed1d8b56", "5.3.10-0-g0", "15.3.1", "5.3", "5.4.0", "0.0.0-0-g0", ""]
)
def test_releases_against_which_nothing_is_known(public_directory: Path, version: str) -> None:
    assert jemalloc_proof.unsound(version) is None
    expect(jemalloc_proof.prove(fake_release(public_directory, version)), None)


def default_release() -> str:
    defaults = yaml.safe_load((ROOT / "roles/jemalloc/defaults/main.yml").read_text())
    return str(defaults["jemalloc_version"])


def test_the_role_s_default_is_sound_and_the_one_that_the_refusal_names() -> None:
    assert jemalloc_proof.unsound(default_release()) is None
    assert all(f"use {default_release()}" in why for why in jemalloc_proof.UNSOUND.values())


@pytest.fixture(scope="session")
def ending_threads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = (ROOT / "tests/agent/programs/ending_threads.c").read_text()
    flags = ("-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread")
    return programs.compiled(tmp_path_factory.mktemp("threads"), "ending_threads", source, *flags)


def status_under(library: str, *command: str | Path, conf: str) -> int:
    environment = {**os.environ, "LD_PRELOAD": library, "MALLOC_CONF": conf}
    return subprocess.run(command, env=environment, timeout=60, check=False).returncode


@pytest.mark.slow
@pytest.mark.parametrize("conf", ["", "prof:true"])
def test_threads_that_free_while_they_end(jemalloc: str, ending_threads: Path, conf: str) -> None:
    """Why 5.3.1 is refused: a correct program dies under it, but not under the default."""
    assert (jemalloc_proof.prove(jemalloc).version or "").startswith(default_release() + "-")
    assert status_under(jemalloc, ending_threads, conf=conf) == 0
    refused, loader = profiled_programs.release("5.3.1")
    assert status_under(refused, *loader, "/bin/true", conf=conf) == 0, "it loads"
    assert status_under(refused, *loader, ending_threads, conf=conf) == -signal.SIGSEGV


# Who runs it

SPIES = (
    FAKE
    + """
#include <fcntl.h>
__attribute__((constructor)) static void tell(void) {
    char path[200], text[200];
    snprintf(path, sizeof path, "%s", SPOOL);
    int file = open(path, O_WRONLY | O_CREAT | O_APPEND, 0666);
    snprintf(text, sizeof text, "%d %d %d\\n", getuid(), getgid(), getgroups(0, 0));
    if (write(file, text, strlen(text)) < 0) abort();
}
"""
)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has anything to give up")
def test_it_does_not_run_as_root(temporary: Path) -> None:
    """A user who can write a library into a product's directory must not become root because we find it."""
    told = temporary / "told"
    library = programs.library(temporary, "libspies.so", SPIES, f'-DSPOOL="{told}"')
    expect(jemalloc_proof.prove(str(library)), None)
    assert set(told.read_text().splitlines()) == {"65534 65534 0"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has files that others cannot read")
def test_a_library_that_only_root_can_read_is_of_no_use(temporary: Path) -> None:
    closed = temporary / "closed"
    closed.mkdir(mode=0o700)
    expect(jemalloc_proof.prove(fake(closed, "NONE")), "does-not-load", "only root can read it")


def test_interpreters_that_cannot_be_run(
    public_directory: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = fake(public_directory, "NONE")
    closed = temporary / "python"
    closed.write_text("")
    missing = str(temporary / "gone")
    monkeypatch.setattr(jemalloc_proof, "_INTERPRETERS", (str(closed), missing, "/usr/bin/python3"))
    expect(jemalloc_proof.prove(library), None)
    monkeypatch.setattr(jemalloc_proof, "_INTERPRETERS", (str(closed), missing))
    expect(jemalloc_proof.prove(library), "crashed", f"cannot run any of {closed}, {missing}")
    assert sys.executable


def test_the_environment_of_ansible_does_not_reach_it(public_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a Python path nor options for the allocator."""
    monkeypatch.setenv("MALLOC_CONF", "no_such_option:1")
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    monkeypatch.setenv("PYTHONMALLOC", "nonsense")
    expect(jemalloc_proof.prove(fake(public_directory, "NONE")), None)


def test_every_failure_has_a_test() -> None:
    here = Path(__file__).read_text()
    assert [name for name in jemalloc_proof._REASONS if f'"{name}"' not in here] == []
