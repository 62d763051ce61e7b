# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""From a target's listing to the archive: the plan, and what is accepted from a transfer."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.offheap.profiler.plugins.module_utils.formats import elf, limits, perf_map_line
from ansible_collections.offheap.profiler.plugins.module_utils.formats.capture_facts import SamplingFacts
from ansible_collections.offheap.profiler.plugins.module_utils.formats.wire import PACKED
from ansible_collections.offheap.profiler.plugins.module_utils.spool import pack as staging
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive import image_files
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.archive import Archive
from ansible_collections.offheap.profiler.plugins.plugin_utils.base import unpack
from ansible_collections.offheap.profiler.plugins.plugin_utils.columns import sample_cache
from ansible_collections.offheap.profiler.plugins.plugin_utils.driver.sources import DumpReader, Images
from ansible_collections.offheap.profiler.plugins.plugin_utils.fetch import ingest, plan
from ansible_collections.offheap.profiler.plugins.plugin_utils.fetch.unpack_tar import TransferError
from ansible_collections.offheap.profiler.plugins.plugin_utils.model import located_bytes
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.raw import Told
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.sampling import Measure
from ansible_collections.offheap.profiler.plugins.plugin_utils.symbols import perf_map
from ansible_collections.offheap.profiler.tests.unit.plugins.plugin_utils.archive import capture_samples
from ansible_collections.offheap.profiler.tests.unit.strategies import leaky_archives, offers

GIB = 1 << 30


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive.create(tmp_path / "archive")


def listed(*contents: bytes, host: str = "app1") -> plan.Listing:
    return plan.read_listing(capture_samples.listing(*contents), host, GIB, GIB)


def test_listing() -> None:
    listing = listed(b"one", b"second", host="the host")
    assert [found.facts.dump.size for found in listing.captures] == [3, 6]
    assert listing.captures[0].facts.host == "the host", "our name for it, whatever it says"
    assert listing.captures[1].mark() == {
        "unit": "frontend.service",
        "name": "jeprof.12.1.i1.heap",
        "identity": [1001, 6, 1761234567250000000],
    }
    assert [(image.build_id, image.sources) for image in listing.images] == [
        (capture_samples.BUILD_ID, ("/proc/12/map_files/7f00-7f01", "/usr/lib/libz.so.1.2.13"))
    ]
    assert listing.missing_images == [{"path": "/opt/gone.so", "reason": "replaced"}]


def test_limits() -> None:
    data = capture_samples.listing(b"a" * 200)
    with pytest.raises(TransferError, match="size is out of range"):
        plan.read_listing(data, "app1", 199, GIB)
    data["captures"][0]["identity"][1] = limits.LARGEST_DUMP + 1
    with pytest.raises(TransferError, match="size is out of range"):
        plan.read_listing(data, "app1", GIB, GIB)  # a dump too large to read, whatever is asked for
    data["captures"][0]["identity"][1] = 200
    listing = plan.read_listing(data, "app1", 200, 99)
    assert listing.images == []
    assert {"path": "/usr/lib/libz.so.1.2.13", "reason": "larger than max_image (99 bytes)"} in listing.missing_images


def test_texts_for_people_are_made_harmless() -> None:
    data = capture_samples.listing()
    data["problems"] = ["\x1b[2Jcleared\n" + "x" * 10000]
    problem = plan.read_listing(data, "app1", GIB, GIB).problems[0]
    assert problem.startswith("\ufffd[2Jcleared\ufffdx") and len(problem) == 500


def paths_of(value: Any, way: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [way] if way else []
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        found += paths_of(child, (*way, key))
    return found


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.just([]), st.just({}), st.just(["x"])
)


@given(st.sampled_from(paths_of(capture_samples.listing(b"one"))), JUNK, st.booleans())
def test_any_wrong_field_raises_one_kind_of_error(way: tuple[Any, ...], junk: Any, remove: bool) -> None:
    data = copy.deepcopy(capture_samples.listing(b"one"))
    place: Any = data
    for key in way[:-1]:
        place = place[key]
    if remove:
        del place[way[-1]]
    else:
        place[way[-1]] = junk
    try:
        plan.read_listing(data, "app1", GIB, GIB)
    except TransferError as exc:
        assert "an invalid listing" in str(exc)


