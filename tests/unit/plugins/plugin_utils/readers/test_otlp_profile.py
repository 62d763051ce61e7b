# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""OpenTelemetry's profiles: those of async-profiler against its own collapsed stacks, and made ones."""

from __future__ import annotations

import contextlib
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
from ansible_collections.offheap.profiler.plugins.plugin_utils.base import profile_proto
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.raw import Counts, Told
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.sampling import EXACT, Measure, Sampling, Scheme
from ansible_collections.offheap.profiler.plugins.plugin_utils.readers import detect
from ansible_collections.offheap.profiler.tests.unit.strategies import recordings

BUILD_ID = "0123456789abcdef0123456789abcdef01234567"
SOURCE = """
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.zip.Deflater;
import one.profiler.AsyncProfiler;

public final class Both {
    public static void main(String[] arguments) throws Exception {
        AsyncProfiler profiler = AsyncProfiler.getInstance(arguments[0]);
        profiler.execute("start,event=nativemem,nativemem=1,total,loglevel=none");
        for (int number = 0; number < 100; number++) {
            new Deflater();
        }
        profiler.execute("stop");
        byte[] before, after;
        do {  // what another thread was about to record is counted a little later
            before = collapsed(profiler, Path.of(arguments[1], "x.folded"));
            profiler.execute("dump,otlp,total,file=" + arguments[1] + "/x.otlp");
            after = collapsed(profiler, Path.of(arguments[1], "x.folded"));
        } while (!Arrays.equals(before, after));
        profiler.execute("dump,otlp,file=" + arguments[1] + "/count.otlp");
    }

    private static byte[] collapsed(AsyncProfiler profiler, Path file) throws Exception {
        profiler.execute("dump,collapsed,total,file=" + file);
        return Files.readAllBytes(file);
    }
}
"""


def test_the_numbers_of_async_profilers_own_collapsed_stacks(tmp_path: Path) -> None:
    library = recordings.library(tmp_path)
    (tmp_path / "Both.java").write_text(SOURCE)
    subprocess.run(["javac", "-cp", recordings.JAR, tmp_path / "Both.java"], check=True)
    classes = f"{tmp_path}:{recordings.JAR}"
    command: list[str | Path] = ["java", "-Xmx64m", "-cp", classes, "Both", library, tmp_path]
    subprocess.run(command, check=True, stdout=subprocess.PIPE)
    data = (tmp_path / "x.otlp").read_bytes()
    assert detect.source_of(data, "x") == "otlp"
    records = detect.parse(data, "x", Told())
    assert records.measure is Measure.ALLOCATED
    assert records.sampling == EXACT
    collapsed = detect.parse((tmp_path / "x.folded").read_bytes(), "x", Told(Measure.ALLOCATED, "bytes", 1))
    assert records.total.bytes == collapsed.total.bytes > 100 * recordings.DEFLATER
    # The texts write Java's names in two ways.
    assert flat(records) == flat(collapsed)
    with pytest.raises(OffheapError, match="async-profiler counts samples, so record with its option total"):
        detect.parse((tmp_path / "count.otlp").read_bytes(), "x", Told())


def flat(records: Any) -> Counter[str]:
    """Bytes by the two innermost functions."""
    found: Counter[str] = Counter()
    for stack, size in zip(records.stacks(), records.counts.bytes, strict=True):
        found[" < ".join(records.names[place].function for place in stack[:2])] += size
    return found


