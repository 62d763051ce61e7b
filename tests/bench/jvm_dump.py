# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Dumps of any size like those of a busy JVM: stacks through the functions of this machine's libjvm.

jvm_dump.py FILE STACKS     writes one and prints {"program": ..., "libjvm": ..., "size": ...}
"""

from __future__ import annotations

import json
import random
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / ".cache" / "collections"))

from ansible_collections.offheap.profiler.plugins.plugin_utils.symbols.elf_image import ElfImage

INTERVAL = 524288
_BASE = 0x7F3A10000000
_PAGE = 4096
# Numbers of return addresses and of callers per function: stacks are walks through a call graph.
_CALL_SITES = 20000
_CALLERS = 4
_THREADS = 40


class JvmDumps:
    """Writes dumps over the libjvm of the Java on PATH. The same arguments make the same bytes."""

    def __init__(self) -> None:
        java = shutil.which("java")
        if java is None:
            raise SystemExit("no java: apt-get install default-jdk-headless")
        self.program = Path(java).resolve()
        self.libjvm = self.program.parent.parent / "lib" / "server" / "libjvm.so"
        self.image = ElfImage(self.libjvm)
        functions = [(start, end) for start, end in self.image.symbols().ranges() if end - start > 32]
        chosen = random.Random(4)
        self._sites: list[bytes] = []
        for start, end in chosen.choices(functions, k=_CALL_SITES):
            # A call instruction has at least two bytes, and there is code after it.
            self._sites.append(b"0x%x" % (_BASE + chosen.randrange(start + 2, end)))

    def write(self, path: Path, stacks: int, depth: int = 40) -> int:
        """Write a dump of so many different stacks of this depth. Returns its size in bytes."""
        chosen = random.Random(stacks)
        records = []
        threads = [[0, 0] for _thread in range(_THREADS)]
        seen: set[tuple[int, ...]] = set()
        while len(seen) < stacks:
            site = chosen.randrange(_CALL_SITES)
            walk = [site]
            for _frame in range(depth - 1):
                # A function has the same callers wherever it occurs.
                site = (site * 7919 + chosen.randrange(_CALLERS) * 104729 + 1) % _CALL_SITES
                walk.append(site)
            key = tuple(walk)
            if key in seen:
                continue
            seen.add(key)
            objects = chosen.randrange(1, 6)
            size = objects * chosen.choice((48, 512, 4096, 71960, 1048576))
            thread = chosen.randrange(_THREADS)
            threads[thread][0] += objects
            threads[thread][1] += size
            addresses = b" ".join([self._sites[site] for site in walk])
            counts = b"%d: %d [0: 0]\n" % (objects, size)
            records.append(b"@ %b\n  t*: %b  t%d: %b" % (addresses, counts, thread, counts))
        totals = (sum(objects for objects, _size in threads), sum(size for _objects, size in threads))
        head = [b"heap_v2/%d\n  t*: %d: %d [0: 0]\n" % (INTERVAL, *totals)]
        head += [b"  t%d: %d: %d [0: 0] worker-%d\n" % (uid, *sums, uid) for uid, sums in enumerate(threads)]
        text = b"".join(head + records) + b"\nMAPPED_LIBRARIES:\n" + self._maps()
        path.write_bytes(text)
        return len(text)

    def _maps(self) -> bytes:
        lines = [f"55d0c0000000-55d0c0001000 r-xp 00000000 fe:00 11 {self.program}\n"]
        for offset, end, address, executable in self.image.segments:
            first, last = address // _PAGE * _PAGE, -(-(address + end - offset) // _PAGE) * _PAGE
            permissions = "r-xp" if executable else "r--p"
            place = f"{_BASE + first:x}-{_BASE + last:x} {permissions} {offset // _PAGE * _PAGE:08x}"
            lines.append(f"{place} fe:00 12 {self.libjvm}\n")
        return "".join(lines).encode()


if __name__ == "__main__":
    dumps = JvmDumps()
    written = dumps.write(Path(sys.argv[1]), int(sys.argv[2]))
    print(json.dumps({"program": str(dumps.program), "libjvm": str(dumps.libjvm), "size": written}))
