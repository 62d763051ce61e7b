# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A lake's tables in DuckDB, as docs/lake.md says."""

from __future__ import annotations

from collections.abc import Iterable

import deltalake
import duckdb

from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.object_store import is_address
from ansible_collections.offheap.profiler.plugins.plugin_utils.columns.lake import TABLES


def open_tables(connection: duckdb.DuckDBPyConnection, place: str, names: Iterable[str] = TABLES) -> None:
    """Tables of the lake at ``place``, each as a view of its name."""
    for name in names:
        table = deltalake.DeltaTable(f"{place}/{name}")
        if is_address(place):
            connection.register(name, table.to_pyarrow_dataset())
        else:
            files = table.file_uris()
            options = "hive_partitioning = true, hive_types_autocast = false"
            connection.execute(f"CREATE VIEW {name} AS FROM read_parquet({files!r}, {options})")
