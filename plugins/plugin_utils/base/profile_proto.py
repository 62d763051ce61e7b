# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The messages of pprof's ``profile.proto`` and of OpenTelemetry's profiles (``Otlp...``), and of a question to
Pyroscope, declared at run time: generated code would have to fit the library.

Field numbers and types: github.com/google/pprof, proto/profile.proto; github.com/open-telemetry/opentelemetry-proto
1.10, opentelemetry/proto/profiles/v1development/profiles.proto and its collector's service;
github.com/grafana/pyroscope, querier.v1.SelectMergeProfileRequest. What is neither read nor written is left out.
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
    "OtlpDictionary": [
        ("mapping_table", 1, "[OtlpMapping]"),
        ("location_table", 2, "[OtlpLocation]"),
        ("function_table", 3, "[OtlpFunction]"),
        ("string_table", 5, "[string]"),
        ("attribute_table", 6, "[OtlpAttribute]"),
        ("stack_table", 7, "[OtlpStack]"),
    ],
    "OtlpProfile": [
        ("sample_type", 1, "OtlpValueType"),
        ("samples", 2, "[OtlpSample]"),
        ("time_unix_nano", 3, "fixed64"),
        ("period_type", 5, "OtlpValueType"),
        ("period", 6, "int64"),
        ("profile_id", 7, "bytes"),
    ],
    "OtlpValueType": [("type", 1, "int32"), ("unit", 2, "int32")],
    "OtlpSample": [
        ("stack", 1, "int32"),
        ("attributes", 2, "[int32]"),
        ("values", 4, "[int64]"),
        ("times", 5, "[fixed64]"),
    ],
    "OtlpStack": [("locations", 1, "[int32]")],
    "OtlpMapping": [
        ("memory_start", 1, "uint64"),
        ("memory_limit", 2, "uint64"),
        ("file_offset", 3, "uint64"),
        ("filename", 4, "int32"),
        ("attributes", 5, "[int32]"),
    ],
    "OtlpLocation": [("mapping", 1, "int32"), ("address", 2, "uint64"), ("lines", 3, "[OtlpLine]")],
    "OtlpLine": [("function", 1, "int32"), ("line", 2, "int64")],
    "OtlpFunction": [("name", 1, "int32"), ("system_name", 2, "int32"), ("filename", 3, "int32")],
    "OtlpAttribute": [("key", 1, "int32"), ("value", 2, "OtlpValue")],
    "OtlpValue": [("text", 1, "string")],
    "OtlpRequest": [("resource_profiles", 1, "[OtlpOfResource]"), ("dictionary", 2, "OtlpDictionary")],
    "OtlpOfResource": [("resource", 1, "OtlpResource"), ("scope_profiles", 2, "[OtlpOfScope]")],
    "OtlpResource": [("attributes", 1, "[OtlpKeyValue]")],
    "OtlpKeyValue": [("key", 1, "string"), ("value", 2, "OtlpValue")],
    "OtlpOfScope": [("profiles", 2, "[OtlpProfile]")],
    "OtlpResponse": [("partial_success", 1, "OtlpPartialSuccess")],
    "OtlpPartialSuccess": [("rejected", 1, "int64"), ("error", 2, "string")],
    "PyroscopeMerge": [("kind", 1, "string"), ("selector", 2, "string"), ("start", 3, "int64"), ("end", 4, "int64")],
}


def profile_class(texts: str = "string") -> Any:
    """The class of pprof's message Profile (message_class)."""
    return message_class("Profile", texts)


def message_class(name: str, texts: str = "bytes") -> Any:
    """The class of a message. Needs protobuf, which is not worth its loading time for any other format.

    ``texts`` is the type of the string table: a reader takes "bytes", since protobuf refuses a whole profile for one
    name that is not UTF-8, and pprof does not.
    """
    from google.protobuf import message_factory

    return message_factory.GetMessageClass(_pool(texts).FindMessageTypeByName(f"{_PACKAGE}.{name}"))


@cache
def _pool(texts: str) -> Any:
    from google.protobuf import descriptor_pb2, descriptor_pool

    file = descriptor_pb2.FileDescriptorProto(name="offheap/profile.proto", package=_PACKAGE, syntax="proto3")
    field_class = descriptor_pb2.FieldDescriptorProto
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field_name, number, written in fields:
            kind = written.strip("[]").replace("string", texts)
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
    return pool


def decode_error() -> type[Exception]:
    """What the class raises for bytes that are no such message."""
    from google.protobuf.message import DecodeError

    return DecodeError
