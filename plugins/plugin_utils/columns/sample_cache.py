# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The file of samples of each capture, made when somebody first needs it: bringing dumps in must not wait for it.

It says nothing that the dump does not. So it may be deleted at any time, and several may make it at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..archive.archive import Archive, ArchiveError, Capture
from ..base.durable import sync
from ..base.errors import ControllerError
from . import parquet, verified_dump
from .parquet import NAME, SamplesError

# Larger dumps have no samples: making them takes twenty times the dump's size in memory.
_LARGEST = 64 << 20
# So many take some seconds.
_MANY = 100


def of(archive: Archive, capture: Capture, passing: Path | None = None) -> Path:
    """The samples of a capture, made where there are none, or those of another version of this: in their place, or in
    C(passing) if nothing is to be kept.

    Raises SamplesError where there cannot be any, ArchiveError where the archive cannot be written to.
    """
    place = capture.derived(NAME)
    if parquet.is_current(place):
        return place
    if passing is not None:
        made = passing / f"{capture.path.name}.parquet"
        _make(capture, made)
        return made
    with _directory(capture) as directory, archive.incoming() as aside:
        _make(capture, aside / NAME)
        try:
            sync(aside / NAME)
            os.rename(aside / NAME, NAME, dst_dir_fd=directory)
        except FileNotFoundError as error:
            raise SamplesError(f"{capture.path} has no samples: it was removed") from error
        except OSError as error:
            raise ArchiveError(f"cannot keep {place}: {error}; in check mode nothing is kept") from error
    return place


def notice(archive: Archive, units: Sequence[str], hosts: Sequence[str]) -> str:
    """What to tell somebody who is about to wait for samples of these (else all) units and hosts; empty for few."""
    new = archive.lacking(NAME, units, hosts)
    return f"reading up to {new} captures for the first time; this may take minutes" if new >= _MANY else ""


@contextmanager
def _directory(capture: Capture) -> Iterator[int]:
    """A descriptor of the capture's directory, so that nothing is put into what takes its place once it is removed."""
    try:
        descriptor = os.open(capture.path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise SamplesError(f"{capture.path} has no samples: {error}") from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _make(capture: Capture, path: Path) -> None:
    try:
        dump = verified_dump.read(capture, _LARGEST)
    except (OSError, ControllerError) as error:
        raise SamplesError(f"{capture.path} has no samples: {error}") from error
    try:
        parquet.write(path, dump, capture.facts, capture.sequence)
    except OSError as error:
        raise ArchiveError(f"cannot write {path}: {error}; in check mode nothing is kept") from error
