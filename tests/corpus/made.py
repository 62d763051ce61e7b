# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Have others' writers write profiles, read each beside its writer's own reader, and write docs/corpus.md.

    made.py [--again] [--table] [CASE ...]

What came of each is kept, in tests/corpus/seen/, and not tried again unless --again is given; --table only writes the
page. The files stay in build/corpus/.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import time
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / ".cache" / "collections"))

from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
from ansible_collections.offheap.profiler.plugins.plugin_utils.driver.sources import THIS_MACHINE, Places, open_reader
from ansible_collections.offheap.profiler.plugins.plugin_utils.driver.told_options import told_in_short
from ansible_collections.offheap.profiler.plugins.plugin_utils.views.table import Granularity, Measure, Table
from ansible_collections.offheap.profiler.tests.corpus import corpus_page
from ansible_collections.offheap.profiler.tests.corpus.catalog import CASES
from ansible_collections.offheap.profiler.tests.corpus.corpus_case import Case, differences
from ansible_collections.offheap.profiler.tests.corpus.corpus_page import Seen

BUILD = ROOT / "build" / "corpus"
SEEN = ROOT / "tests" / "corpus" / "seen"
PAGE = ROOT / "docs" / "corpus.md"


def table(file: Path, source: str, measure: str) -> Table:
    """A file, read as ``fab top`` reads it. Raises OffheapError."""
    places = Places(binary_path=[THIS_MACHINE], told=told_in_short(source))
    with open_reader([file], places) as reader:
        return Table(reader.read(file).samples, Granularity.FUNCTIONS, Measure(measure))


def tried(case: Case) -> Seen:
    """Have the file written, and read."""
    directory = BUILD / case.name
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    file = case.write(directory)
    seen = Seen(case.name, time.strftime("%Y-%m-%d", time.gmtime()), case.writer.version(), file.stat().st_size)
    try:
        found = table(file, case.source, case.measure)
    except OffheapError as error:
        said = str(error).replace(str(directory), "").lstrip("/")
        expected = bool(case.refused and re.search(case.refused, said))
        seen.refused = said
        seen.differences = [] if expected else [f"refused: {said}"]
        return seen
    if case.own is None:
        seen.differences = ["read, and was to be refused"]
        return seen
    own = case.own(file)
    seen.total, seen.functions = own.total, len(own.top)
    seen.differences = differences(
        own, found.total, [(row.name, row.cumulative if own.cumulative else row.flat) for row in found.rows()]
    )
    return seen


def kept() -> list[Seen]:
    """What was seen, in the order of the catalog."""
    paths = [SEEN / f"{case.name}.json" for case in CASES]
    return [Seen(**json.loads(path.read_text())) for path in paths if path.exists()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("cases", nargs="*", metavar="CASE")
    options = parser.parse_args()
    todo = [case for case in CASES if not options.cases or case.name in options.cases]
    todo = [case for case in todo if options.again or not (SEEN / f"{case.name}.json").exists()]
    SEEN.mkdir(exist_ok=True)
    for case in [] if options.table else todo:
        seen = tried(case)
        (SEEN / f"{seen.name}.json").write_text(json.dumps(asdict(seen), indent=1) + "\n")
        print(f"{seen.name}: {seen.total} bytes, {'; '.join(seen.differences) or seen.refused or 'equal'}", flush=True)
    PAGE.write_text(corpus_page.page(kept()))
    print(f"{PAGE.relative_to(ROOT)} is written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
