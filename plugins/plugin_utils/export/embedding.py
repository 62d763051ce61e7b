# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The page as one HTML file that needs neither other files nor a network.

Data from hosts goes into it as JSON and as escaped text. The page's content security policy allows its one script and
its one style sheet, by their hashes, and no request at all.
"""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jinja2

_HERE = Path(__file__).parent
# Characters of JSON above which it is packed. Below, a page opens in older browsers, and its data can be read as it is.
_LARGE = 4_000_000


def page(data: Mapping[str, Any], text: str) -> str:
    """The page that shows a fleet's data (report/fleet.py) or a single profile's (flamegraph.py).

    ``text`` stands there where scripts are off. Needs jinja2.
    """
    content = json_text(data)
    packed = len(content) > _LARGE
    if packed:
        content = base64.b64encode(gzip.compress(content.encode("ascii"), 6, mtime=0)).decode("ascii")
    return _page_without_data().render(data=content, packed=packed, text=text)


@functools.cache
def _page_without_data() -> jinja2.Template:
    """The template with the script, the style sheet and their policy, which are the same on each host's page."""
    import jinja2  # takes longer to load than reading most dumps, and no other format needs it

    script, style = ((_HERE / "assets" / f"page.{kind}").read_text(encoding="utf-8") for kind in ("js", "css"))
    policy = (
        f"default-src 'none'; script-src '{content_hash(script)}'; style-src '{content_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    environment = jinja2.Environment(autoescape=True, trim_blocks=False, keep_trailing_newline=True)
    text = (_HERE / "templates" / "page.html.j2").read_text(encoding="utf-8")
    return environment.from_string(text, {"policy": policy, "script": script, "style": style})


def content_hash(content: str) -> str:
    """The source expression that lets a content security policy allow an inline script or style (CSP level 3)."""
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode("utf-8")).digest()).decode("ascii")


def json_text(value: Any) -> str:
    """JSON that cannot end the script element around it, whatever names it contains."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
