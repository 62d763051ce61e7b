# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A lake of many captures: making it from dumps, and ranking what grows in it.

    lake.py [--rank 1,3,10,30,100] [--convert 200] [--output build/bench/lake.json]

``rank-Nk`` is one question over N thousand captures in DuckDB with two threads: the slope of each stack in each
process, the twenty steepest. The captures have 2,000 stacks each, a hundred are one process; their rows are made up and
written as compaction leaves them. The peer is the same question to one Parquet file a capture, up to 3,000 captures. A
hundred thousand need four gigabytes of disk and some minutes.

``convert`` is captures a second from packed dumps (2,000 stacks of 24 frames) to committed rows, their samples
included, by one process and by two with half of the captures each. ``bytes-per-capture`` is the lake's size after
compaction, without the archive; the peer is the samples that the archive keeps. ``requests-per-rank`` is what the
question asks of an S3 server of which the lake has been compacted. ``compaction`` is bytes that it wrote by bytes that
were there.

Seconds are wall-clock time, memory is the largest resident set of the process. Exits with status 1 if ranking is not
about linear (twice the seconds a capture of the smallest case), takes more than two minutes or 1.5 GiB, or does not
find the growing stack; if two processes convert less than 1.7 times as fast as one; or if a capture takes more than
40,000 bytes of the lake.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / ".cache" / "collections"))

import deltalake
import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.archive import Archive
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.capture import Arrived
from ansible_collections.offheap.profiler.plugins.plugin_utils.columns import parquet
from ansible_collections.offheap.profiler.plugins.plugin_utils.columns.lake import TABLES, Lake
from ansible_collections.offheap.profiler.plugins.plugin_utils.columns.series_reader import reading
from ansible_collections.offheap.profiler.tests.bench import archive as dumps
from ansible_collections.offheap.profiler.tests.unit.fakes import duck, s3

STACKS, PER_PROCESS, AT_ONCE = 2000, 100, 1000
START, STEP = 1761234000, 900
MOST_PEER = 3000
MOST_SECONDS, MOST_MEMORY, MOST_BYTES, LEAST_GAIN = 120.0, 1536.0, 40_000, 1.7
RANK = """
SELECT host, stack, regr_slope(bytes, epoch(time)) AS slope
FROM captures JOIN points USING (capture) GROUP BY ALL HAVING count(*) > 2 ORDER BY slope DESC LIMIT 20
"""
RANK_FILES = """
SELECT host, stack, regr_slope(bytes, epoch(time)) AS slope
FROM read_parquet('{}/*.parquet') GROUP BY ALL HAVING count(*) > 2 ORDER BY slope DESC LIMIT 20
"""


def make(place: str, files: str, count: int) -> None:
    """A lake of so many captures, stack 7 of host 0 growing; in ``files`` one file a capture, unless they are many."""
    chosen = np.random.default_rng(4)
    stacks = np.sort(chosen.integers(-(1 << 62), 1 << 62, STACKS))
    sizes = chosen.pareto(1.1, STACKS) * 4096 + 4096
    for first in range(0, count, AT_ONCE):
        numbers = np.arange(first, min(first + AT_ONCE, count))
        host, at = numbers // PER_PROCESS, numbers % PER_PROCESS
        size = sizes[:, None] * chosen.normal(1, 0.1, (STACKS, len(numbers)))
        size[7, host == 0] += (1 << 30) * at[host == 0]
        moments = pa.array((START + STEP * at) * 1_000_000, pa.timestamp("us", "UTC"))
        hosts = pa.array([f"app{number}" for number in host.tolist()])
        shared = {"unit": "service.service", "week": "2025-W43"}
        rows = {"capture": numbers, "time": moments, "host": hosts}
        captures = pa.table({**{key: pa.repeat(value, len(numbers)) for key, value in shared.items()}, **rows})
        columns = {
            "capture": np.tile(numbers, STACKS),
            "stack": np.repeat(stacks, len(numbers)),
            "objects": (size / 4096).ravel(),
            "bytes": size.ravel(),
        }
        points = pa.table({**{key: pa.repeat(value, size.size) for key, value in shared.items()}, **columns})
        for name, table in (("captures", captures), ("points", points)):
            packed = deltalake.WriterProperties(compression="ZSTD")
            by = ["unit", "week"]
            deltalake.write_deltalake(
                f"{place}/{name}", table, mode="append", partition_by=by, writer_properties=packed
            )
        for column, number in enumerate(numbers.tolist() if count <= MOST_PEER else []):
            one = {"stack": stacks, "objects": size[:, column] / 4096, "bytes": size[:, column]}
            about = {"host": pa.repeat(hosts[column], STACKS), "time": pa.repeat(moments[column], STACKS)}
            pq.write_table(pa.table({**about, **one}), f"{files}/{number}.parquet", compression="zstd")
    print("{}")


def rank(place: str) -> None:
    """Ask the lake, or the files of a directory, and print the seconds and who is first."""
    started = time.perf_counter()
    with duckdb.connect(config={"threads": 2}) as connection:
        if place.endswith("/files"):
            first = connection.execute(RANK_FILES.format(place)).fetchone()
        else:
            duck.open_tables(connection, place, ("captures", "points"))
            first = connection.execute(RANK).fetchone()
    assert first is not None
    print(json.dumps({"seconds": time.perf_counter() - started, "host": first[0]}))


def convert(root: Path, place: str, half: int, halves: int) -> None:
    """Add one of the halves of an archive's hosts, and print the seconds."""
    archive = Archive.open(root)
    captures = [capture for number, capture in enumerate(archive.captures()) if number % halves == half]
    warnings: list[str] = []
    started = time.perf_counter()
    with reading(archive, warnings.append) as reader:
        added = Lake(place).add(archive, reader, captures, warnings.append)
    print(json.dumps({"seconds": time.perf_counter() - started, "added": added}))


