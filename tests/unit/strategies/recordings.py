# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""async-profiler and Datadog's profiler for Java, as their makers publish them, and recordings of programs in Java that
leak."""

from __future__ import annotations

import fcntl
import platform
import subprocess
import zipfile
from pathlib import Path

VERSION = "4.5"
#: of dd-java-agent, which brings Datadog's
DATADOG_VERSION = "1.68.1"
_CACHE = Path(__file__).resolve().parents[3] / ".cache" / "maven"
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


_INFLATES = """\
import java.util.ArrayList;
import java.util.zip.Inflater;

public final class Inflates {
    public static void main(String[] arguments) {
        ArrayList<Object> kept = new ArrayList<>();
        for (int number = 0; number < 3000; number++) {
            kept.add(number % 2 == 0 ? new Inflater() : java.nio.ByteBuffer.allocateDirect(20000));
        }
    }
}
"""


def library(directory: Path) -> Path:
    """async-profiler's library for this machine, in ``directory``."""
    return _from_jar(f"tools.profiler:async-profiler:{VERSION}", "", "libasyncProfiler.so", directory)


def _from_jar(artifact: str, folder: str, name: str, directory: Path) -> Path:
    """A file for this machine out of a jar, which Maven fetches once for a checkout."""
    _CACHE.mkdir(parents=True, exist_ok=True)
    jar = _CACHE / f"{'-'.join(artifact.split(':')[1:])}.jar"
    with (_CACHE / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not jar.exists():
            command = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={_CACHE}"]
            subprocess.run(command, check=True, cwd=directory, stdout=subprocess.PIPE)
    with zipfile.ZipFile(jar) as found:
        return Path(found.extract(f"{folder}{_FOLDERS[platform.machine()]}/{name}", directory))


def datadogs_recording(directory: Path) -> Path:
    """By the library that dd-java-agent brings, without the agent around it, which sends its recordings away."""
    artifact = f"com.datadoghq:dd-java-agent:{DATADOG_VERSION}"
    agent = _from_jar(artifact, "shared/META-INF/native-libs/", "libjavaProfiler.so", directory)
    (directory / "Inflates.java").write_text(_INFLATES)
    subprocess.run(["javac", directory / "Inflates.java"], check=True)
    options = f"-agentpath:{agent}=start,nativemem=65536,jfr,file={directory}/x.jfr"
    command: list[str | Path] = ["java", "-Xmx256m", options, "-cp", directory, "Inflates"]
    subprocess.run(command, check=True, stdout=subprocess.PIPE)
    return directory / "x.jfr"


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