def made(**change: Any) -> bytes:
    """Two profiles, of bytes and of objects, with one stack: alloc, inlined in main, below an address."""
    texts = [
        "",
        change.pop("kind", "inuse_space"),
        "bytes",
        "inuse_objects",
        "count",
        "alloc",
        "main",
        "/srv/app",
        "a.c",
    ]
    texts.append("process.executable.build_id.gnu")
    dictionary = profile_proto.message_class("OtlpDictionary")()
    dictionary.string_table.extend(text.encode() for text in texts)
    dictionary.attribute_table.add()
    dictionary.attribute_table.add(key=9).value.text = BUILD_ID.encode()
    dictionary.mapping_table.add()
    dictionary.mapping_table.add(memory_start=0x1000, memory_limit=0x9000, filename=7, attributes=[1])
    dictionary.function_table.add()
    for name in (5, 6):
        dictionary.function_table.add(name=name, filename=8)
    dictionary.location_table.add()
    named = dictionary.location_table.add(mapping=1, address=0x2000)
    for function in (1, change.pop("function", 2)):
        named.lines.add(function=function, line=7)
    dictionary.location_table.add(mapping=1, address=0x3000)
    dictionary.stack_table.add()
    dictionary.stack_table.add(locations=[1, change.pop("location", 2)])
    profiles = []
    for kind, unit, values in ((1, 2, change.pop("values", [300, 100])), (3, 4, [3])):
        one = profile_proto.message_class("OtlpProfile")(time_unix_nano=1_790_000_000_000_000_000)
        one.period = change.get("period", 512)
        one.sample_type.type, one.sample_type.unit = kind, unit
        one.period_type.type, one.period_type.unit = 1, 2
        one.samples.add(stack=change.get("stack", 1), values=values)
        profiles.append(one.SerializeToString())
    profiles[1] += profile_proto.message_class("OtlpProfile")(
        samples=[{"stack": 1, "times": [1, 2]}]
    ).SerializeToString()
    resource = b"".join(_field(2, profile) for profile in profiles)
    # As a collector's file has them, and as async-profiler does: the dictionary last.
    return _field(1, change.get("resource", b"") + _field(2, resource)) + _field(2, dictionary.SerializeToString())


def _field(number: int, content: bytes) -> bytes:
    size, length = len(content), b""
    while size > 0x7F:
        length += bytes([size & 0x7F | 0x80])
        size >>= 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + content


def test_profiles_of_one_dictionary_are_one() -> None:
    assert detect.source_of(made(), "x") == "otlp"
    records = detect.parse(made(), "x", Told())
    assert (records.measure, records.sampling) == (Measure.LIVE, Sampling(Scheme.POISSON, 512))
    assert (records.total, records.time) == (Counts(5, 400, 0, 0), 1.79e9)
    assert [(frame.function, frame.module, frame.file, frame.line) for frame in records.names] == [
        ("alloc", "app", "a.c", 7),
        ("main", "app", "a.c", 7),
    ]
    assert list(records.addresses) == [0x3001]
    assert records.build_ids == {"/srv/app": BUILD_ID}


def test_sizes_of_what_async_profiler_sampled_are_not_what_they_stand_for() -> None:
    """A sample of one byte in 512 counts as that byte, so an interval would lead to errors that are far too small."""
    for period, sampling in ((1, EXACT), (512, Sampling(Scheme.UNKNOWN))):
        records = detect.parse(made(kind="malloc_tracer", period=period), "x", Told(interval=512))
        assert (records.measure, records.sampling, records.total.bytes) == (Measure.ALLOCATED, sampling, 400)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"stack": 9}, "it has no stack 9"),
        ({"stack": -1}, "it has no stack -1"),
        ({"location": 9}, "it has no location 9"),
        ({"location": -1}, "a number below 0"),
        ({"function": -1}, "a number below 0"),
        ({"function": 9}, "it has no function 9"),
        ({"values": [-1]}, "a number that is negative"),
    ],
)
def test_what_is_damaged_is_said(change: dict[str, Any], why: str) -> None:
    with pytest.raises(OffheapError, match=why):
        detect.parse(made(**change), "x", Told())