def row(case: str, metric: str, unit: str, ours: float, peer: float | None = None, name: str = "") -> dict[str, Any]:
    ratio = round(ours if peer is None else ours / peer, 3)
    peer = None if peer is None else round(peer, 3)
    told = {"case": case, "metric": metric, "unit": unit, "ours": round(ours, 3)}
    return {**told, "peer": peer, "peer_name": name or None, "ratio": ratio}


def size_of(place: Path) -> int:
    """Bytes of the files that the newest version of each table has."""
    tables = (pa.table(deltalake.DeltaTable(f"{place}/{name}").get_add_actions()) for name in TABLES)
    return sum(sum(table.column("size_bytes").to_pylist()) for table in tables)


def measure_rank(thousands: list[int], directory: Path) -> tuple[list[dict[str, Any]], list[str]]:
    rows, broken, each = [], [], 0.0
    for thousand in thousands:
        case, count = f"rank-{thousand}k", 1000 * thousand
        place, files = directory / case, directory / f"{case}-files" / "files"
        files.mkdir(parents=True)
        # In a process of its own: what a process holds when it starts another counts as that one's memory.
        dumps.finished(dumps.started("make", place, files, count, script=__file__))
        told, memory = dumps.finished(dumps.started("rank", place, script=__file__))
        peer = (
            dumps.finished(dumps.started("rank", files, script=__file__))[0]["seconds"] if count <= MOST_PEER else None
        )
        shutil.rmtree(files.parent)
        shutil.rmtree(place)
        seconds, mebibytes = told["seconds"], memory / (1 << 20)
        rows.append(row(case, "seconds", "s", seconds, peer, "one Parquet a capture" if peer else ""))
        rows.append(row(case, "memory", "MiB", mebibytes))
        print(f"{case}: {seconds:.1f} s, {mebibytes:.0f} MiB", flush=True)
        each = each or seconds / count
        if told["host"] != "app0":
            broken.append(f"{case}: {told['host']} is first, not app0")
        if seconds / count > 2 * each:
            broken.append(f"{case}: {seconds:.1f} s is not linear")
        if seconds > MOST_SECONDS or mebibytes > MOST_MEMORY:
            broken.append(f"{case}: {seconds:.1f} s and {mebibytes:.0f} MiB")
    return rows, broken


def measure_convert(count: int, directory: Path) -> tuple[list[dict[str, Any]], list[str]]:
    library = dumps.image(directory)
    made = dumps.Captures(library)
    speeds, root, place = {}, directory, directory
    for workers in (1, 2):
        root, place = directory / f"archive-{workers}", directory / f"lake-{workers}"
        archive = Archive.create(root)
        archive.add_image(dumps.BUILD_ID, library.name, library)
        with archive.incoming() as aside:
            arrived = []
            for number in range(count):
                content = made.dump(number // 20, number % 20)
                (aside / f"dump-{number}").write_bytes(content)
                about = dumps.facts(content, number // 20, number % 20)
                arrived.append(Arrived(about, aside / f"dump-{number}"))
            archive.add_captures(arrived, aside)
        at_once = [dumps.started("convert", root, place, worker, workers, script=__file__) for worker in range(workers)]
        told = [dumps.finished(process)[0] for process in at_once]
        assert sum(one["added"] for one in told) == count
        speeds[workers] = count / max(one["seconds"] for one in told)
    rows = [row("convert-1", "captures_per_second", "1/s", speeds[1])]
    rows.append(row("convert-2", "captures_per_second", "1/s", speeds[2], speeds[1], "one worker"))
    before = size_of(place)
    began = time.perf_counter()
    Lake(str(place)).compact()
    rows.append(row("compaction", "seconds", "s", time.perf_counter() - began))
    rows.append(row("compaction", "amplification", "bytes written by bytes there", size_of(place) / before))
    samples = sum(path.stat().st_size for path in root.glob(f"captures/*/*/*/*/{parquet.NAME}"))
    rows.append(row("bytes-per-capture", "size", "B", size_of(place) / count, samples / count, "samples.parquet"))
    with s3.running() as server:
        os.environ.update(server.environment)
        address = f"{server.bucket()}/lake"
        archive = Archive.open(root)
        with reading(archive, print) as reader:
            Lake(address).add(archive, reader, archive.captures(), print)
        Lake(address).compact()
        server.requests()
        dumps.finished(dumps.started("rank", address, script=__file__))
        rows.append(row("requests-per-rank", "requests", "requests", len(server.requests())))
    broken = []
    if speeds[2] < LEAST_GAIN * speeds[1]:
        broken.append(f"convert-2: {speeds[2] / speeds[1]:.2f} times one worker")
    if size_of(place) > MOST_BYTES * count:
        broken.append(f"bytes-per-capture: {size_of(place) / count:.0f}")
    return rows, broken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rank", default="1,3,10,30,100", help="thousands of captures")
    parser.add_argument("--convert", type=int, default=200)
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "bench" / "lake.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="offheap-bench-") as directory:
        rows, broken = measure_convert(options.convert, Path(directory))
        ranked, slow = measure_rank([int(thousand) for thousand in options.rank.split(",")], Path(directory))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps({"rows": rows + ranked}, indent=2) + "\n")
    print(options.output.read_text(), *broken, *slow, sep="\n")
    raise SystemExit(bool(broken or slow))


if __name__ == "__main__":
    if sys.argv[1:2] == ["make"]:
        make(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    elif sys.argv[1:2] == ["rank"]:
        rank(sys.argv[2])
    elif sys.argv[1:2] == ["convert"]:
        convert(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
    else:
        main()
