# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What is measured against jeprof: one dump to text or collapsed stacks on stdout, as a whole process.

    read_heap.py text|collapsed DUMP IMAGE SYMCACHES [MEASURE:UNIT:INTERVAL]

These are the calls that the module heap_analyze makes. In a cold run the directory SYMCACHES is empty.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / ".cache" / "collections"))

from ansible_collections.offheap.profiler.plugins.plugin_utils.driver.analyze import analyze
from ansible_collections.offheap.profiler.plugins.plugin_utils.driver.formats import Request
from ansible_collections.offheap.profiler.plugins.plugin_utils.driver.sources import Places, open_reader
from ansible_collections.offheap.profiler.plugins.plugin_utils.driver.told_options import told_in_short
from ansible_collections.offheap.profiler.tests.bench import unconfined


def main() -> None:
    unconfined.heed()
    form, dump, image, symcaches, *said = sys.argv[1:]
    told = told_in_short("".join(said))
    with open_reader([Path(dump)], Places(binary_path=[Path(image)], symcaches=Path(symcaches), told=told)) as reader:
        source = reader.read(Path(dump))
        sys.stdout.buffer.writelines(analyze(Request(kind=form), source, None, reader.images).pieces)


if __name__ == "__main__":
    main()
