# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The samples file of each capture, made on first use so that collecting dumps need not wait for it.

It says nothing that the dump does not, so it may be deleted at any time, and several processes may make it at once.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from ...module_utils.formats import limits
from ...module_utils.formats.capture_facts import CaptureFacts
from ..archive.archive import Archive, ArchiveError, read_dump
from ..archive.capture import Capture
from ..base import child
from ..base.byte_size import as_text
from ..base.durable import sync
from ..base.errors import ControllerError
from ..model import located_bytes
from ..model.samples import Located, located
from ..readers import detect
from . import parquet
from .parquet import NAME, SamplesError

# Threads that write; parsing waits for them, so that few profiles are in memory at once.
_WRITERS = 2
#: the profile of a dump with so many bytes is in memory alone
LARGE = 8 << 20


def of(archive: Archive, capture: Capture, aside: Path | None = None) -> Path:
    """The samples file of a capture, made if it is missing or of another format: in its place, or in ``aside`` if
    nothing is to be kept.

    Raises SamplesError if it cannot be made, ArchiveError if it cannot be written.
    """
    return kept(archive, capture, NAME, lambda path: _write(capture, _profile(capture), path), aside)


def each(archive: Archive, captures: Sequence[Capture], aside: Path | None = None) -> Iterator[Path | SamplesError]:
    """The same of each of these captures, or why it cannot be made. While one is written, the next is parsed."""
    with ThreadPoolExecutor(_WRITERS) as writers:
        begun: deque[Future[Path]] = deque()
        for capture in captures:
            beside = _WRITERS if capture.facts.dump.size < LARGE else 0
            yield from _outcomes(begun, beside)
            begun.append(_begun(archive, capture, aside, writers))
            yield from _outcomes(begun, beside)
        yield from _outcomes(begun, 0)


def _outcomes(begun: deque[Future[Path]], left: int) -> Iterator[Path | SamplesError]:
    """Of the first of them, until no more than ``left`` are."""
    while len(begun) > left:
        yield _outcome(begun.popleft())


def _begun(archive: Archive, capture: Capture, aside: Path | None, writers: Executor) -> Future[Path]:
    done: Future[Path] = Future()
    try:
        place = capture.derived(NAME)
        if not parquet.is_current(place):
            write = partial(_write, capture, _profile(capture))
            return writers.submit(_keep, archive, capture, NAME, write, aside)
        done.set_result(place)
    except SamplesError as error:
        done.set_exception(error)
    return done


def _outcome(begun: Future[Path]) -> Path | SamplesError:
    try:
        return begun.result()
    except SamplesError as error:
        return error


def kept(
    archive: Archive, capture: Capture, name: str, make: Callable[[Path], None], aside: Path | None = None
) -> Path:
    """The same of a file with this name, which ``make`` makes."""
    place = capture.derived(name)
    return place if parquet.is_current(place) else _keep(archive, capture, name, make, aside)


def _keep(archive: Archive, capture: Capture, name: str, make: Callable[[Path], None], aside: Path | None) -> Path:
    if aside is not None:
        made = aside / f"{capture.path.name}.{name}"
        make(made)
        return made
    place = capture.derived(name)
    with _directory(capture) as directory, archive.incoming() as made_in:
        make(made_in / name)
        try:
            sync(made_in / name)
            os.rename(made_in / name, name, dst_dir_fd=directory)
        except FileNotFoundError as error:
            raise SamplesError(f"{capture.path} has no samples: it was removed") from error
        except OSError as error:
            raise ArchiveError(f"cannot keep {place}: {error}; check mode needs no write access") from error
    return place


@contextmanager
def _directory(capture: Capture) -> Iterator[int]:
    """A descriptor of the capture's directory, so that nothing is written to one that has replaced it meanwhile."""
    try:
        descriptor = os.open(capture.path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise SamplesError(f"{capture.path} has no samples: {error}") from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _profile(capture: Capture) -> Located:
    dump = capture.facts.dump
    file = capture.dump  # from elsewhere, perhaps; that it cannot be had now is no problem of this capture
    try:
        if dump.size > limits.LARGEST_DUMP:
            raise ArchiveError(f"{file} is larger than {as_text(limits.LARGEST_DUMP)}")
        answer = child.call(_parsed, file, capture.facts, size=dump.size)
        return located_bytes.unpacked(answer)[0]
    except ControllerError as error:
        raise SamplesError(f"{capture.path} has no samples: {error}") from error


def _write(capture: Capture, profile: Located, path: Path) -> None:
    try:
        parquet.write(path, profile, capture.facts, capture.sequence)
    except OSError as error:
        raise ArchiveError(f"cannot write {path}: {error}") from error


def _parsed(path: Path, facts: CaptureFacts) -> bytes:
    """In the child."""
    dump = facts.dump
    records = detect.parse_capture(read_dump(path, dump.sha256), f"{path} ({dump.name})", facts)
    return located_bytes.packed(located(records, {**records.build_ids, **facts.build_ids}, facts.reused), {})
