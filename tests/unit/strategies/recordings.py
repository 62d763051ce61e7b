# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""async-profiler, as its makers publish it, and recordings of a program in Java with a known leak."""

from __future__ import annotations

import fcntl
import platform
import subprocess
import zipfile
from pathlib import Path

VERSION = "4.5"
_CACHE = Path(__file__).resolve().parents[3] / ".cache" / "async-profiler"
#: what a program in Java that uses it is compiled with
JAR = _CACHE / f"async-profiler-{VERSION}.jar"
#: bytes of native memory that a Deflater holds (deflateInit2_ with the default window and memory level)
DEFLATER = 268_096
_FOLDERS = {"x86_64": "linux-x64", "aarch64": "linux-arm64"}
_SOURCE = """\
import java.util.ArrayList;
import java.util.List;
import java.util.zip.Deflater;
import one.profiler.AsyncProfiler;

public final class Recorded {
    private static final List<Deflater> KEPT = new ArrayList<>();

    private static void serve(int number) {
        Deflater made = new Deflater();
        if (number % 3 == 0) {
            KEPT.add(made);
        } else {
            made.end();
        }
    }

    private static void flush(String library) {
        try {
            AsyncProfiler.getInstance(library).execute("dump,jfr");
        } catch (java.io.IOException error) {
            throw new IllegalStateException(error);
        }
    }

    public static void main(String[] arguments) {
        int count = Integer.parseInt(arguments[0]);
        Runnable work = () -> {
            for (int number = 0; number < count; number++) {
                serve(number);
                if (number % (count / 3) == 1) {
                    Deflater over = new Deflater();
                    flush(arguments[1]);
                    over.end();
                }
            }
        };
        work.run();
    }
}
"""


def library(directory: Path) -> Path:
    """async-profiler's library for this machine, in ``directory``. Maven fetches it once for a checkout."""
    _CACHE.mkdir(parents=True, exist_ok=True)
    with (_CACHE / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not JAR.exists():
            artifact = f"tools.profiler:async-profiler:{VERSION}"
            command = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={_CACHE}"]
            subprocess.run(command, check=True, cwd=directory, stdout=subprocess.PIPE)
    with zipfile.ZipFile(JAR) as jar:
        return Path(jar.extract(f"{_FOLDERS[platform.machine()]}/libasyncProfiler.so", directory))


def recording(directory: Path, agent: Path, options: str, count: int = 300) -> Path:
    """A recording, in four chunks, of a program that makes ``count`` Deflaters and keeps every third.

    ``options`` are the profiler's.
    """
    source = directory / "Recorded.java"
    if not source.exists():
        source.write_text(_SOURCE)
        subprocess.run(["javac", "-d", directory, "-cp", JAR, source], check=True)
    file = directory / f"{options.replace('=', '-').replace(',', '-')}-{count}.jfr"
    started = f"-agentpath:{agent}=start,{options},jfr,file={file},loglevel=none"
    classes = f"{directory}:{JAR}"
    command: list[str | Path] = [
        "java",
        "-Xmx64m",
        "-XX:+UseSerialGC",
        started,
        "-cp",
        classes,
        "Recorded",
        str(count),
        agent,
    ]
    subprocess.run(command, check=True, stdout=subprocess.PIPE)
    return file
