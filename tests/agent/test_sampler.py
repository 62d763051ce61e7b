# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The agent attached to a process that runs, and keeps its own allocator."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.agent import client
from ansible_collections.offheap.profiler.plugins.module_utils.formats import sidecar
from ansible_collections.offheap.profiler.plugins.plugin_utils.readers import heap_v2, lives_book
from ansible_collections.offheap.profiler.tests.agent.builds import EMULATOR, SOURCES
from ansible_collections.offheap.profiler.tests.agent.conftest import (
    COMPILER,
    EMULATED,
    FOREIGN,
    PROGRAMS,
    compiled,
    service_program,
)
from ansible_collections.offheap.profiler.tests.agent.service import UNIT, Service, tasks_of, wait_for

#: how the program is linked, by which its entries differ
LINKED = {"lazy": ["-Wl,-z,lazy"], "now": ["-Wl,-z,now"], "no-pie": ["-no-pie", "-fno-pie"]}


def program(kind: str = "lazy") -> Path:
    options = ["-O2", *LINKED[kind]]
    return compiled(f"attached-{kind}", [PROGRAMS / "attached.c"], *options, compiler=COMPILER)


def plugin() -> Path:
    return compiled("libplugin.so", [PROGRAMS / "plugin.c"], "-O2", "-shared", "-fPIC", compiler=COMPILER)


forks = pytest.mark.skipif(EMULATED, reason="qemu 7.2 says that it wipes memory in forked children, and does not")


