# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Who held what lived when a capture was taken, as its agent wrote it, with the places of the stacks and with the names
of variables and types."""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from ...module_utils.formats import holders, limits
from ...module_utils.formats.capture_facts import CaptureFacts
from ...module_utils.formats.errors import OffheapError
from ...module_utils.formats.holders import Holders, Place
from ..archive.archive import read_dump
from ..archive.capture import Capture
from ..base import child, libraries, unpack
from ..base.errors import ControllerError
from ..model import located_bytes
from ..model.samples import Located, located
from ..model.sampling import EXACT
from ..model.series import Stack
from ..readers import heap_v2
from ..symbols.symbolizer import Symbolizer
from .lives_columns import records_of
from .parquet import SamplesError

if TYPE_CHECKING:
    import numpy as np
else:
    np = libraries.optional("numpy")


@dataclass(frozen=True)
class NamedHolders:
    """``stacks[i]`` are the frames of ``look.stacks[i]``. ``names`` are of variables and of tables of virtual
    functions, by their places and whether these are thread-local; what has none is not in it."""

    look: Holders
    stacks: Sequence[Stack]
    names: Mapping[tuple[Place, bool], str]


def read(capture: Capture) -> tuple[Located, Holders]:
    """The stacks of a capture that has holders, in the order of the look's. Raises SamplesError."""
    size = capture.facts.dump.size + limits.LARGEST_HOLDERS
    try:
        answer = child.call(_parsed, capture.dump, capture.holders, capture.facts, size=size)
        profile, about = located_bytes.unpacked(answer)
        look = holders.parse(json.dumps(about).encode())
    except (ControllerError, OffheapError) as error:
        raise SamplesError(f"{capture.path}: {error}") from error
    if len(profile.bounds) != len(look.stacks) + 1:
        raise SamplesError(f"{capture.path}: its stacks do not follow each other")
    return profile, look


def _parsed(dump: Path, beside: Path, facts: CaptureFacts) -> bytes:
    """In the child."""
    text = unpack.read(beside, limits.LARGEST_HOLDERS)
    look = holders.parse(text)
    ends, addresses = array("Q"), array("Q")
    for stack in look.stacks:
        addresses.extend(stack.frames)
        ends.append(len(addresses))
    objects = np.array([stack.living for stack in look.stacks], dtype=np.int64)
    size = np.array([stack.bytes for stack in look.stacks], dtype=np.int64)
    mappings = heap_v2.mappings(read_dump(dump, facts.dump.sha256), str(dump))
    records = records_of(str(beside), EXACT, mappings, (addresses, ends), (objects, size))
    return located_bytes.packed(located(records, facts.build_ids, facts.reused), json.loads(text))


def names(look: Holders, capture: Capture, symbolizer: Symbolizer) -> dict[tuple[Place, bool], str]:
    """The names of places in files, and whether each is thread-local."""
    wanted = {(node.place, node.kind == "thread_local") for node in look.nodes if node.place is not None}
    wanted |= {(place, False) for stack in look.stacks for place, _samples in stack.types}
    by_path = {image.path: image for image in capture.images}
    # The loader may know a file by another path than the kernel, through a link.
    by_name = {PurePosixPath(image.path).name: image for image in capture.images}
    found: dict[tuple[Place, bool], str] = {}
    groups: dict[tuple[str, bool], list[Place]] = {}
    for place, local in wanted:
        groups.setdefault((place.file, local), []).append(place)
    for (file, local), places in groups.items():
        image = by_path.get(file) or by_name.get(PurePosixPath(file).name)
        if image is None:
            continue
        named = symbolizer.variables(image.path, image.build_id, image.sha256, [one.at for one in places], local)
        found.update(((place, local), name) for place, name in zip(places, named, strict=True) if name)
    return found
