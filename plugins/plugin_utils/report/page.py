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
    return embedding.page(data, ticket.render(data))
