# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""OpenTelemetry's profiles, ``ProfilesData`` as protobuf: what a collector receives, and async-profiler writes.

It is pprof's model in another shape: all tables are in one dictionary and begin with an entry that means nothing, each
profile counts one thing, and stacks have a table of their own. So it is read as pprof's (pprof_profile.py). A sample
with times and no values counts one for each time. Version 1.10 has given fields other numbers; older files are refused,
since their values would be taken for something else. A collector may put several processes in one file, each of them a
resource: their sum would be nobody's memory. So would be that of what was in use at two times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ...module_utils.formats.protobuf_fields import BYTES, Damaged, Field, fields
from ..base import profile_proto
from ..base.printable import printable
from ..model.raw import Records, Told
from . import pprof_profile
from .format_error import FormatError, UnusableError
from .protobuf_pieces import pieces
from .stack_builder import MOST_FRAMES

_RESOURCES, _DICTIONARY = 1 << 3 | BYTES, 2 << 3 | BYTES
# In ResourceProfiles and in ScopeProfiles: what they describe, and what is below, beside its schema.
_DESCRIBED, _BELOW = 1 << 3 | BYTES, 2 << 3 | BYTES
_MOST_NUMBERS = 3
# Of a file that is to be recognized: a collector puts some thousands together.
_MOST_RESOURCES = 1 << 16
_MOST_OF_DICTIONARY, _MOST_OF_PROFILE = 7, 11
_IN_USE = (b"inuse_space", b"heap_space")
_BUILD_ID = b"process.executable.build_id.gnu"
# Of which each stack may have a number.
_MOST_TYPES = 64
_SAMPLES_AT_ONCE = 1 << 14


def recognizes(data: bytes) -> bool:
    """Only whole data: that it has no other fields than its two is what tells it from pprof's, where the messages of
    field 1 begin with a number. Not all samples of those have to be gone through for it."""
    found = set()
    try:
        for number, field in enumerate(fields(data, 0, len(data), _MOST_NUMBERS - 1)):
            if number >= _MOST_RESOURCES or (field.content < field.end and data[field.content] & 7 != BYTES):
                return False
            found.add(field.key)
    except Damaged:
        return False
    return found == {_RESOURCES, _DICTIONARY}


def parse(data: bytes, name: str, told: Told) -> Records:
    """The profiles in ``data``; ``name`` is only for messages. Raises FormatError, UnusableError."""
    try:
        return pprof_profile.assembled(_as_pprof(data, name), name, told)
    except (Damaged, profile_proto.decode_error()) as error:
        why = printable(str(error)) or "its protobuf is damaged"
        raise FormatError(name, 1, f"profiles of OpenTelemetry ({why})") from None


def _as_pprof(data: bytes, name: str) -> Iterator[Any]:
    """The same as parts of one profile of pprof."""
    top = list(fields(data, 0, len(data), _MOST_NUMBERS - 1))
    dictionary = _Dictionary()
    of_dictionary = profile_proto.message_class("OtlpDictionary")
    for field in top:
        if field.key == _DICTIONARY:
            for piece in pieces(data, _MOST_OF_DICTIONARY, field.content, field.end):
                yield dictionary.learn(of_dictionary.FromString(piece))
    yield dictionary.mappings()
    profiles: list[Field] = []
    described: set[bytes] = set()
    for resource in top:
        if resource.key == _RESOURCES:
            of_resource = [profile for scope in _below(data, resource) for profile in _below(data, scope)]
            profiles += of_resource
            if of_resource:
                described.add(b"".join(data[one.content : one.end] for one in _below(data, resource, _DESCRIBED)))
    if len(described) > 1:
        why = f"has profiles of {len(described)} resources (processes or services): write a file for each of them"
        raise UnusableError(name, why)
    counts: dict[int, list[int]] = {}
    of_profile = profile_proto.message_class("OtlpProfile")
    types: dict[tuple[int, int], int] = {}
    times: dict[tuple[int, int], set[int]] = {}
    for place in profiles:
        own: dict[int, int] = {}
        kind, time = (0, 0), 0
        for piece in pieces(data, _MOST_OF_PROFILE, place.content, place.end):
            part = of_profile.FromString(piece)
            if part.HasField("sample_type"):
                kind = (part.sample_type.type, part.sample_type.unit)
            for sample in part.samples:
                if dictionary.is_older_than(sample):
                    raise UnusableError(name, "is of OpenTelemetry's profiles before 1.10: have a newer tool write it")
                value = sum(sample.values) if sample.values else len(sample.times)
                own[sample.stack] = own.get(sample.stack, 0) + value
            time = part.time_unix_nano or time
            yield _head(part)
        times.setdefault(kind, set()).add(time)
        column = types.setdefault(kind, len(types))
        if column >= _MOST_TYPES:
            raise Damaged(f"more than {_MOST_TYPES} types of numbers")
        for stack, value in own.items():
            values = counts.setdefault(stack, [])
            values += [0] * (column + 1 - len(values))
            values[column] += value
    for kind, looks in times.items():
        if len(looks) > 1 and dictionary.text(kind[0]).replace(b"-", b"_") in _IN_USE:
            raise UnusableError(name, f"has what was in use at {len(looks)} times: write a file for each of them")
    yield _types(types)
    yield from dictionary.samples(counts, len(types))


