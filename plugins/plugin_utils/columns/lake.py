# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The lake: the numbers of all captures of an archive in three Delta tables, for questions over many of them.

    <lake>/captures    one row a capture: whose it is, when, and what its numbers are
    <lake>/stacks      one row a stack, whoever has it: its functions and its places
    <lake>/points      one row for each stack of each capture: objects and bytes

All of it comes from the archive, so a lake may be deleted and made again. docs/lake.md has the columns, and questions.

A commit to a Delta table is one file that is created only where there is none, in a directory or a bucket. So several
controllers may add at once. A commit notes the captures that it adds (Delta's application transactions), and of two
commits that note the same one, one fails. So each is there once, also if a writer was killed between two tables and
another goes on.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..archive import far_archive
from ..archive.archive import INDEX, Archive
from ..archive.capture import Capture
from ..archive.object_store import ObjectStore, is_address
from ..base import libraries
from ..base.durations import LATEST
from ..base.errors import ControllerError
from ..base.options import from_here
from ..model.series import Moment
from . import parquet, sample_cache
from .dask_cluster import Cluster
from .parquet import SamplesError
from .series_reader import Reader, reading

if TYPE_CHECKING:
    import numpy as np
else:
    np = libraries.optional("numpy")

delta = libraries.optional("deltalake")
pa = libraries.optional("pyarrow")

TABLES = ("captures", "stacks", "points")
_PARTITIONS = {"captures": ["unit", "week"], "stacks": [], "points": ["unit", "week"]}
#: bytes of the files that compaction makes
_FILE = 256 << 20
# Captures of one commit: enough for files worth their name, few enough for the memory of a small controller.
_AT_ONCE = 200
# Other writers make a commit fail, each at most once a commit of its own.
_ATTEMPTS = 50
_LARGEST_INDEX = 1 << 16


class LakeError(ControllerError):
    """A lake cannot be read or written. The message says which and why."""


class Lake:
    """The lake in a directory or at an address, created if there is none. Its methods raise LakeError."""

    def __init__(self, name: str) -> None:
        far = is_address(name)
        self.place = name.rstrip("/") if far else str(from_here(name))
        if ObjectStore(self.place).read(INDEX, _LARGEST_INDEX) if far else (Path(self.place) / INDEX).exists():
            raise LakeError(
                f"{self.place} is an archive, which a lake must not lie in: name another place for the lake"
            )

    def add(
        self,
        archive: Archive,
        reader: Reader,
        captures: Sequence[Capture],
        warn: Callable[[str], None],
        check_mode: bool = False,
    ) -> int:
        """Add those of these captures that the lake lacks; how many. Calls ``warn`` for those that cannot be read."""
        there = set() if check_mode and not self._exists() else set(self._column("captures", "capture"))
        new = [one for one in captures if 0 <= one.time < LATEST and number_of(archive, one) not in there]
        if check_mode:
            return len(new)
        known = set(self._column("stacks", "stack")) if new else set()
        parts = [new[first : first + _AT_ONCE] for first in range(0, len(new), _AT_ONCE)]
        made: Iterator[_Rows] = (_rows(archive, reader, part, known, warn) for part in parts)
        if reader.cluster is not None:
            made = _rows_by_cluster(reader.cluster, archive, reader, parts, known)
        return sum(map(self._commit, made))

    def compact(self) -> dict[str, int]:
        """Write the small files of each table anew as large ones, sorted by stack. Returns the files of each table.

        Readers of the old files are not disturbed: those go a week later, by the next compaction.
        """
        files = {}
        with self._talking():
            for name in TABLES:
                table = self._table(name)
                if name == "points":
                    for unit, week in self._scattered(table):
                        chosen = [("unit", "=", unit), ("week", "=", week)]
                        table.optimize.z_order(["stack"], partition_filters=chosen, target_size=_FILE)
                else:
                    table.optimize.compact(target_size=_FILE)
                table.create_checkpoint()
                table.vacuum(dry_run=False)
                files[name] = len(table.file_uris())
        return files

    def delete(self) -> None:
        """Delete the three tables, so that they can be made again. Nobody may add meanwhile."""
        with self._talking():
            for name in TABLES:
                place = f"{self.place}/{name}"
                if not delta.DeltaTable.is_deltatable(place):
                    continue
                if is_address(place):
                    store = ObjectStore(place)
                    store.remove(list(store.files()))
                else:
                    shutil.rmtree(place)

    def _commit(self, rows: _Rows) -> int:
        """Add the rows of captures; of how many."""
        # The captures last: what they are the captures of is there by then.
        with self._talking():
            self._append_stacks(rows.stacks)
            self._append("points", rows.points)
            return self._append("captures", rows.captures)

    def _append(self, name: str, rows: Mapping[str, Any]) -> int:
        """Append the rows of those captures that nobody has appended; of how many."""
        for _attempt in range(_ATTEMPTS):
            table = self._table(name)
            left = [capture for capture in rows if table.transaction_version(capture) is None]
            if not left:
                return 0
            told = delta.CommitProperties(app_transactions=[delta.Transaction(capture, 1) for capture in left])
            data = pa.concat_tables([rows[capture] for capture in left])
            data = data.sort_by("stack") if name == "points" else data
            try:
                delta.write_deltalake(table, data, mode="append", writer_properties=_packed(), commit_properties=told)
            except delta.exceptions.CommitFailedError:
                continue
            return len(left)
        raise LakeError(
            f"{self.place}/{name}: {_ATTEMPTS} commits failed, since others add at the same time; run again"
        )

    def _append_stacks(self, rows: Mapping[str, Any]) -> None:
        """Insert the stacks that are not there; a commit that somebody else's came before is tried again."""
        data = pa.concat_tables(rows.values()) if rows else None
        if data is None or not len(data):
            return
        for _attempt in range(_ATTEMPTS):
            merged = self._table("stacks").merge(
                data,
                "mine.stack = theirs.stack",
                source_alias="theirs",
                target_alias="mine",
                writer_properties=_packed(),
            )
            try:
                merged.when_not_matched_insert_all().execute()
            except delta.exceptions.CommitFailedError:
                continue
            return
        raise LakeError(
            f"{self.place}/stacks: {_ATTEMPTS} commits failed, since others add at the same time; run again"
        )

    def _table(self, name: str) -> Any:
        place = f"{self.place}/{name}"
        if not delta.DeltaTable.is_deltatable(place):
            try:
                delta.DeltaTable.create(place, _schema(name), partition_by=_PARTITIONS[name], mode="ignore")
            except delta.exceptions.DeltaError:  # another writer may have been first
                if not delta.DeltaTable.is_deltatable(place):
                    raise
        return delta.DeltaTable(place)

    def _exists(self) -> bool:
        with self._talking():
            return bool(delta.DeltaTable.is_deltatable(f"{self.place}/captures"))

    def _column(self, name: str, column: str) -> list[int]:
        with self._talking():
            found: list[int] = self._table(name).to_pyarrow_table(columns=[column]).column(column).to_pylist()
            return found

    def _scattered(self, table: Any) -> list[tuple[str, str]]:
        """The partitions with more than one file that is not as large as it should be."""
        actions = pa.table(table.get_add_actions(flatten=True)).to_pylist()
        key = "partition.unit", "partition.week"
        small = sorted(tuple(one[part] for part in key) for one in actions if one["size_bytes"] < _FILE // 2)
        return [(unit, week) for (unit, week), files in itertools.groupby(small) if len(list(files)) > 1]

    @contextmanager
    def _talking(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError, delta.exceptions.DeltaError) as error:  # ValueError: releases before 1.5
            raise LakeError(f"the lake {self.place}: {error}") from error


class _Rows(NamedTuple):
    """The rows of captures in each table, by the captures' names."""

    captures: dict[str, Any]
    stacks: dict[str, Any]
    points: dict[str, Any]


def _rows(
    archive: Archive, reader: Reader, captures: Sequence[Capture], known: set[int], warn: Callable[[str], None]
) -> _Rows:
    """The rows of these captures, without the stacks that are ``known``, to which theirs are added."""
    rows = _Rows({}, {}, {})
    with tempfile.TemporaryDirectory(prefix="offheap-") as directory:
        for capture in captures:
            name = archive.name_of(capture)
            try:
                samples = sample_cache.of(archive, capture, None if reader.keeps else Path(directory))
                moment = _what_it_holds(parquet.read_moment(samples, capture.time))
                new = sorted(set(moment.stacks.tolist()) - known)
                rows.stacks[name] = _stacks(samples, new, reader.paths(samples, capture, moment, new))
            except SamplesError as error:
                warn(f"a capture of {capture.unit} on {capture.host} was left out: {error}")
                continue
            known.update(new)
            common = {"unit": capture.unit, "week": _week(capture.time), "capture": number_of(archive, capture)}
            count = len(moment.stacks)
            rows.points[name] = pa.table(
                {
                    **{key: _repeated(value, count) for key, value in common.items()},
                    "stack": pa.array(moment.stacks),
                    "objects": pa.array(moment.objects),
                    "bytes": pa.array(moment.bytes),
                },
                schema=_schema("points"),
            )
            about = {"measure": moment.measure.value, "scheme": moment.sampling.scheme.value}
            row = {**common, "name": name, **about, **_about(capture), "interval": moment.sampling.interval}
            rows.captures[name] = pa.Table.from_pylist([row], schema=_schema("captures"))
            reader.progress.capture()
    return rows


def _rows_by_cluster(
    cluster: Cluster,
    archive: Archive,
    reader: Reader,
    parts: Sequence[Sequence[Capture]],
    known: set[int],
) -> Iterator[_Rows]:
    """The same of each of these parts, in their order."""
    calls = []
    for part in parts:
        names = [(unit, host, [archive.name_of(one) for one in of_host]) for (unit, host), of_host in _by_host(part)]
        calls.append((archive.where, names, not reader.keeps))
    for rows, warnings, of_images in cluster.map(_rows_there, calls):
        for name, table in rows.stacks.items():
            numbers = table.column("stack").to_pylist()
            rows.stacks[name] = table.filter(pa.array([number not in known for number in numbers], pa.bool_()))
            known.update(numbers)
        for warning in warnings:
            reader.warn(warning)
        reader.symbolizer.warnings.extend(of_images)
        for _capture in rows.captures:
            reader.progress.capture()
        yield rows


def _rows_there(
    where: str, names: Sequence[tuple[str, str, list[str]]], check_mode: bool
) -> tuple[_Rows, list[str], list[str]]:
    """In a worker: the rows of these captures of units on hosts, with warnings, and those about images."""
    archive = far_archive.opened(where)
    captures = [capture for unit, host, wanted in names for capture in archive.named(unit, host, wanted)]
    warnings: list[str] = []
    with reading(archive, warnings.append, check_mode) as reader:
        rows = _rows(archive, reader, captures, set(), warnings.append)
        return rows, list(warnings), list(reader.symbolizer.warnings)


def _by_host(captures: Sequence[Capture]) -> Iterator[tuple[tuple[str, str], Iterator[Capture]]]:
    return itertools.groupby(captures, key=lambda capture: (capture.unit, capture.host))


def _what_it_holds(moment: Moment) -> Moment:
    """Without the stacks of which nothing is left."""
    held = (moment.objects != 0) | (moment.bytes != 0)
    kept = (row[held] for row in (moment.stacks, moment.objects, moment.bytes))
    return Moment(moment.time, moment.measure, moment.sampling, *kept)


def number_of(archive: Archive, capture: Capture) -> int:
    """A capture's number in the lake: 64 bits of a hash of its path in the archive."""
    return int.from_bytes(blake2b(archive.name_of(capture).encode(), digest_size=8).digest(), "little", signed=True)


def _schema(name: str) -> Any:
    whose = [("unit", pa.string()), ("week", pa.string()), ("capture", pa.int64())]
    texts = ("name", "host", "process", "label", "source", "measure", "scheme", "exe")
    frame = pa.struct([("module", pa.string()), ("build_id", pa.string()), ("offset", pa.int64())])
    fields = {
        "captures": [
            *whose,
            ("time", pa.timestamp("us", "UTC")),
            *((text, pa.string()) for text in texts),
            *((number, pa.int64()) for number in ("sequence", "interval", "dump_bytes", "rss")),
        ],
        "stacks": [("stack", pa.int64()), ("path", pa.string()), ("frames", pa.list_(frame))],
        "points": [*whose, ("stack", pa.int64()), ("objects", pa.float64()), ("bytes", pa.float64())],
    }
    return pa.schema(fields[name])


def _about(capture: Capture) -> dict[str, Any]:
    facts = capture.facts
    return {
        "time": datetime.fromtimestamp(capture.time, timezone.utc),
        "host": capture.host,
        "process": capture.process,
        "sequence": capture.sequence,
        "label": facts.label,
        "source": facts.source,
        "exe": facts.process.exe,
        "dump_bytes": facts.dump.size,
        "rss": facts.memory.get("rss"),
    }


def _stacks(samples: Path, numbers: Sequence[int], paths: Sequence[str]) -> Any:
    """The rows of stacks with these numbers, ascending, and these paths."""
    table = parquet.read_columns(samples, ["stack", "frames"])
    stack = table.column("stack").to_numpy()
    order = np.argsort(stack, kind="stable")
    at = order[np.searchsorted(stack[order], np.array(numbers, dtype=np.int64))]
    frames = table.column("frames").take(pa.array(at)).combine_chunks().cast(_schema("stacks").field("frames").type)
    return pa.table({"stack": pa.array(numbers, pa.int64()), "path": list(paths), "frames": frames}, _schema("stacks"))


def _repeated(value: Any, count: int) -> Any:
    return pa.repeat(pa.scalar(value), count)


def _week(time: float) -> str:
    year, week, _day = datetime.fromtimestamp(time, timezone.utc).isocalendar()
    return f"{year}-W{week:02}"


def _packed() -> Any:
    return delta.WriterProperties(compression="ZSTD")
