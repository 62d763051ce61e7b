# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The messages of pprof's ``profile.proto``, declared at run time: generated code would have to fit the library.

Field numbers and types: github.com/google/pprof, proto/profile.proto.
"""

from __future__ import annotations

from functools import cache
from typing import Any

_PACKAGE = "offheap.perftools.profiles"
# message -> fields: (name, number, type); a type in brackets is repeated, a capitalized one is a message.
_MESSAGES: dict[str, list[tuple[str, int, str]]] = {
    "Profile": [
        ("sample_type", 1, "[ValueType]"),
        ("sample", 2, "[Sample]"),
        ("mapping", 3, "[Mapping]"),
        ("location", 4, "[Location]"),
        ("function", 5, "[Function]"),
        ("string_table", 6, "[string]"),
        ("drop_frames", 7, "int64"),
        ("keep_frames", 8, "int64"),
        ("time_nanos", 9, "int64"),
        ("duration_nanos", 10, "int64"),
        ("period_type", 11, "ValueType"),
        ("period", 12, "int64"),
        ("comment", 13, "[int64]"),
        ("default_sample_type", 14, "int64"),
    ],
    "ValueType": [("type", 1, "int64"), ("unit", 2, "int64")],
    "Sample": [("location_id", 1, "[uint64]"), ("value", 2, "[int64]"), ("label", 3, "[Label]")],
    "Label": [("key", 1, "int64"), ("str", 2, "int64"), ("num", 3, "int64"), ("num_unit", 4, "int64")],
    "Mapping": [
        ("id", 1, "uint64"),
        ("memory_start", 2, "uint64"),
        ("memory_limit", 3, "uint64"),
        ("file_offset", 4, "uint64"),
        ("filename", 5, "int64"),
        ("build_id", 6, "int64"),
        ("has_functions", 7, "bool"),
        ("has_filenames", 8, "bool"),
        ("has_line_numbers", 9, "bool"),
        ("has_inline_frames", 10, "bool"),
    ],
    "Location": [
        ("id", 1, "uint64"),
        ("mapping_id", 2, "uint64"),
        ("address", 3, "uint64"),
        ("line", 4, "[Line]"),
        ("is_folded", 5, "bool"),
    ],
    "Line": [("function_id", 1, "uint64"), ("line", 2, "int64")],
    "Function": [
        ("id", 1, "uint64"),
        ("name", 2, "int64"),
        ("system_name", 3, "int64"),
        ("filename", 4, "int64"),
        ("start_line", 5, "int64"),
    ],
}


@cache
def profile_class() -> Any:
    """The class of the message Profile. Needs protobuf, which is not worth its loading time for any other format."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="offheap/profile.proto", package=_PACKAGE, syntax="proto3")
    field_class = descriptor_pb2.FieldDescriptorProto
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field_name, number, written in fields:
            kind = written.strip("[]")
            repeated = written.startswith("[")
            field = message.field.add(
                name=field_name,
                number=number,
                label=field_class.LABEL_REPEATED if repeated else field_class.LABEL_OPTIONAL,
            )
            if kind in _MESSAGES:
                field.type = field_class.TYPE_MESSAGE
                field.type_name = f".{_PACKAGE}.{kind}"
            else:
                field.type = getattr(field_class, f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Profile"))


def decode_error() -> type[Exception]:
    """What the class raises for bytes that are no such message."""
    from google.protobuf.message import DecodeError

    return DecodeError
