# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Sends profiles to Grafana Pyroscope: pprof in a form, to its endpoint /ingest (Pyroscope's server HTTP API)."""

from __future__ import annotations

import json
from urllib.parse import urlencode

from ..archive.capture import Capture
from ..export.pprof import TYPES
from .profile_server import Server

# Older servers, which take profiles apart themselves, drop numbers of which they are not told, in silence.
_UNITS = {"bytes": "bytes", "count": "objects"}
_SUMS = ("alloc_", "grown_")


def name_of(capture: Capture) -> str:
    """The series: the unit, with host, process and label as Pyroscope labels."""
    labels = {"host": capture.host, "process": capture.process, "version": capture.facts.label or ""}
    inside = ",".join(f"{key}={_label(value)}" for key, value in labels.items() if value)
    return f"{_label(capture.unit.removesuffix('.service'))}{{{inside}}}"


def push(server: Server, capture: Capture, pprof: bytes) -> None:
    """Send the profile (gzipped pprof) of a capture. Raises ServerError."""
    moment = int(capture.time)
    query = {"name": name_of(capture), "from": moment, "until": moment + 1, "format": "pprof", "spyName": "offheap"}
    server.post(f"/ingest?{urlencode(query)}", {"fields": _form(pprof)})


def _form(pprof: bytes) -> dict[str, tuple[str, bytes, str]]:
    config = {
        name: {
            "units": _UNITS[unit],
            "aggregation": "sum" if name.startswith(_SUMS) else "average",
            "display-name": name,
            "sampled": False,
        }
        for name, unit in TYPES.items()
    }
    kind = "application/octet-stream"
    return {
        "profile": ("profile.pprof", pprof, kind),
        "sample_type_config": ("config.json", json.dumps(config).encode(), kind),
    }


def _label(text: str) -> str:
    """The text with each character that Pyroscope refuses in names and labels replaced by ``_``."""
    return "".join(character if character.isalnum() or character in "._-:/@" else "_" for character in text)