def _below(data: bytes, field: Field, key: int = _BELOW) -> Iterator[Field]:
    return (one for one in fields(data, field.content, field.end, _MOST_NUMBERS) if one.key == key)


def _head(part: Any) -> Any:
    head = profile_proto.profile_class("bytes")()
    head.period = part.period
    head.period_type.unit = part.period_type.unit
    # A time of more than 63 bits is none.
    head.time_nanos = part.time_unix_nano if part.time_unix_nano < 1 << 63 else 0
    return head


def _types(types: dict[tuple[int, int], int]) -> Any:
    found = profile_proto.profile_class("bytes")()
    for kind, unit in types:
        found.sample_type.add(type=kind, unit=unit)
    return found


class _Dictionary:
    """Numbers of pprof's locations and functions are positions in the tables; those of its mappings, where 0 is none,
    too, since nothing is at position 0."""

    def __init__(self) -> None:
        self._locations = self._functions = 0
        self._strings: list[bytes] = []
        self._attributes: list[tuple[int, bytes]] = []
        self._mappings: list[Any] = []
        self._stacks: list[tuple[int, ...]] = []

    def learn(self, piece: Any) -> Any:
        """What a piece has, as pprof's."""
        part = profile_proto.profile_class("bytes")()
        part.string_table.extend(piece.string_table)
        self._strings += piece.string_table
        self._attributes += [(one.key, one.value.text) for one in piece.attribute_table]
        self._mappings += piece.mapping_table
        for stack in piece.stack_table:
            if len(stack.locations) > MOST_FRAMES:
                raise Damaged(f"a stack of more than {MOST_FRAMES} frames")
            self._stacks.append(tuple(stack.locations))
        for function in piece.function_table:
            part.function.add(
                id=self._functions, name=function.name, system_name=function.system_name, filename=function.filename
            )
            self._functions += 1
        for location in piece.location_table:
            if location.mapping < 0 or any(line.function < 0 for line in location.lines):
                raise Damaged("a number below 0")
            if self._locations:  # the first one means nothing
                made = part.location.add(id=self._locations, mapping_id=location.mapping, address=location.address)
                for line in location.lines:
                    made.line.add(function_id=line.function, line=line.line)
            self._locations += 1
        return part

    def is_older_than(self, sample: Any) -> bool:
        """Whether it is no sample of 1.10: 1.8 and 1.9 have its values where its attributes are, 1.7 has no stacks."""
        uncounted = sample.attributes and not sample.values and not sample.times
        return not self._stacks or uncounted or any(not 0 <= at < len(self._attributes) for at in sample.attributes)

    def text(self, number: int) -> bytes:
        """A text, or an empty one if there is none of that number."""
        return self._strings[number] if 0 <= number < len(self._strings) else b""

    def mappings(self) -> Any:
        """All mappings but the first, with their build-ids, which are texts of their own."""
        part = profile_proto.profile_class("bytes")()
        for number, mapping in enumerate(self._mappings[1:], 1):
            part.mapping.add(
                id=number,
                memory_start=mapping.memory_start,
                memory_limit=mapping.memory_limit,
                file_offset=mapping.file_offset,
                filename=mapping.filename,
                build_id=len(self._strings) + len(part.string_table),
            )
            part.string_table.append(self._build_id(mapping.attributes))
        return part

    def _build_id(self, attributes: Sequence[int]) -> bytes:
        for number in attributes:
            if 0 <= number < len(self._attributes):
                key, text = self._attributes[number]
                if self.text(key) == _BUILD_ID:
                    return text
        return b""

    def samples(self, counts: dict[int, list[int]], width: int) -> Iterator[Any]:
        """The samples, a part at a time."""
        part = profile_proto.profile_class("bytes")()
        for stack, values in counts.items():
            if not 0 <= stack < len(self._stacks):
                raise Damaged(f"it has no stack {stack}")
            if any(not 0 <= value < 1 << 63 for value in values):
                raise Damaged("a number that is negative or does not fit 64 bits")
            if any(location < 0 for location in self._stacks[stack]):
                raise Damaged("a number below 0")
            part.sample.add(location_id=self._stacks[stack], value=values + [0] * (width - len(values)))
            if len(part.sample) >= _SAMPLES_AT_ONCE:
                yield part
                part = profile_proto.profile_class("bytes")()
        yield part
