# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Our totals against jeprof's, on dumps that real processes write while the test runs.

jeprof is $OFFHEAP_JEPROF, else the one that the role jemalloc installed, else the one on PATH (Debian's
libjemalloc-dev); the library is $OFFHEAP_JEMALLOC, else the one beside that jeprof, else Debian's libjemalloc2.
If they are missing, the tests fail rather than leave this unproven in silence.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.model.frame import Frame
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.samples import located, named
from ansible_collections.offheap.profiler.plugins.plugin_utils.readers import heap_v2
from ansible_collections.offheap.profiler.plugins.plugin_utils.views.table import Measure

# Totals need no symbols, and without them jeprof takes a tenth of the time.
NO_SYMBOLS = "--tools=" + ",".join(f"{tool}:/bin/true" for tool in ("addr2line", "nm", "c++filt", "objdump"))

C_PROGRAM = """\
#include <stdlib.h>
#include <pthread.h>
static void *keep[200000];
__attribute__((noinline)) static void *small(int i) { return malloc(16 + i % 900); }
__attribute__((noinline)) static void *large(int i) { return calloc(1, 70000 + 1000 * (i % 100)); }
static void *work(void *base) {
    for (int i = 0; i < 50000; i++) ((void **)base)[i] = i % 500 ? small(i) : large(i);
    return 0;
}
int main(void) {
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], 0, work, keep + 50000 * i);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], 0);
    for (int i = 0; i < 200000; i += 3) free(keep[i]);
    return 0;
}
"""
JAVA_PROGRAM = """\
import java.util.*;
import java.util.zip.*;
public class Leak {
    public static void main(String[] arguments) throws Exception {
        List<Inflater> kept = new ArrayList<>();
        byte[] text = new byte[20000], packed = new byte[30000], out = new byte[20000];
        new Random(1).nextBytes(text);
        Deflater deflater = new Deflater();
        deflater.setInput(text); deflater.finish();
        int size = deflater.deflate(packed);
        for (int i = 0; i < 4000; i++) {
            Inflater inflater = new Inflater();
            inflater.setInput(packed, 0, size); inflater.inflate(out);
            if (i % 10 == 0) kept.add(inflater); else inflater.end();
        }
    }
}
"""
PYTHON_PROGRAM = (
    "import zlib; kept = [zlib.decompressobj() for i in range(3000)]; [d.decompress(b'x\\x9c') for d in kept]"
)


def _jeprof() -> str:
    if jeprof := os.environ.get("OFFHEAP_JEPROF") or shutil.which("jeprof"):
        return jeprof
    pytest.fail("no jeprof: apt-get install libjemalloc-dev, or set OFFHEAP_JEPROF")


def _libjemalloc() -> str:
    candidates = [os.environ.get("OFFHEAP_JEMALLOC", "")]
    candidates.append(str(Path(_jeprof()).resolve().parent.parent / "lib" / "libjemalloc.so.2"))
    candidates += [str(path) for path in sorted(Path("/usr/lib").glob("*/libjemalloc.so.2"))]
    for candidate in candidates:
        if candidate and Path(candidate).exists():
            return candidate
    pytest.fail("no libjemalloc.so.2: apt-get install libjemalloc2, or set OFFHEAP_JEMALLOC")


def _command(program: str, directory: Path) -> list[str]:
    """The program to profile, built if needed. The JDK and the compiler are the lab's own requirements."""
    if program == "c":
        source = directory / "program.c"
        source.write_text(C_PROGRAM)
        subprocess.run(["gcc", "-O1", "-pthread", "-o", directory / "program", source], check=True)
        return [str(directory / "program")]
    if program == "java":
        java = shutil.which("java")
        if java is None:
            pytest.fail("no java: apt-get install default-jdk-headless")
        (directory / "Leak.java").write_text(JAVA_PROGRAM)
        return [os.path.realpath(java), "-Xmx64m", str(directory / "Leak.java")]
    return [os.path.realpath(sys.executable), "-c", PYTHON_PROGRAM]


@pytest.fixture(scope="module", params=["c", pytest.param("java", marks=pytest.mark.soak_only), "python"])
def dumps(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[Path]]:
    directory = tmp_path_factory.mktemp(request.param)
    command = _command(request.param, directory)
    settings = (
        f"prof:true,lg_prof_sample:15,lg_prof_interval:22,prof_final:true,prof_accum:true,prof_prefix:{directory}/p"
    )
    environment = {**os.environ, "LD_PRELOAD": _libjemalloc(), "MALLOC_CONF": settings}
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=120)
    found = sorted(directory.glob("p.*.heap"), key=lambda path: path.stat().st_size)
    assert found, "jemalloc wrote no dump"
    return command[0], [*found[:: max(1, len(found) // 3)], found[-1]]


@pytest.mark.parametrize("kind", ["inuse_space", "inuse_objects", "alloc_space", "alloc_objects"])
def test_totals_equal_jeprofs_to_the_byte(dumps: tuple[str, list[Path]], kind: str) -> None:
    program, paths = dumps
    for path in paths:
        result = named(
            located(heap_v2.parse(path.read_bytes(), path.name), {}),
            lambda locations: [(Frame(f"{location.address:#x}", "app"),) for location in locations],
        )
        ours = result.total(Measure(kind).row)
        printed = subprocess.run(
            [_jeprof(), NO_SYMBOLS, "--text", "--show_bytes", f"--{kind}", program, path],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        total = re.match(r"Total: (\d+)", printed)
        assert total, printed
        # jeprof adds up in the order of a Perl hash: its last bits differ from run to run, and may cross an integer.
        assert int(total[1]) in {int(ours), int(ours + 1e-6), int(ours - 1e-6)}
        assert ours > 0
