# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The report on a fleet as one HTML file that needs nothing else, neither files nor a network.

What hosts have sent goes into the page as JSON, which its script shows as text. The page's content security policy
allows the one script and the one style sheet that are in it, by their hashes, and no request at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..export.embedding import content_hash, json_text
from . import ticket

_HERE = Path(__file__).parent


def render(data: Mapping[str, Any]) -> str:
    """The HTML for a Fleet's data. Needs jinja2."""
    import jinja2  # takes longer to load than most dumps to read

    script, style = _asset("report.js"), _asset("report.css")
    policy = (
        f"default-src 'none'; script-src '{content_hash(script)}'; style-src '{content_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    environment = jinja2.Environment(autoescape=True, trim_blocks=False, keep_trailing_newline=True)
    template = environment.from_string((_HERE / "templates" / "report.html.j2").read_text(encoding="utf-8"))
    return template.render(policy=policy, script=script, style=style, data=json_text(data), text=ticket.render(data))


def _asset(name: str) -> str:
    return (_HERE / "assets" / name).read_text(encoding="utf-8")
