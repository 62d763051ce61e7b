# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The report on a fleet as one HTML file. Data from hosts goes into it as JSON, which its script shows as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..export import embedding
from . import ticket


def render(data: Mapping[str, Any]) -> str:
    """The HTML for a Fleet's data. Needs jinja2."""
    return embedding.page(_in_short(data), ticket.render(data))


def _in_short(data: Mapping[str, Any]) -> dict[str, Any]:
    """The data in less room: what is said of the memory of each dump is most of a large fleet's.

    Each text is there once, in ``texts``; a part is the numbers of its name, origin and meaning, and its bytes.
    """
    texts: dict[str, int] = {}

    def number(text: str) -> int:
        return texts.setdefault(text, len(texts))

    def in_short(memory: Mapping[str, Any] | None) -> dict[str, Any] | None:
        if memory is None:
            return None
        parts = [
            [*(number(part[key]) for key in ("name", "origin", "meaning")), part["bytes"]]
            for part in memory["parts"]
            if part["bytes"]
        ]
        return {"rss": round(memory["rss"]), "notes": list(map(number, memory["notes"])), "parts": parts}

    units = [
        {
            **unit,
            "hosts": [
                {**host, "dumps": [{**dump, "memory": in_short(dump["memory"])} for dump in host["dumps"]]}
                for host in unit["hosts"]
            ],
        }
        for unit in data["units"]
    ]
    return {**data, "units": units, "texts": list(texts)}
