# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Sends profiles to a collector of OpenTelemetry, or to what takes its profiles: OTLP by HTTP, as protobuf
(opentelemetry-proto 1.10, collector/profiles/v1development; the protocol's specification, "OTLP/HTTP")."""

from __future__ import annotations

from ..archive.capture import Capture
from ..base import profile_proto
from ..base.printable import printable
from .profile_server import Server, ServerError


def address(url: str) -> str:
    """Where a collector at ``url`` takes profiles."""
    return f"{url.rstrip('/')}/v1development/profiles"


def resource_of(capture: Capture) -> dict[str, str]:
    """What the profiles are of, as OpenTelemetry's conventions name it."""
    told = {
        "service.name": capture.unit.removesuffix(".service"),
        "service.version": capture.facts.label or "",
        "service.instance.id": f"{capture.host} {capture.process}",
        "host.name": capture.host,
        "process.executable.path": capture.facts.process.exe or "",
        "systemd.unit": capture.unit,
    }
    return {name: value for name, value in told.items() if value}


def push(server: Server, request: bytes) -> None:
    """Send a capture's profiles (export/otlp.py) to such an address. Raises ServerError, also if the server has taken
    but a part of them."""
    answer = server.post("", {"body": request}, {"Content-Type": "application/x-protobuf"})
    try:
        partly = profile_proto.message_class("OtlpResponse", "bytes").FromString(answer).partial_success
    except profile_proto.decode_error():
        return  # a server that took it, and says so in words of its own
    if partly.rejected:
        why = printable(partly.error.decode("utf-8", "replace")[:300])
        raise ServerError(f"{server.url} has refused {partly.rejected} of a capture's profiles: {why}", False)