def test_only_what_is_new(archive: Archive, tmp_path: Path) -> None:
    listing = listed(b"one", b"two")
    assert plan.without_known(listing, None) == (listing.captures, [], listing.images)
    source, forged, image = tmp_path / "one", tmp_path / "forged", tmp_path / "image"
    for path, content in ((source, b"one"), (forged, b"forged"), (image, capture_samples.IMAGE)):
        path.write_bytes(content)
    archive.add_capture(listing.captures[0].facts, source)
    archive.add_image(capture_samples.BUILD_ID, "libz.so", forged)
    assert plan.without_known(listing, archive)[2] == listing.images, "what another host claims to be it is not it"
    archive.add_image(capture_samples.BUILD_ID, "libz.so", image)
    assert plan.without_known(listing, archive) == (listing.captures[1:], listing.captures[:1], [])


@pytest.mark.parametrize("sha256", [None, "", "../x", "AB" * 32, "ab" * 31, ["ab" * 32]])
def test_an_image_says_its_sum(sha256: object) -> None:
    data = capture_samples.listing(b"one")
    data["images"][0]["sha256"] = sha256
    with pytest.raises(TransferError, match=r"no checksum|image\.sha256"):
        plan.read_listing(data, "app1", GIB, GIB)


def test_batches() -> None:
    listing = listed(b"a" * 60, b"b" * 60, b"c" * 500, b"d" * 10)
    batches = list(plan.batches(listing.captures, listing.images, 160))
    assert [sorted(batch.sizes().values()) for batch in batches] == [[60, 100], [60], [500], [10]]
    assert list(batches[0].images) == ["images/0"], "images first"
    assert list(plan.batches([], [], 160)) == []


def test_an_empty_dump_comes_as_well() -> None:
    listing = plan.read_listing(capture_samples.listing(b""), "app1", GIB, GIB)
    assert [list(batch.dumps) for batch in plan.batches(listing.captures, [], GIB)] == [["dumps/0"]]


def test_fetching_loads_nothing_that_only_reading_needs() -> None:
    """Dozens of processes fetch at once, and each would hold it in memory."""
    collections = next(path for path in sys.path if path.endswith("collections"))
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from ansible_collections.offheap.profiler.plugins.plugin_utils.archive import archive\n"
        "from ansible_collections.offheap.profiler.plugins.plugin_utils.fetch import ingest, plan, unpack_tar\n"
        "print(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", script, collections], text=True, capture_output=True, check=True)
    assert not {name.rpartition(".")[2] for name in loaded.stdout.split()} & {"heap_v2", "numpy", "pyarrow"}


class Target:
    """The target's half, on files of ours."""

    def __init__(
        self,
        directory: Path,
        contents: list[bytes],
        data: dict[str, Any] | None = None,
        before: Callable[[Path], None] = lambda _program: None,
    ) -> None:
        """``before`` does something to the program whose image the dumps name."""
        self.staging = directory / "staging"
        self.staging.mkdir(mode=0o700)
        self.program = directory / "program"
        self.program.write_bytes(Path("/bin/true").read_bytes())
        before(self.program)
        data = data or capture_samples.listing(*contents)
        data["images"][0].update(
            build_id=elf.read("/bin/true").build_id,
            size=self.program.stat().st_size,
            sha256=image_files.sha256_of(self.program),
        )
        self.batch = next(
            plan.batches((listing := plan.read_listing(data, "app1", GIB, GIB)).captures, listing.images, GIB)
        )
        self.files = {member: directory / f"dump-{number}" for number, member in enumerate(self.batch.dumps)}
        for path, content in zip(self.files.values(), contents, strict=True):
            path.write_bytes(content)
        self.files.update(dict.fromkeys(self.batch.images, self.program))

    def pack(self) -> dict[str, Any]:
        def opener(path: Path) -> Callable[[], int]:
            return lambda: os.open(path, os.O_RDONLY)

        items = [staging.Item(member, opener(path)) for member, path in self.files.items()]
        return staging.pack(str(self.staging), items, 0)

    def bring(self, archive: Archive, packed: dict[str, Any], told: Told | None = None) -> ingest.Ingested:
        with archive.incoming() as aside:
            file = aside / "transfer"
            file.write_bytes((self.staging / PACKED).read_bytes())
            return ingest.ingest(archive, self.batch, ingest.read_packed(packed, self.batch), file, aside, told)


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target(tmp_path, [b"one", b"second", b"third"])


