# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Which source wrote a file, by its content, and the reader for it.

A capture of an archive says what its source is, and is never guessed at: a host must not choose what parses its dumps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ...module_utils.formats import no_profile
from ...module_utils.formats.capture_facts import ASYNC_PROFILER, JEMALLOC, CaptureFacts
from ..model.raw import Records, Told
from ..model.sampling import Measure
from . import (
    bpftrace_map,
    collapsed,
    dhat,
    gperftools,
    heap_v2,
    jfr,
    massif,
    memcheck,
    memleak,
    memray_table,
    otlp_profile,
    perf_script,
    pprof_profile,
    sanitizer,
)
from .format_error import UnusableError

#: key in a capture's facts: what the numbers of its dump count ("bytes" or "objects"), where the user had to say it
UNIT = "source_unit"


class Format(NamedTuple):
    """``recognizes`` looks at a file's content; ``parse`` also takes a name for messages and what the user has said. It
    raises ControllerError."""

    recognizes: Callable[[bytes], bool]
    parse: Callable[[bytes, str, Told], Records]


#: by the name of the source, in the order in which they are tried
FORMATS = {
    JEMALLOC: Format(lambda data: data.startswith(b"heap_v2/"), lambda data, name, _told: heap_v2.parse(data, name)),
    ASYNC_PROFILER: Format(jfr.recognizes, jfr.parse),
    "gperftools": Format(gperftools.recognizes, gperftools.parse),
    "otlp": Format(otlp_profile.recognizes, otlp_profile.parse),
    "pprof": Format(pprof_profile.recognizes, pprof_profile.parse),
    "massif": Format(massif.recognizes, massif.parse),
    "dhat": Format(dhat.recognizes, dhat.parse),
    "memcheck": Format(memcheck.recognizes, memcheck.parse),
    "lsan": Format(sanitizer.recognizes, sanitizer.parse),
    "memleak": Format(memleak.recognizes, memleak.parse),
    "memray": Format(memray_table.recognizes, memray_table.parse),
    "bpftrace": Format(bpftrace_map.recognizes, bpftrace_map.parse),
    "perf": Format(perf_script.recognizes, perf_script.parse),
    "collapsed": Format(collapsed.recognizes, collapsed.parse),
}

_BEGINNING = 40


def source_of(data: bytes, name: str) -> str:
    """The name of the source that wrote an (unpacked) file. Raises UnusableError."""
    if not data or data.isspace():
        raise UnusableError(name, "is empty")
    why = no_profile.reason(data)
    if why:
        raise UnusableError(name, why)
    for source, found in FORMATS.items():
        if found.recognizes(data):
            return source
    begins = data[:_BEGINNING].split(b"\n", 1)[0].decode("ascii", "replace")
    raise UnusableError(
        name, f"is in no known format (it begins with '{begins}'); it should be a profile of {', '.join(FORMATS)}"
    )


def parse(data: bytes, name: str, told: Told) -> Records:
    """A file from anywhere. Raises ControllerError."""
    return FORMATS[source_of(data, name)].parse(data, name, told)


def parse_as(source: str, data: bytes, name: str, told: Told) -> Records:
    """A file of a known source. Raises ControllerError."""
    return FORMATS[source].parse(data, name, told)


def parse_capture(data: bytes, name: str, facts: CaptureFacts) -> Records:
    """The dump of a capture. Raises ControllerError."""
    found = FORMATS.get(facts.source)
    if found is None:
        raise UnusableError(name, f"comes from {facts.source}, which this version of the collection cannot read")
    records = found.parse(data, name, told(facts))
    refuse_if_partial(records)
    return records


def refuse_if_partial(records: Records) -> None:
    """What shows only some of the stacks is no basis for a verdict. Raises UnusableError."""
    if records.measure is Measure.LARGEST:
        raise UnusableError(
            records.file,
            "shows a part of what is live, so there may be more: run memleak with -T 10000, memcheck with"
            " --show-leak-kinds=all ('fab top' and 'fab flame' show what is there)",
        )


def told(facts: CaptureFacts) -> Told:
    """What the user has said of a capture's dump."""
    interval = facts.sampling.interval if facts.sampling is not None else None
    exact = facts.sampling is not None and facts.sampling.scheme == "exact"
    unit = facts.more.get(UNIT)
    return Told(Measure(facts.measure), unit if isinstance(unit, str) else "", 1 if exact else interval or 0)
