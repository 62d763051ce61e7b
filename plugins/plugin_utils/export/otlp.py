# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Samples as a request of OpenTelemetry's profiles, made from pprof's message (pprof.py): all tables are in one
dictionary and begin with an entry that means nothing, each number has a profile of its own, and stacks have a table.

Definition: opentelemetry-proto 1.10, profiles/v1development/profiles.proto and collector/profiles/v1development.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from ..base import profile_proto
from ..model.samples import Samples
from . import pprof
from .pprof import About

_BUILD_ID = "process.executable.build_id.gnu"
_LABELS = {"thread_id": "thread.id", "thread": "thread.name"}


def render(samples: Samples, about: About, resource: Mapping[str, str], identity: str) -> bytes:
    """An ExportProfilesServiceRequest. ``resource`` has the attributes of what was profiled. From ``identity``, which
    no other capture has, come the ids of the profiles, by which a receiver knows one that it has already."""
    return _Writer(pprof.message(samples, about)).write(resource, identity)


class _Writer:
    def __init__(self, profile: Any) -> None:
        self.profile = profile
        self.request: Any = profile_proto.message_class("OtlpRequest", "string")()
        self.tables = self.request.dictionary
        self.strings = {text: number for number, text in enumerate(profile.string_table)}
        self.attributes: dict[tuple[str, str], int] = {}
        self.stacks: dict[tuple[int, ...], int] = {}

    def write(self, resource: Mapping[str, str], identity: str) -> bytes:
        of_resource = self.request.resource_profiles.add()
        for name, text in resource.items():
            of_resource.resource.attributes.add(key=name).value.text = text
        for table in (self.tables.mapping_table, self.tables.location_table, self.tables.function_table):
            table.add()
        self.tables.attribute_table.add()
        self.tables.stack_table.add()
        self.places()
        # Of each sample what all numbers share: its stack, its attributes.
        shared = [(self.stack(sample), self.labels(sample)) for sample in self.profile.sample]
        scope = of_resource.scope_profiles.add()
        for column, kind in enumerate(self.profile.sample_type):
            made = scope.profiles.add(time_unix_nano=self.profile.time_nanos, period=self.profile.period)
            made.sample_type.type, made.sample_type.unit = kind.type, kind.unit
            made.period_type.type = self.profile.period_type.type
            made.period_type.unit = self.profile.period_type.unit
            made.profile_id = hashlib.sha256(f"{identity} {column}".encode()).digest()[:16]
            for sample, (stack, attributes) in zip(self.profile.sample, shared, strict=True):
                if sample.value[column]:
                    made.samples.add(stack=stack, attributes=attributes, values=[sample.value[column]])
        self.tables.string_table.extend(self.strings)
        return bytes(self.request.SerializeToString(deterministic=True))

    def string(self, text: str) -> int:
        return self.strings.setdefault(text, len(self.strings))

    def attribute(self, key: str, text: str) -> int:
        known = self.attributes.get((key, text))
        if known is None:
            known = self.attributes[key, text] = len(self.tables.attribute_table)
            self.tables.attribute_table.add(key=self.string(key)).value.text = text
        return known

    def places(self) -> None:
        """Mappings, functions and locations: pprof's numbers are their positions here."""
        texts = self.profile.string_table
        for mapping in self.profile.mapping:
            build_id = texts[mapping.build_id]
            self.tables.mapping_table.add(
                memory_start=mapping.memory_start,
                memory_limit=mapping.memory_limit,
                file_offset=mapping.file_offset,
                filename=mapping.filename,
                attributes=[self.attribute(_BUILD_ID, build_id)] if build_id else [],
            )
        for function in self.profile.function:
            self.tables.function_table.add(
                name=function.name, system_name=function.system_name, filename=function.filename
            )
        for location in self.profile.location:
            made = self.tables.location_table.add(mapping=location.mapping_id, address=location.address)
            for line in location.line:
                made.lines.add(function=line.function_id, line=line.line)

    def stack(self, sample: Any) -> int:
        places = tuple(sample.location_id)
        known = self.stacks.get(places)
        if known is None:
            known = self.stacks[places] = len(self.tables.stack_table)
            self.tables.stack_table.add(locations=places)
        return known

    def labels(self, sample: Any) -> list[int]:
        texts = self.profile.string_table
        return [
            self.attribute(_LABELS.get(texts[label.key], texts[label.key]), texts[label.str]) for label in sample.label
        ]