def test_a_transfer(archive: Archive, target: Target) -> None:
    result = target.bring(archive, target.pack())
    assert [added for _capture, added in result.captures] == [True, True, True]
    assert [leaky_archives.dump_of(capture) for capture in archive.captures()] == [b"one", b"second", b"third"]
    assert result.problems == []
    assert result.safe == list(target.batch.dumps.values())
    image = archive.image(result.images[0])
    assert image is not None and image.read_bytes() == target.program.read_bytes()
    again = target.bring(archive, target.pack())
    assert [added for _capture, added in again.captures] == [False, False, False]
    assert again.safe == result.safe, "and may be marked"


def test_a_capture_says_how_its_dump_was_sampled(archive: Archive, tmp_path: Path) -> None:
    target = Target(tmp_path, [b"heap_v2/4096\n  t*: 0: 0 [0: 0]\n" + b"x" * 300000, b"junk"])
    target.bring(archive, target.pack())
    assert [capture.facts.sampling for capture in archive.captures()] == [
        SamplingFacts("poisson", 4096),
        SamplingFacts("unknown", None),
    ]


def test_a_dump_that_is_not_what_was_listed(archive: Archive, target: Target) -> None:
    next(iter(target.files.values())).write_bytes(b"xyz")
    result = target.bring(archive, target.pack())
    assert [leaky_archives.dump_of(capture) for capture in archive.captures()] == [b"second", b"third"]
    assert result.safe == list(target.batch.dumps.values())[1:]
    assert "jeprof.12.0.i0.heap of frontend.service changed" in result.problems[0]


@pytest.mark.parametrize("place", [0, -1], ids=["no ELF file", "the same build, another file"])
def test_an_image_that_is_not_what_it_says(archive: Archive, target: Target, place: int) -> None:
    content = bytearray(target.program.read_bytes())
    content[place] ^= 1
    target.program.write_bytes(content)
    result = target.bring(archive, target.pack())
    assert result.images == [] and archive.images() == []
    assert "is not the file that the host announced" in result.problems[0]
    assert len(result.captures) == 3


def test_something_that_was_gone(archive: Archive, target: Target) -> None:
    next(iter(target.files.values())).unlink()
    target.program.unlink()
    result = target.bring(archive, target.pack())
    assert [capture.sequence for capture, _added in result.captures] == [1, 2]
    assert len(result.problems) == 2 and "was not packed" in result.problems[0]


def damage(place: Path, how: str) -> None:
    content = place.read_bytes()
    place.write_bytes(content[:-10] if how == "cut" else content[:-10] + bytes(10))


@pytest.mark.parametrize("how", ["cut", "damaged"])
def test_a_broken_transfer_leaves_nothing(archive: Archive, target: Target, how: str) -> None:
    packed = target.pack()
    damage(target.staging / PACKED, how)
    with pytest.raises(TransferError, match="run again"):
        target.bring(archive, packed)
    assert sorted(path.name for path in archive.root.iterdir()) == [".incoming", "archive.json"]
    assert list((archive.root / ".incoming").iterdir()) == []


@pytest.mark.parametrize(
    "change",
    [
        {"size": 0},
        {"size": 1 << 40},
        {"size": "1"},
        {"sha256": None},
        {"members": []},
        {"members": {}},
        {"members": {"dumps/0": 3, "../../etc/passwd": 4}},
        {"members": {"dumps/0": 1 << 40}},
        {"skipped": None},
    ],
)
def test_announcements_that_cannot_be(archive: Archive, target: Target, change: dict[str, Any]) -> None:
    with pytest.raises(TransferError, match="the host "):
        target.bring(archive, {**target.pack(), **change})


