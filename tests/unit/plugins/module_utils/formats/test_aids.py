# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Which aids a language runtime gets, and when."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.formats import aids

NODE = ["--perf-basic-prof-only-functions", "--interpreted-frames-native-stack"]


@pytest.mark.parametrize(
    ("executable", "mapped", "runtime"),
    [
        ("/usr/lib/jvm/java-17/bin/java", [], "jvm"),
        ("/usr/bin/jsvc", ["/usr/lib/jvm/java-17/lib/server/libjvm.so"], "jvm"),
        ("/usr/bin/python3.13", [], "python"),
        ("/usr/bin/node", [], "node"),
        ("/usr/bin/nodejs", [], "node"),
        ("/usr/bin/node-22", [], "node"),
        ("/usr/bin/node22", [], "node"),
        ("/usr/bin/node_exporter", [], "native"),
        ("/usr/sbin/nginx", ["/lib/x86_64-linux-gnu/libc.so.6"], "native"),
    ],
)
def test_which_runtime(executable: str, mapped: list[str], runtime: str) -> None:
    assert aids.detect(executable, mapped) == runtime


def test_what_is_left_out() -> None:
    assert aids.additions("jvm", ["memory-tracking"], [], "/bin/java", []) == {
        "JAVA_TOOL_OPTIONS": ["-XX:+PreserveFramePointer"]
    }
    assert aids.additions("native", [], [], "/bin/java", []) == {}


def test_a_node_is_asked_only_for_what_it_knows(tmp_path: Path) -> None:
    """Node does not start with an option that it does not allow in NODE_OPTIONS."""
    program, library = tmp_path / "node", tmp_path / "libnode.so.115"
    program.write_bytes(b"\x7fELF" + b"--perf-basic-prof-only-functions-and-more\0")
    assert aids.additions("node", [], [], str(program), []) == {}
    library.write_bytes(b"\0".join(word.encode() for word in ["", *NODE, ""]))
    assert aids.additions("node", [], [], str(program), [str(library)]) == {"NODE_OPTIONS": NODE}
    assert aids.additions("node", [], [], str(tmp_path / "gone"), []) == {}
    library.write_bytes(b"")
    assert aids.additions("node", [], [], str(program), [str(library)]) == {}


def test_a_real_node_starts_with_it(tmp_path: Path) -> None:
    node = shutil.which("node")
    if not node:
        pytest.skip("no node")
    mapped = subprocess.run(["ldd", node], capture_output=True, text=True, check=True).stdout.split()
    words = aids.additions("node", [], [], node, mapped)["NODE_OPTIONS"]
    script = "require('fs').unlinkSync(`/tmp/perf-${process.pid}.map`); console.log(process.env.NODE_OPTIONS)"
    environment = {"NODE_OPTIONS": " ".join(words)}
    done = subprocess.run(
        [node, "-e", script], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == NODE
    assert list(tmp_path.iterdir()) == [], "it leaves nothing in the working directory"


def test_an_option_that_is_set_stays() -> None:
    words = ["-XX:+PreserveFramePointer", "-XX:NativeMemoryTracking=summary"]
    assert aids.merge("-Xmx1g -XX:-PreserveFramePointer", words) == (
        "-Xmx1g -XX:-PreserveFramePointer -XX:NativeMemoryTracking=summary"
    )


def test_a_variable_that_holds_one_word_stays() -> None:
    assert aids.merge("debug", ["malloc"]) == "debug"
    assert aids.merge("", ["malloc"]) == "malloc"


def test_python_s_objects_are_allocated_by_malloc_where_that_is_asked_for(tmp_path: Path) -> None:
    """A free-threaded Python, which has no pymalloc, does not start with another malloc than its own."""
    program, library = tmp_path / "python3.13", tmp_path / "libpython3.13.so.1.0"
    program.write_bytes(b"\x7fELF" + b"pymalloc_debug\0")
    asked = {"PYTHONPERFSUPPORT": ["1"], "PYTHONMALLOC": ["malloc"]}
    assert aids.additions("python", [], ["objects"], str(program), []) == asked
    assert aids.additions("python", [], [], str(program), []) == {"PYTHONPERFSUPPORT": ["1"]}
    assert aids.additions("python", ["perf-map"], [], str(program), []) == {}
    program.write_bytes(b"\x7fELF")
    assert aids.additions("python", [], ["objects"], str(program), []) == {"PYTHONPERFSUPPORT": ["1"]}
    library.write_bytes(b"\0pymalloc_debug\0")
    assert aids.additions("python", [], ["objects"], str(program), [str(library)]) == asked


def test_this_python_starts_with_it() -> None:
    executable = os.path.realpath(sys.executable)
    mapped = subprocess.run(["ldd", executable], capture_output=True, text=True, check=True).stdout.split()
    words = aids.additions("python", [], ["objects"], executable, mapped)
    environment = {name: " ".join(value) for name, value in words.items()}
    script = "import os; print(os.environ['PYTHONMALLOC'])"
    done = subprocess.run([executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "malloc\n"
