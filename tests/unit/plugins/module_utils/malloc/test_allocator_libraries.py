# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Finding and describing libraries, and the allocators of real processes."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.host import procfs
from ansible_collections.offheap.profiler.plugins.module_utils.malloc import allocator_libraries
from ansible_collections.offheap.profiler.tests.unit.fakes import programs

pytestmark = pytest.mark.usefixtures("trusting")


@pytest.fixture(scope="module")
def sleeper(directory: Path) -> Path:
    return programs.compiled(directory, "sleeper")


def test_host_platform() -> None:
    facts = allocator_libraries.host_platform()
    ldd = subprocess.run(["ldd", "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]
    assert facts["libc"] == "glibc"
    assert ".".join(map(str, facts["libc_version"])) == ldd.split()[-1]
    assert facts["page_size"] == int(subprocess.check_output(["getconf", "PAGE_SIZE"]))
    assert facts["key"] == f"glibc-{platform.machine()}-{facts['page_size']}"
    assert os.access(facts["python"], os.X_OK) and facts["cores"] >= 1


def test_a_c_library_that_is_none_of_gnu(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_name: str) -> str:
        raise ValueError("unrecognized configuration name")

    monkeypatch.setattr(os, "confstr", refuse)
    assert (allocator_libraries.host_platform()["libc"], allocator_libraries.host_platform()["libc_version"]) == (
        "musl",
        [],
    )


def test_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator_libraries, "_PATTERNS", (f"{tmp_path}/lib*/libjemalloc*.so*",))
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib64").symlink_to("lib")
    real = tmp_path / "lib" / "libjemalloc.so.2.1"
    real.write_text("")
    (tmp_path / "lib" / "libjemalloc.so.2").symlink_to("libjemalloc.so.2.1")
    (tmp_path / "lib" / "libjemalloc.so").symlink_to("gone")
    (tmp_path / "lib" / "libjemalloc.so.d").mkdir()
    (tmp_path / "lib" / "libtcmalloc.so").write_text("")
    assert allocator_libraries.installed() == [str(real)], "each file once, by its own name"
    extra = tmp_path / "extra.so"
    extra.write_text("")
    assert allocator_libraries.installed([str(extra), str(tmp_path / "gone")]) == [str(extra), str(real)]


def test_the_usual_places() -> None:
    found = allocator_libraries.installed()
    assert any(path.startswith("/usr/lib/") and "libjemalloc.so" in path for path in found), "that of Debian"


def test_describe(directory: Path) -> None:
    library = programs.library(directory, "libjemalloc-x.so", "int x;\n", "-Wl,--build-id=0xfeed0123")
    facts = allocator_libraries.describe(str(library), prove=False)
    assert facts["build_id"] == "feed0123"
    assert facts["sha256"] == hashlib.sha256(library.read_bytes()).hexdigest()
    assert (facts["prof"], facts["failure"], facts["version"]) == (None, None, None)


def test_describe_with_a_proof() -> None:
    facts = allocator_libraries.describe(
        next(path for path in allocator_libraries.installed() if path.startswith("/usr/lib/")), True
    )
    assert (facts["prof"], facts["failure"]) == (True, None)
    assert facts["version"].startswith("5.") and "stacks sampled" in facts["message"]


@pytest.mark.parametrize("content", [b"", b"text", None])
def test_describe_what_is_no_library(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "libjemalloc.so"
    if content is not None:
        path.write_bytes(content)
    facts = allocator_libraries.describe(str(path), prove=True)
    assert (facts["prof"], facts["failure"]) == (False, "not-readable")
    assert str(path) in facts["message"]


def test_one_that_others_may_replace_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would never end."""
    monkeypatch.undo()
    os.mkfifo(tmp_path / "libjemalloc.so")
    for prove in (True, False):
        facts = allocator_libraries.describe(str(tmp_path / "libjemalloc.so"), prove)
        assert (facts["prof"], facts["failure"], facts["sha256"]) == (False, "untrusted-path", None)
        assert "others than root could replace it: " in facts["message"]


def test_the_c_library_s_own(sleeper: Path) -> None:
    with programs.running(sleeper) as pid:
        assert allocator_libraries.of_process(pid) == {
            "pid": pid,
            "exe": str(sleeper),
            "allocator": "libc",
            "library": None,
            "preloaded": False,
        }


@pytest.mark.parametrize("name", ["jemalloc", "tcmalloc", "mimalloc"])
def test_a_preloaded_library(directory: Path, sleeper: Path, name: str) -> None:
    library = programs.library(directory, f"lib{name}.so.2.0")
    link = directory / f"{name}.so"
    link.symlink_to(library)
    other = programs.library(directory, "libelse.so")
    with programs.running(sleeper, env={"LD_PRELOAD": f"{other} {link}"}) as pid:
        found = allocator_libraries.of_process(pid)
    assert (found["allocator"], found["library"], found["preloaded"]) == (name, str(library), True)


def test_a_linked_library_and_one_preloaded_before_it(directory: Path) -> None:
    linked = programs.library(directory, "libtcmalloc.so.4", "int tc_malloc(void) { return 0; }\n")
    source = f"extern int tc_malloc(void);\nint (*used)(void) = tc_malloc;\n{programs.SLEEPS}"
    program = programs.compiled(
        directory, "linked", source, f"-L{directory}", "-l:libtcmalloc.so.4", f"-Wl,-rpath,{directory}"
    )
    with programs.running(program) as pid:
        found = allocator_libraries.of_process(pid)
    assert (found["allocator"], found["library"], found["preloaded"]) == ("tcmalloc", str(linked), False)
    before = programs.library(directory, "libjemalloc.so.2")
    with programs.running(program, env={"LD_PRELOAD": str(before)}) as pid:
        found = allocator_libraries.of_process(pid)
    assert (found["allocator"], found["library"], found["preloaded"]) == ("jemalloc", str(before), True)


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("mallctl", "jemalloc"),
        ("_rjem_mallctl", "jemalloc"),
        ("tc_malloc", "tcmalloc"),
        ("mi_malloc", "mimalloc"),
        ("malloc", "other"),
    ],
)
def test_one_inside_the_program(directory: Path, symbol: str, name: str) -> None:
    source = f"void *{symbol}(unsigned long size) {{ return size ? 0 : 0; }}\n{programs.SLEEPS}"
    program = programs.compiled(directory, symbol, source, "-fno-builtin")
    with programs.running(program) as pid:
        assert allocator_libraries.of_process(pid)["allocator"] == name


def test_a_program_that_cannot_be_read_any_more(directory: Path) -> None:
    program = programs.compiled(directory, "removed")
    with programs.running(program) as pid:
        program.unlink()
        found = allocator_libraries.of_process(pid)
    assert (found["exe"], found["allocator"]) == (str(program), "unknown")


def test_a_process_that_is_gone() -> None:
    with pytest.raises(procfs.ProcessGone):
        allocator_libraries.of_process(1 << 30)


def test_a_library_is_named_by_its_file_name_alone() -> None:
    for path in ("/usr/lib/libjemalloc.so.2", "/opt/x/libtcmalloc_minimal.so.4.5.9", "/x/libmimalloc-secure.so"):
        assert allocator_libraries.name_of(path)
    for path in (
        "/usr/lib/libjemalloc.so.2/other",
        "/libjemalloc/libx.so",
        "/usr/lib/mylibjemalloc.so",
        "libjemalloc.txt",
    ):
        assert not allocator_libraries.name_of(path)
