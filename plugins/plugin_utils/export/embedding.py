# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What makes a page of one file safe: its own script and style by their hashes, and data that stays data."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any


def content_hash(content: str) -> str:
    """The source expression by which a content security policy allows an inline script or style (CSP level 3)."""
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode("utf-8")).digest()).decode("ascii")


def json_text(value: Any) -> str:
    """JSON that cannot end the script element it stands in, whatever names are in it."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