def with_maps(data: dict[str, Any], beside: int | None = None) -> plan.Batch:
    """A listing's only batch: all dumps have compiled code, and the first has a map of this many bytes beside it."""
    for entry in data["captures"]:
        entry["jit"] = True
    if beside is not None:
        data["captures"][0]["map"] = [77, beside, 5]
    listing = plan.read_listing(data, "app1", GIB, GIB)
    return next(plan.batches(listing.captures, [], GIB))


def test_which_maps_are_asked_for() -> None:
    batch = with_maps(capture_samples.listing(b"one", b"two", b"three"), beside=100)
    assert [(entry["name"], entry["identity"], entry["key"]) for entry in batch.request()["maps"]] == [
        ("jeprof.12.0.i0.heap", [77, 100, 5], "12-1a2b3c4d"),
        ("jeprof.12.2.i2.heap", None, "12-1a2b3c4d"),
    ], "the one that lies there, and one for the last dump of the process"
    assert batch.made() == {"maps/2"}
    assert not with_maps(capture_samples.listing(b"one"), beside=1).made()


def test_a_map_arrives_with_its_dump(archive: Archive, target: Target, tmp_path: Path) -> None:
    target.batch = with_maps(capture_samples.listing(b"one", b"second", b"third"), beside=11)
    target.files = {member: path for member, path in target.files.items() if member.startswith("dumps/")}
    for member, content in (("maps/0", b"1000 10 one"), ("maps/2", b"1000 10 third\n")):
        target.files[member] = tmp_path / member.replace("/", "-")
        target.files[member].write_bytes(content)
    result = target.bring(archive, target.pack())
    assert result.problems == []
    found = archive.captures()
    assert [capture.perf_map is not None for capture in found] == [True, False, True]
    assert found[2].perf_map is not None and perf_map.read(found[2].perf_map).name(0x1005) == "third"
    assert [capture.facts.perf_map for capture in found] == [{"source": "beside"}, None, {"source": "process"}]
    assert [added for _capture, added in target.bring(archive, target.pack()).captures] == [False] * 3


def test_lives_arrive_with_their_dump(archive: Archive, target: Target, tmp_path: Path) -> None:
    data = capture_samples.listing(b"one", b"second", b"third")
    data["captures"][1]["lives"] = [78, 9, 5]
    listing = plan.read_listing(data, "app1", GIB, GIB)
    target.batch = next(plan.batches(listing.captures, [], GIB))
    assert target.batch.size == 3 + 6 + 5 + 9
    assert [(entry["name"], entry["identity"]) for entry in target.batch.request()["lives"]] == [
        ("jeprof.12.1.i1.heap", [78, 9, 5])
    ]
    target.files = {member: path for member, path in target.files.items() if member.startswith("dumps/")}
    target.files["lives/1"] = tmp_path / "lives"
    target.files["lives/1"].write_bytes(b"the lives")
    assert target.bring(archive, target.pack()).problems == []
    first, second, _third = archive.captures()
    assert first.lives is None and second.lives is not None
    assert unpack.read(second.lives, 100) == b"the lives"


def test_a_dump_comes_without_the_lives_that_have_gone(archive: Archive, target: Target) -> None:
    data = capture_samples.listing(b"one")
    data["captures"][0]["lives"] = [78, 9, 5]
    target.batch = next(plan.batches(plan.read_listing(data, "app1", GIB, GIB).captures, [], GIB))
    target.files = {member: path for member, path in target.files.items() if member == "dumps/0"}
    packed = target.pack()
    packed["skipped"]["lives/0"] = "it is gone"
    result = target.bring(archive, packed)
    told = "the lives beside dump jeprof.12.0.i0.heap of frontend.service was not packed: it is gone"
    assert result.problems == [told]
    assert [capture.lives for capture in archive.captures()] == [None]


def test_holders_arrive_with_their_dump(archive: Archive, target: Target, tmp_path: Path) -> None:
    data = capture_samples.listing(b"one", b"second", b"third")
    data["captures"][1]["holders"] = [78, 7, 5]
    target.batch = next(plan.batches(plan.read_listing(data, "app1", GIB, GIB).captures, [], GIB))
    assert target.batch.size == 3 + 6 + 5 + 7
    assert [entry["name"] for entry in target.batch.request()["holders"]] == ["jeprof.12.1.i1.heap"]
    target.files = {member: path for member, path in target.files.items() if member.startswith("dumps/")}
    target.files["holders/1"] = tmp_path / "holders"
    target.files["holders/1"].write_bytes(b"holders")
    assert target.bring(archive, target.pack()).problems == []
    first, second, _third = archive.captures()
    assert first.holders is None and second.holders is not None
    assert unpack.read(second.holders, 100) == b"holders"
    assert "holders.gz" in second.files()