class Attached:
    """attached.c, and its agent, if it has one."""

    def __init__(self, directory: Path, library: Path, path: Path, preload: Path | None = None) -> None:
        self.spool, self.run, self.path = directory / "spool", directory / "run", path
        self.settings = directory / "settings"
        self.spool.mkdir()
        (self.run / UNIT).mkdir(parents=True)
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("OFFHEAP", "LD_"))}
        environment["TSAN_OPTIONS"] = environment["UBSAN_OPTIONS"] = "halt_on_error=1"
        if preload:
            environment["LD_PRELOAD"] = str(preload)
        self.process = subprocess.Popen(
            [*(EMULATOR if EMULATED else []), path, library, plugin()],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def do(self, command: str) -> str:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().strip()
        assert answer, f"it ended while it did {command!r}: {self.ended()}"
        return answer

    def ended(self) -> str:
        _output, errors = self.process.communicate(timeout=30)
        return f"status {self.process.returncode}, {errors}"

    def attach(self, lg_sample: int = 0, **settings: object) -> int:
        wanted = {
            "unit": UNIT,
            "socket_dir": self.run / UNIT,
            "start_delay": 0,
            "minimum_free": 0,
            "prefix": self.spool / "jeprof",
            "lg_sample": lg_sample,
            **settings,
        }
        self.settings.write_text("".join(f"OFFHEAP_{name.upper()}={value}\n" for name, value in wanted.items()))
        return int(self.do(f"attach {self.settings}"))

    def begin(self, lg_sample: int = 0, **settings: object) -> None:
        """Attach, and wait until it samples."""
        assert self.attach(lg_sample, **settings) == 0
        wait_for("an agent", lambda: client.find(UNIT, str(self.run)))
        wait_for("samples", lambda: self.ask("status")["active"])

    def ask(self, command: str) -> dict[str, Any]:
        (agent,) = client.find(UNIT, str(self.run))
        with client.Connection(agent) as connection:
            return connection.request(command)

    def detach(self) -> dict[str, Any]:
        told = self.ask("detach")
        wait_for("the end of the agent", lambda: not client.find(UNIT, str(self.run)))
        wait_for("the end of its thread", lambda: "offheap" not in self.threads())
        return told

    def threads(self) -> list[str]:
        return tasks_of(self.process.pid)

    def dump(self) -> Taken:
        return Taken(self.ask("dump")["path"], self.process.pid, self.path)


class Taken:
    """A dump and its book."""

    def __init__(self, path: str, pid: int, image: Path) -> None:
        self.path = Path(path)
        self.records = heap_v2.parse(self.path.read_bytes(), path)
        self.book = lives_book.parse(Path(f"{path}.lives").read_bytes(), "a book")
        (self.base, *_others) = [part.start for part in self.records.mappings if part.path == str(image)]
        symbols = subprocess.run(["nm", "-S", image], capture_output=True, text=True, check=True).stdout
        self._symbols = {
            name: (int(start, 16), int(size, 16))
            for start, size, name in re.findall(r"^(\w+) (\w+) [tT] (\w+)$", symbols, re.MULTILINE)
        }
        self._bias = 0 if image.name.endswith("no-pie") else self.base

    def _is_in(self, address: int, function: str) -> bool:
        start, size = self._symbols[function]
        return start < address - self._bias <= start + size

    def of(self, function: str) -> tuple[int, int, int]:
        """What the function itself allocated: objects and bytes that live, and all objects."""
        records, begin, found = self.records, 0, [0, 0, 0]
        for number, end in enumerate(records.stack_ends):
            leaf = records.addresses[records.stack_places[begin]] if end > begin else 0
            begin = end
            if self._is_in(leaf, function):
                found[0] += records.counts.objects[number]
                found[1] += records.counts.bytes[number]
                found[2] += records.counts.accum_objects[number]
        return (found[0], found[1], found[2])

    def assert_is_consistent(self) -> None:
        book, total = self.book, self.records.total
        assert book.lost == 0
        assert sum(book.births) - sum(book.deaths) == len(book.stack) == total.objects
        assert sum(book.size) == total.bytes
        assert sum(book.births) == total.accum_objects


Open = Callable[..., Attached]


@pytest.fixture
def opened(tmp_path: Path, library: Path) -> Iterator[Open]:
    """Starts a program that the agent can be attached to."""
    started: list[Attached] = []

    def run(path: Path | None = None, **settings: Any) -> Attached:
        attached = Attached(tmp_path, library, path or program(), **settings)
        started.append(attached)
        return attached

    yield run
    for attached in started:
        attached.process.kill()
        attached.process.communicate()


def test_a_leak_beside_a_churn_is_named_with_its_rate(opened: Open) -> None:
    attached = opened()
    attached.begin(lg_sample=12)
    attached.do("leak 8000 1000")
    taken = attached.dump()
    living, size, ever = taken.of("leak_here")
    assert (size, ever) == (living * 1000, living)
    likely = 1 - math.exp(-1000 / 4096)
    assert living == pytest.approx(8000 * likely, abs=4 * math.sqrt(8000 * likely))
    came = taken.of("churn_here")
    assert came[:2] == (0, 0)
    assert came[2] == pytest.approx(32000 * likely, abs=4 * math.sqrt(32000 * likely))
    assert taken.records.sampling.interval == 4096
    taken.assert_is_consistent()


@pytest.mark.parametrize("size", [1, 100, 4096, 100_000])
def test_each_byte_is_as_likely_as_any_other(opened: Open, size: int) -> None:
    attached = opened()
    attached.begin(lg_sample=10)
    count = min(90_000, 4_000_000 // size)
    attached.do(f"leak {count} {size}")
    likely = 1 - math.exp(-size / 1024)
    spread = math.sqrt(count * likely * (1 - likely))
    assert attached.dump().of("leak_here")[0] == pytest.approx(count * likely, abs=4 * spread + 1)


@forks
def test_every_birth_and_every_death_is_counted_once(opened: Open) -> None:
    attached = opened()
    attached.begin()
    assert attached.do("churn 3000") == "0", "a child failed"
    taken = attached.dump()
    taken.assert_is_consistent()
    living, _size, ever = taken.of("serve")
    assert living == int(attached.do("living")) and living > 400
    assert ever == 4 * 8 * 3000
    attached.do("free")
    freed = attached.dump()
    freed.assert_is_consistent()
    assert freed.of("serve") == (0, 0, ever)
    assert attached.ask("status")["unseen"] == 0


def test_each_way_to_allocate_is_seen(opened: Open) -> None:
    attached = opened()
    attached.begin()
    attached.do("kinds")
    taken = attached.dump()
    living, size, ever = taken.of("kinds")
    assert (living, size, ever) == (11, 9 * 1000 + 1024 + 4096, 12)
    attached.do("free")
    assert attached.dump().of("kinds") == (0, 0, 12)


@pytest.mark.parametrize("kind", ["now", "lazy"])
def test_what_only_some_allocators_have_is_seen(kind: str, opened: Open, unpatched_jemalloc: Path) -> None:
    """BIND calls mallocx, and a program in C++ under jemalloc that one's operator new."""
    attached = opened(program(kind), preload=unpatched_jemalloc)
    attached.begin()
    attached.do("own")
    taken = attached.dump()
    assert taken.of("own") == (4, 4000, 9)
    taken.assert_is_consistent()
    attached.do("free")
    assert attached.dump().of("own") == (0, 0, 9)
    assert attached.detach()["left"] == 0


@pytest.mark.skipif(FOREIGN, reason="the allocator here is of this machine's C library")
@pytest.mark.parametrize("kind", ["now", "lazy"])
def test_what_is_freed_with_its_size_dies(kind: str, opened: Open) -> None:
    """By functions of the allocator's own, which call no free that could be seen."""
    options = ("-shared", "-fPIC", "-fno-builtin")
    attached = opened(program(kind), preload=compiled("libsized.so", [PROGRAMS / "sized.c"], *options))
    attached.begin()
    attached.do("sized")
    assert attached.dump().of("sized") == (0, 0, 2)
    assert attached.detach()["left"] == 0


def test_what_a_realloc_cannot_move_lives_on(opened: Open) -> None:
    attached = opened()
    attached.begin()
    attached.do("fail")
    taken = attached.dump()
    taken.assert_is_consistent()
    assert taken.of("leak_here") == (1, 5000, 1)
    attached.do("free")
    assert attached.dump().of("leak_here") == (0, 0, 1)


def test_what_a_program_has_in_its_code_is_left_alone(opened: Open) -> None:
    options = ("-shared", "-fPIC", "-Wl,-z,notext")
    attached = opened(preload=compiled("libincode.so", [PROGRAMS / "in_code.c"], *options, compiler=COMPILER))
    attached.begin()
    attached.do("leak 100 1000")
    assert attached.dump().of("leak_here")[0] == 100
    assert attached.detach()["left"] == 0


def test_errno_is_kept(opened: Open) -> None:
    attached = opened()
    attached.begin()
    assert attached.do("errno") == "1"


def test_a_signal_may_come_inside_a_hook(opened: Open) -> None:
    attached = opened()
    attached.begin()
    assert int(attached.do("signals")) >= 2000
    attached.dump().assert_is_consistent()


def test_a_death_that_went_past_is_found_when_its_address_comes_again(opened: Open) -> None:
    attached = opened()
    attached.begin()
    attached.do("leak 100 2000")
    attached.do("unseen 100")
    unseen = attached.ask("status")["unseen"]
    assert unseen > 50
    taken = attached.dump()
    taken.assert_is_consistent()
    assert taken.of("leak_here")[0] == 100 - unseen
    assert taken.of("churn_here")[0] == 100


def test_objects_that_come_later_are_seen_and_those_that_go_forgotten(opened: Open) -> None:
    attached = opened()
    attached.begin()
    before = attached.ask("status")["entries"]
    for _again in range(2):
        assert attached.do("open") == "1"
        wait_for("its entries", lambda: attached.ask("status")["entries"] > before)
        attached.do("plugin")
        assert 7000 in attached.dump().book.size
        assert attached.do("close") == "0"
        wait_for("their end", lambda: attached.ask("status")["entries"] == before)
    assert attached.detach()["left"] == 0


def test_the_entries_of_what_has_hooks_of_its_own_stay(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it finds there it calls for its own hooks: each would call the other, without an end."""
    other = compiled("libasyncProfiler.so", [PROGRAMS / "plugin.c"], "-O2", "-shared", "-fPIC", compiler=COMPILER)
    monkeypatch.setattr(sys.modules[__name__], "plugin", lambda: other)
    attached = opened()
    attached.begin()
    before = attached.ask("status")["entries"]
    assert attached.do("open") == "1"
    time.sleep(2.5)  # new objects are looked at each second
    assert attached.ask("status")["entries"] == before


def test_sampling_ends_with_a_word_when_another_tool_takes_an_entry(opened: Open) -> None:
    """Nobody sees the end of what lives then, so all of it would look like a leak."""
    attached = opened()
    attached.begin()
    attached.do("leak 1 1")
    attached.do("free")  # binds what is lazy
    attached.do("snapshot")
    attached.do("data")  # which is the program's own affair
    time.sleep(2.5)  # entries are looked at each second
    assert attached.ask("status")["active"]
    assert attached.do("take") == "1"
    wait_for("the end of sampling", lambda: not attached.ask("status")["active"])
    told = attached.ask("status")
    assert "another tool has put its functions into 1 of the entries" in told["problem"] and told["entries"]
    noted = json.loads(Path(f"{attached.ask('dump')['path']}.json").read_text())
    assert noted["active"] is False
    attached.do("return")
    attached.ask("activate")
    attached.do("open")
    wait_for("another look", lambda: attached.ask("status")["entries"] > told["entries"])
    assert attached.ask("status")["active"]
    attached.do("take")
    wait_for("the end of sampling", lambda: not attached.ask("status")["active"])
    assert attached.detach()["left"] == 0


@pytest.mark.parametrize("kind", [*LINKED, "jemalloc"])
def test_every_entry_is_put_back_and_attaching_again_works(
    opened: Open, request: pytest.FixtureRequest, kind: str
) -> None:
    own = request.getfixturevalue("unpatched_jemalloc") if kind == "jemalloc" else None
    attached = opened(program(kind if kind in LINKED else "lazy"), preload=own)
    attached.begin()
    attached.detach()  # whatever is bound lazily until then
    attached.do("leak 1 1")
    attached.do("free")
    attached.do("snapshot")
    for count in (100, 200):
        assert attached.do("compare") == "0"
        attached.begin()
        assert int(attached.do("compare")) >= 8
        attached.do(f"leak {count} 1000")
        taken = attached.dump()
        assert taken.of("leak_here") == (count, count * 1000, count), "a new book"
        assert EMULATED or attached.do("churn 300") == "0"
        attached.dump().assert_is_consistent()
        entries = attached.ask("status")["entries"]
        told = attached.detach()
        assert (told["put_back"], told["left"]) == (entries, 0)
    assert attached.do("compare") == "0"
    attached.do("free")
    assert attached.do("churn 300") == "0"


def test_it_detaches_by_itself_where_nobody_does(opened: Open) -> None:
    attached = opened()
    attached.begin()
    attached.detach()  # whatever is bound lazily until then
    attached.do("snapshot")
    attached.begin(detach_seconds=2)
    assert int(attached.do("compare")) >= 8
    wait_for("the end of the agent's thread", lambda: "offheap" not in attached.threads(), timeout=20)
    assert attached.do("compare") == "0"


def test_it_ends_itself_where_it_costs_too_much(opened: Open) -> None:
    """With what it has seen until then, and all put back."""
    attached = opened()
    attached.begin()
    attached.detach()  # whatever is bound lazily until then
    attached.do("churn 10")
    attached.do("snapshot")
    attached.begin(lg_sample=24, max_cost=25)
    worked = time.monotonic() + 7  # it judges five seconds at a time
    while time.monotonic() < worked:
        attached.do("churn 300")
    assert client.find(UNIT, str(attached.run)), "one sample in 16 MiB costs nothing"
    attached.detach()
    attached.begin(max_cost=25)
    worked = time.monotonic() + 60
    while client.find(UNIT, str(attached.run)):
        attached.do("churn 300")
        assert time.monotonic() < worked
    wait_for("the end of its thread", lambda: "offheap" not in attached.threads())
    assert attached.do("compare") == "0"
    (written,) = attached.spool.glob("*.heap.json")
    assert '"reason":"cost"' in written.read_text().replace(": ", ":")
    assert written.with_suffix("").stat().st_size > 1000


@forks
def test_a_child_may_fork_at_any_moment(opened: Open) -> None:
    attached = opened()
    attached.do("forks")
    for _round in range(25):
        attached.begin()  # not while the program opens anything itself: glibc leaves such a child without a loader
        attached.detach()
    attached.begin()
    attached.do("churn 1000")
    assert attached.do("joined") == "0"
    attached.dump().assert_is_consistent()


def test_what_cannot_be_attached_says_why(opened: Open) -> None:
    attached = opened()
    assert attached.attach(prefix="jeprof") == errno.EINVAL
    assert attached.attach(unit="x" * 16384) == errno.E2BIG
    attached.begin()
    assert attached.attach() == errno.EBUSY
    assert attached.detach()["left"] == 0
    attached.begin(unwinder="fp")
    attached.do("leak 10 1000")
    assert attached.dump().of("leak_here")[0] == 10


def test_status_and_sidecar_say_what_feeds_it(opened: Open) -> None:
    attached = opened()
    attached.begin(lg_sample=14, unwinder="builtin", dump_growth=10)
    status = attached.ask("status")
    assert (status["feeder"], status["lg_sample"], status["unwinder"]["used"]) == ("sampler", 14, "hybrid")
    path = attached.dump().path
    written = Path(f"{path}.json")
    fd = os.open(written, os.O_RDONLY)
    facts = sidecar.read(fd, path.name, path.stat().st_size)
    os.close(fd)
    assert facts.active and facts.jemalloc.version is None
    assert '"feeder":"sampler"' in written.read_text().replace(": ", ":")


def test_sampling_off_and_on_begins_a_new_book(opened: Open) -> None:
    attached = opened()
    attached.begin()
    attached.do("leak 10 1000")
    attached.ask("deactivate")
    attached.do("leak 20 1000")
    attached.ask("activate")
    attached.do("leak 30 1000")
    taken = attached.dump()
    taken.assert_is_consistent()
    assert taken.of("leak_here") == (30, 30_000, 30)
    attached.ask("reset")
    assert attached.dump().of("leak_here") == (0, 0, 0)


def test_an_agent_that_came_with_the_process_stays(
    start: Callable[..., Service], jemalloc: Path, library: Path
) -> None:
    service = start(service_program("workload"), "leak", "30")
    service.wait_until_active()
    assert service.ask("status")["feeder"] == "jemalloc"
    with pytest.raises(client.AgentError, match="it came with the process"):
        service.ask("detach")
    assert service.ask("status")["active"]


def test_our_own_entries_lead_to_the_functions_themselves(library: Path) -> None:
    """An address of one that is taken here could be the stub of a program that is not position independent."""
    told = subprocess.run(["readelf", "-rW", library], capture_output=True, text=True, check=True).stdout
    types = re.findall(r" R_(?:X86_64|AARCH64)_(\w+) +\w+ (malloc|free|calloc|realloc|\w*alloc|\w*memalign)@", told)
    assert {name for _type, name in types} >= {"malloc", "free", "calloc", "realloc"}
    assert {kind for kind, _name in types} == {"JUMP_SLOT"}


def test_who_waits_for_a_message_is_told(opened: Open) -> None:
    """The kernel forgets what a process has asked of a queue when a thread closes it in a table of its own."""
    attached = opened()
    assert attached.do("queue") == "1"
    attached.begin()
    assert attached.do("told") == "1"
    assert attached.ask("status")["descriptors"] == "shared"
    attached.detach()


@pytest.mark.skipif(EMULATED, reason="the sanitizers want this machine")
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_clean(tmp_path: Path, sanitizer: str) -> None:
    name, options = sanitizer.split(",")[0], ["-O1", f"-fsanitize={sanitizer}"]
    flags = ["-shared", "-fPIC", "-fvisibility=hidden", "-ftls-model=initial-exec", "-Wl,-z,nodelete,-z,now"]
    library = compiled(f"liboffheap-{name}.so", sorted(SOURCES.glob("*.c")), *options, *flags)
    path = compiled(f"attached-{name}", [PROGRAMS / "attached.c"], *options)
    attached = Attached(tmp_path, library, path)
    try:
        for _again in range(2):
            attached.begin(lg_sample=6)
            assert attached.do("churn 500") == "0"
            attached.do("open")
            attached.do("leak 1000 100")
            attached.dump().assert_is_consistent()
            attached.do("close")
            assert attached.detach()["left"] == 0
        assert attached.process.stdin
        attached.process.stdin.close()
        attached.process.stdin = None
        assert attached.ended() == "status 0, "
    finally:
        attached.process.kill()