@pytest.mark.parametrize(
    "sample",
    [
        {"stack": 1, "attributes": [1 << 20]},  # 1.8 and 1.9: values, ...
        {"stack": 1, "attributes": [1]},
        {"stack": 1, "attributes": [4096, 4096], "times": [1, 2]},  # ... also with a time for each
    ],
)
def test_values_where_older_versions_have_them_are_refused(sample: dict[str, Any]) -> None:
    one = profile_proto.message_class("OtlpProfile")(samples=[sample])
    data = made() + _field(1, _field(2, _field(2, one.SerializeToString())))
    with pytest.raises(OffheapError, match=r"x: is of OpenTelemetry's profiles before 1\.10: have a newer tool"):
        detect.parse(data, "x", Told())


def test_a_version_without_a_table_of_stacks_is_refused() -> None:
    """Of 1.7: the first and the number of a sample's locations, its value."""
    sample = bytes([1 << 3, 0, 2 << 3, 2, 3 << 3 | 2, 1, 100])
    tables = profile_proto.message_class("OtlpDictionary")(string_table=[b"", b"inuse_space", b"bytes"])
    data = _field(1, _field(2, _field(2, _field(2, sample)))) + _field(2, tables.SerializeToString())
    assert detect.source_of(data, "x") == "otlp"
    with pytest.raises(OffheapError, match=r"before 1\.10"):
        detect.parse(data, "x", Told())


def test_a_sample_that_counts_nothing_at_two_times_counts_nothing() -> None:
    sample = {"stack": 1, "values": [0, 0], "times": [1, 2]}
    one = profile_proto.message_class("OtlpProfile")(time_unix_nano=1_790_000_000_000_000_000, samples=[sample])
    one.sample_type.type, one.sample_type.unit = 1, 2
    data = made() + _field(1, _field(2, _field(2, one.SerializeToString())))
    assert detect.parse(data, "x", Told()).total.bytes == 400


def test_a_few_bytes_cannot_ask_for_a_number_of_each_type_in_each_stack() -> None:
    one = profile_proto.message_class("OtlpProfile")(samples=[{"stack": 1, "values": [1]}])
    profiles = []
    for kind in range(100):
        one.sample_type.type = kind
        profiles.append(_field(2, one.SerializeToString()))
    with pytest.raises(OffheapError, match="more than 64 types"):
        detect.parse(made() + _field(1, _field(2, b"".join(profiles))), "x", Told())


def test_several_processes_are_not_added_up() -> None:
    one, other = (
        _field(1, _field(1, _field(1, b"service.name") + _field(2, _field(1, name)))) for name in (b"a", b"b")
    )
    profile = _field(2, _field(2, profile_proto.message_class("OtlpProfile")(time_unix_nano=1).SerializeToString()))
    # As a collector puts together what came from one process, and from another one that had nothing to say.
    data = made(resource=one) + _field(1, one + profile) + _field(1, other)
    assert detect.parse(data, "x", Told()).total.bytes == 400
    with pytest.raises(
        OffheapError, match=r"x: has profiles of 2 resources \(processes or services\): write a file for"
    ):
        detect.parse(data + _field(1, other + profile), "x", Told())


def test_what_was_in_use_at_several_times_is_not_added_up() -> None:
    def again(kind: int, time: int) -> bytes:
        one = profile_proto.message_class("OtlpProfile")(time_unix_nano=time, samples=[{"stack": 1, "values": [5]}])
        one.sample_type.type, one.sample_type.unit = kind, 2
        return _field(1, _field(2, _field(2, one.SerializeToString())))

    same, later = 1_790_000_000_000_000_000, 1_790_000_060_000_000_000
    assert detect.parse(made() + again(1, same), "x", Told()).total.bytes == 405
    assert detect.parse(made() + again(5, later) + again(5, same), "x", Told()).total.bytes == 400
    with pytest.raises(OffheapError, match=r"x: has what was in use at 2 times: write a file for each of them"):
        detect.parse(made() + again(1, later), "x", Told())


@given(st.binary(min_size=1, max_size=6), st.integers(0, 400))
def test_damage_gives_our_error_or_a_profile(junk: bytes, at: int) -> None:
    data = made()
    with contextlib.suppress(OffheapError):
        detect.parse_as("otlp", data[:at] + junk + data[at + len(junk) :], "x", Told())
