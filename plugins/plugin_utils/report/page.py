# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The report on a fleet as one HTML file. Data from hosts goes into it as JSON, which its script shows as text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..export import embedding
from . import ticket


def render(data: Mapping[str, Any]) -> str:
    """The HTML for a Fleet's data. Needs jinja2."""
    text = ticket.render(data)
    return embedding.page(Path(__file__).parent, "report", data=embedding.json_text(data), text=text)
