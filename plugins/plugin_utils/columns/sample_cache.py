# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The file of samples of each capture, made when somebody first needs it: bringing dumps in must not wait for it.

It says nothing that the dump does not. So it may be deleted at any time, and several may make it at once.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ...module_utils.formats import limits
from ..archive.archive import Archive, ArchiveError, Capture
from ..base import unpack
from ..base.byte_size import as_text
from ..base.durable import sync
from ..base.errors import ControllerError
from ..model.raw import Records
from ..model.samples import located
from ..readers import heap_v2
from . import parquet
from .parquet import NAME, SamplesError

# So many take some seconds.
_MANY = 100


def of(archive: Archive, capture: Capture, aside: Path | None = None) -> Path:
    """The samples of a capture, made where there are none, or those of another version of this: in their place, or in
    ``aside`` if nothing is to be kept.

    Raises SamplesError where there cannot be any, ArchiveError where the archive cannot be written to.
    """
    place = capture.derived(NAME)
    if parquet.is_current(place):
        return place
    if aside is not None:
        made = aside / f"{capture.path.name}.parquet"
        _make(capture, made)
        return made
    with _directory(capture) as directory, archive.incoming() as made_in:
        _make(capture, made_in / NAME)
        try:
            sync(made_in / NAME)
            os.rename(made_in / NAME, NAME, dst_dir_fd=directory)
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
        records = _read(capture)
    except (OSError, ControllerError) as error:
        raise SamplesError(f"{capture.path} has no samples: {error}") from error
    try:
        parquet.write(path, located(records, capture.facts.build_ids), capture.facts, capture.sequence)
    except OSError as error:
        raise ArchiveError(f"cannot write {path}: {error}; in check mode nothing is kept") from error


def _read(capture: Capture) -> Records:
    """The dump, checked again: a disk may have damaged it since. Raises OSError or ControllerError."""
    if capture.facts.dump.size > limits.LARGEST_DUMP:
        raise ArchiveError(f"{capture.dump} is larger than {as_text(limits.LARGEST_DUMP)}")
    data = unpack.read(capture.dump, limits.LARGEST_DUMP)
    if hashlib.sha256(data).hexdigest() != capture.facts.dump.sha256:
        raise ArchiveError(f"{capture.dump} is damaged: its checksum is not the one it had when it was brought")
    return heap_v2.parse(data, f"{capture.dump} ({capture.facts.dump.name})")
