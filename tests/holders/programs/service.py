# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""service.py CASE SECONDS: after so long, objects of the module held, or of lxml, are kept or lost in one way."""

from __future__ import annotations

import importlib
import sys
import time
from typing import Any

COUNT = 3000
CACHE: dict[int, Any] = {}


def kept_documents() -> None:
    etree = importlib.import_module("lxml.etree")
    for number in range(COUNT):
        CACHE[number] = etree.fromstring(f"<order number='{number}'><item>{'text' * 20}</item></order>")


def statements_not_finalized() -> None:
    import sqlite3

    connection = sqlite3.connect(":memory:", cached_statements=0)
    connection.execute("create table orders (number)")
    connection.executemany("insert into orders values (?)", [(1,), (2,)])
    CACHE[-1] = connection
    for number in range(COUNT):
        cursor = connection.execute("select number, number * 2 from orders where number > 0")
        cursor.fetchone()
        CACHE[number] = cursor


def main() -> None:
    case, seconds = sys.argv[1], float(sys.argv[2])
    time.sleep(seconds)
    if case in globals():
        globals()[case]()
    else:
        run = getattr(importlib.import_module("held"), case)
        run(*([CACHE] if case == "kept_by_a_dict" else []))
    while True:
        time.sleep(1)


if __name__ == "__main__":
    main()
