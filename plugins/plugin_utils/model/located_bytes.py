# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A located profile as bytes, on its way out of the child process that has parsed it (base/child.py).

The length of a JSON text (8 bytes, little-endian), that text, then the arrays as they lie in memory. What comes back is
checked as if a host had sent it: each index leads to something, and each number is finite.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..base import libraries
from ..base.errors import ControllerError
from . import frame_table
from .location import Locations
from .samples import Located
from .sampling import Measure, Sampling, Scheme

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    np = libraries.optional("numpy")

_HEAD = 8
_TYPES = ("<i4", "<u4", "<i8", "<u8", "<f8")


class LocatedError(ControllerError):
    """Bytes that are not a profile. The message says why."""


def packed(profile: Located, about: Mapping[str, Any]) -> bytes:
    """The profile and what else is to be told (JSON) as bytes, for ``unpacked``."""
    places = profile.locations
    arrays = [
        *(places.image, places.offset, places.address, profile.stacks, profile.bounds),
        *(profile.values, profile.thread_stack, profile.thread_uid, profile.thread_values),
    ]
    text = json.dumps(
        {
            "about": about,
            "measure": profile.measure.value,
            "sampling": [profile.sampling.scheme.value, profile.sampling.interval],
            "images": places.images,
            "names": frame_table.packed((frame,) for frame in profile.names),
            "threads": list(profile.thread_names.items()),
            "arrays": [[array.dtype.newbyteorder("<").str, array.size] for array in arrays],
        }
    ).encode()
    pieces = [np.ascontiguousarray(array).data for array in arrays]
    return b"".join([len(text).to_bytes(_HEAD, "little"), text, *pieces])


def unpacked(data: bytes | bytearray) -> tuple[Located, dict[str, Any]]:
    """The profile, and what else was told. Raises LocatedError."""
    try:
        end = _HEAD + int.from_bytes(data[:_HEAD], "little")
        told = json.loads(data[_HEAD:end])
        profile = _profile(told, _arrays(data, end, told["arrays"]))
        _check(profile)
        return profile, dict(told["about"])
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise LocatedError(f"what was parsed is not a profile: {type(error).__name__}: {error}") from error


def _arrays(data: bytes | bytearray, start: int, described: Sequence[Sequence[Any]]) -> list[NDArray[Any]]:
    found = []
    for kind, count in described:
        if kind not in _TYPES:
            raise ValueError(f"{kind!r} is no type of a column")
        found.append(np.frombuffer(data, kind, count, start) if count else np.zeros(0, kind))
        start += found[-1].nbytes
    if start != len(data):
        raise ValueError("there are other bytes than those of the columns")
    return found


def _profile(told: dict[str, Any], arrays: Sequence[NDArray[Any]]) -> Located:
    image, offset, address, stacks, bounds, values, thread_stack, thread_uid, thread_values = arrays
    scheme, interval = told["sampling"]
    return Located(
        measure=Measure(told["measure"]),
        sampling=Sampling(Scheme(scheme), _whole(interval)),
        locations=Locations([(_text(path), _text(build)) for path, build in told["images"]], image, offset, address),
        names=[frame for (frame,) in frame_table.unpacked(told["names"])],
        stacks=stacks,
        bounds=bounds,
        values=values.reshape(4, len(bounds) - 1),
        thread_stack=thread_stack,
        thread_uid=thread_uid,
        thread_values=thread_values.reshape(4, len(thread_uid)),
        thread_names={_whole(uid): _text(name) for uid, name in told["threads"]},
    )


def _check(profile: Located) -> None:
    places, stacks = profile.locations, len(profile.bounds) - 1
    if not len(places.image) == len(places.offset) == len(places.address):
        raise ValueError("the places differ in number")
    if len(profile.thread_stack) != len(profile.thread_uid):
        raise ValueError("the threads differ in number")
    if profile.bounds[0] != 0 or profile.bounds[-1] != len(profile.stacks) or np.any(np.diff(profile.bounds) < 0):
        raise ValueError("the stacks do not follow each other")
    indices = (
        (places.image, len(places.images)),
        (profile.stacks, len(places) + len(profile.names)),
        (profile.thread_stack, stacks),
    )
    for numbers, limit in indices:
        if len(numbers) and not (numbers.min() >= 0 and numbers.max() < limit):
            raise ValueError("a number leads to nothing")
    if not (np.isfinite(profile.values).all() and np.isfinite(profile.thread_values).all()):
        raise ValueError("a number is not finite")


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 64:
        raise ValueError("a number is out of range")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a text is not a string")
    return value
