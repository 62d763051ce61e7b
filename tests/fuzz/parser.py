# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Coverage-guided fuzzing of everything that reads a dump's bytes: unpacking, parsing, locating, unbiasing.

    parser.py [CORPUS ...] [-runs=N] [-max_total_time=SECONDS] [other options of libFuzzer]

Every input is given to the reader of every format. Whatever the bytes are, there is a dump or an error of ours; an
input that takes over ten seconds or
memory out of proportion to its size ends the run. Python code is measured by atheris, which knows which branches an
input took.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / ".cache" / "collections"))

import atheris

with atheris.instrument_imports(include=["ansible_collections.offheap.profiler.plugins.plugin_utils"]):
    from ansible_collections.offheap.profiler.plugins.plugin_utils.base import unpack
    from ansible_collections.offheap.profiler.plugins.plugin_utils.base.errors import ControllerError
    from ansible_collections.offheap.profiler.plugins.plugin_utils.model.frame import Frame
    from ansible_collections.offheap.profiler.plugins.plugin_utils.model.raw import Records, Told
    from ansible_collections.offheap.profiler.plugins.plugin_utils.model.samples import located, named
    from ansible_collections.offheap.profiler.plugins.plugin_utils.model.sampling import Measure
    from ansible_collections.offheap.profiler.plugins.plugin_utils.readers import detect, heap_v2

from ansible_collections.offheap.profiler.tests.unit.plugins.plugin_utils.readers.test_tracer_texts import TEXTS
from ansible_collections.offheap.profiler.tests.unit.strategies import offers
from ansible_collections.offheap.profiler.tests.unit.strategies.small_recordings import recording

LIMIT = 1 << 20
_TOLD = Told(Measure.LIVE, "bytes", 1)
_SEED = b"""\
heap_v2/524288
  t*: 3: 300 [4: 400]
  t0: 2: 200 [2: 200] main
@ 0x401011 0x401021
  t*: 3: 300 [4: 400]
  t0: 2: 200 [2: 200]
@
  t*: 0: 0 [0: 0]

MAPPED_LIBRARIES:
00400000-00402000 r-xp 00001000 fe:00 11 /srv/my app (deleted)
7ffc0000-7ffd0000 rw-p 00000000 00:00 0                                  [stack]
"""
_GPERFTOOLS = b"""\
heap profile: 2: 200 [ 3: 300] @ heapprofile
 2: 200 [ 3: 300] @ 0x401011 0x401021

MAPPED_LIBRARIES:
00400000-00402000 r-xp 00001000 fe:00 11 /srv/app
"""
_COLLAPSED = b"main;serve;inflate 65536\nmain 4096\n"
_RECORDING = recording([(1, 10, 40, 1), (2, 20, 5000, 2)], [(3, 10)])


def one_input(data: bytes) -> None:
    """Read the input as a dump of every source; only our own errors may come out."""
    try:
        content = unpack.unpack(data, "fuzz", LIMIT)
    except unpack.UnpackError as error:
        assert str(error).isprintable()
        return
    for found in detect.FORMATS.values():
        try:
            _look_at(found.parse(content, "fuzz", _TOLD))
        except heap_v2.HeapFormatError as error:
            assert error.line >= 1 and error.expected and str(error).isprintable()
        except ControllerError as error:
            assert str(error).isprintable()


def _look_at(dump: Records) -> None:
    assert all(0 <= index < len(dump.addresses) + len(dump.names) for index in dump.stack_places)
    found = named(located(dump, {}), lambda locations: [(Frame(f"{one.address:x}", one.path),) for one in locations])
    assert len(found) == len(dump.stack_ends)
    assert [location.address for location in found.locations[: len(dump.addresses)]] == list(dump.addresses)


def main() -> None:
    corpora = [Path(name) for name in sys.argv[1:] if not name.startswith("-")]
    for corpus in corpora[:1]:
        corpus.mkdir(parents=True, exist_ok=True)
        seeds = {
            "jemalloc": _SEED,
            "async-profiler": _RECORDING,
            "gperftools": _GPERFTOOLS,
            "collapsed": _COLLAPSED,
            **TEXTS,
        }
        seeds["pprof"] = offers.pprof(4096)
        assert {*seeds} == {*detect.FORMATS}
        for name, seed in seeds.items():
            (corpus / name).write_bytes(seed)
    limits = ["-timeout=10", "-rss_limit_mb=1024", "-max_len=65536"]
    dictionary = Path(__file__).with_name("heap_v2.dict")
    atheris.Setup([sys.argv[0], *limits, f"-dict={dictionary}", *sys.argv[1:]], one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