@pytest.mark.parametrize("lives", [[1, 0, 1], [1, limits.LARGEST_LIVES + 1, 1], [1, 2], "much"])
def test_lives_of_an_impossible_size(lives: Any) -> None:
    data = capture_samples.listing(b"one")
    data["captures"][0]["lives"] = lives
    with pytest.raises(TransferError):
        plan.read_listing(data, "app1", GIB, GIB)


@pytest.mark.parametrize(
    ("reason", "told"), [(perf_map_line.ENDED, False), (perf_map_line.NONE, False), ("it is JDK\x1b 11", True)]
)
def test_a_dump_without_a_map_says_why(archive: Archive, target: Target, reason: str, told: bool) -> None:
    target.batch = with_maps(capture_samples.listing(b"one", b"second", b"third"))
    target.files = {member: path for member, path in target.files.items() if member.startswith("dumps/")}
    packed = target.pack()
    packed["skipped"]["maps/2"] = reason
    result = target.bring(archive, packed)
    assert archive.captures()[2].facts.perf_map == {"problem": reason.replace("\x1b", "\ufffd")}
    assert archive.captures()[2].perf_map is None
    assert bool(result.problems) is told


@pytest.mark.parametrize("size", [0, -1, "1", None, limits.LARGEST_PERF_MAP + 1])
def test_a_map_of_an_impossible_size(target: Target, size: Any) -> None:
    batch = with_maps(capture_samples.listing(b"one"))
    packed = {"size": 100, "sha256": "0" * 64, "members": {"dumps/0": 3, "maps/0": size}, "skipped": {}}
    with pytest.raises(TransferError):
        ingest.read_packed(packed, batch)


def test_maps_that_are_too_many() -> None:
    data = capture_samples.listing(*(b"%d" % number for number in range(70)))
    for number, entry in enumerate(data["captures"]):
        entry.update(name=f"jeprof.{100 + number}.0.i0.heap", process=number)
    data["processes"] = [capture_samples.written(pid=100 + number)["process"] for number in range(70)]
    batch = with_maps(data)
    members = {**batch.sizes(), **dict.fromkeys(batch.made(), limits.LARGEST_PERF_MAP)}
    assert len(batch.made()) == 70
    with pytest.raises(TransferError, match="more than one run takes"):
        ingest.read_packed({"size": 100, "sha256": "0" * 64, "members": members, "skipped": {}}, batch)


def test_the_agents_facts_go_into_the_capture() -> None:
    data = capture_samples.listing(b"one", b"two")
    jemalloc = {"version": "5.3.0", "malloc_conf": None, "options": {"prof_accum": False}}
    agent = dict.fromkeys(("version", "reason", "unwinder", "active", "active_since", "duration"))
    data["captures"][0]["agent"] = {**agent, "memory": {"rss": 1}, "jemalloc": jemalloc}
    data["captures"][1]["agent_problem"] = "it is not\njson"
    found = plan.read_listing(data, "app1", GIB, GIB).captures
    assert found[0].facts.memory == {"rss": 1}
    assert found[1].facts.agent == {"problem": "it is not\ufffdjson"}
    data["captures"][0]["agent"]["memory"]["rss"] = "much"
    with pytest.raises(TransferError, match="memory is invalid"):
        plan.read_listing(data, "app1", GIB, GIB)


def test_the_jvms_numbers_go_into_the_capture_when_they_are_right() -> None:
    data = capture_samples.listing(b"one")
    jvm = {"time": 1.0, "heap_used": 5, "heap_committed": 6, "heap_resident": None, "metaspace": 7, "nmt": {"Code": 8}}
    data["captures"][0]["jvm"] = jvm
    assert plan.read_listing(data, "app1", GIB, GIB).captures[0].facts.jvm == jvm
    data["captures"][0]["jvm"] = {**jvm, "nmt": {"Code": "<b>"}}
    with pytest.raises(TransferError, match="JvmMemoryError"):
        plan.read_listing(data, "app1", GIB, GIB)


def offered(*contents: bytes, kind: str = "pprof") -> dict[str, Any]:
    """The listing of profiles that a service has offered."""
    data = capture_samples.listing(*contents)
    for number, entry in enumerate(data["captures"]):
        entry.update(name=f"{kind}.1f3a9c20-7.12.{number}.m{number}.heap", images=[])
    return data


def test_what_a_service_offers_says_itself_what_it_counts(archive: Archive, tmp_path: Path) -> None:
    live, allocated = offers.pprof(9000, 4096), offers.pprof(9000, kinds=("alloc_objects", "alloc_space"))
    contents = [live, allocated, b"neither"]
    target = Target(tmp_path, contents, offered(*contents))
    result = target.bring(archive, target.pack())
    (problem,) = result.problems
    assert "pprof.1f3a9c20-7.12.2.m2.heap of frontend.service was left on the host: its profile" in problem
    assert len(result.safe) == 2
    found = [capture.facts for capture in archive.captures()]
    assert [(facts.source, facts.measure) for facts in found] == [("pprof", "live"), ("pprof", "allocated")]
    assert [facts.sampling for facts in found] == [SamplingFacts("poisson", 4096), SamplingFacts("poisson", 524288)]


def test_what_no_archive_can_hold_stays_on_its_host(archive: Archive, tmp_path: Path) -> None:
    """As an interval that no reader takes, or memleak's report at its limit, which shows a part."""
    content = offers.pprof(9000, 1 << 62)
    target = Target(tmp_path, [content], offered(content))
    (problem,) = target.bring(archive, target.pack()).problems
    assert "was left on the host" in problem and archive.captures() == []
    part = b"[10:00:00] Top 1 stacks with outstanding allocations:\n"
    part += b"\t4096 bytes in 1 allocations from stack\n\t\tf+0x1 [p]\n"
    (tmp_path / "second").mkdir()
    target = Target(tmp_path / "second", [part], offered(part, kind="memleak"))
    (problem,) = target.bring(archive, target.pack()).problems
    assert "a part of what is live, so there may be more" in problem and archive.captures() == []


@pytest.mark.parametrize(
    ("told", "expected"),
    [(None, None), (Told(Measure.LIVE, "", 65536), ("live", SamplingFacts("poisson", 65536)))],
)
def test_what_it_does_not_say_the_user_can(
    told: Told | None, expected: tuple[str, SamplingFacts] | None, archive: Archive, tmp_path: Path
) -> None:
    content = offers.pprof(9000, 0, kinds=("objects", "space"))
    target = Target(tmp_path, [content], offered(content))
    result = target.bring(archive, target.pack(), told)
    found = [(capture.facts.measure, capture.facts.sampling) for capture in archive.captures()]
    assert found == ([] if expected is None else [expected])
    assert ["set source_measure" in problem for problem in result.problems] == [True] * (expected is None)


def test_a_function_is_named_by_its_linked_address(archive: Archive, tmp_path: Path) -> None:
    """By the build-id that the profile names: the loader may know the image by another path than the kernel."""
    libz = leaky_archives.libz()
    build_id = elf.read(libz).build_id or ""
    symbols = subprocess.run(["nm", "-D", "--defined-only", libz], capture_output=True, text=True, check=True).stdout
    (address,) = (int(line.split()[0], 16) for line in symbols.splitlines() if line.split()[2] == "inflate")
    content = offers.nameless(9000, "/elsewhere/libz.so", build_id, address + 8)
    target = Target(tmp_path, [content], offered(content))
    assert not target.bring(archive, target.pack()).problems
    archive.add_image(build_id, "libz.so", libz)
    (capture,) = archive.captures()
    samples = DumpReader(Images(archive=archive), tmp_path).read(capture.path).samples
    assert [frame.function for frame in samples.frames] == ["inflate"]
    located, _told = located_bytes.unpacked(sample_cache._parsed(capture.dump, capture.facts))
    assert [place.build_id for place in located.locations] == [build_id]
