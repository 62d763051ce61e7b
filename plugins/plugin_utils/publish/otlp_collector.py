# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Sends profiles to a collector of OpenTelemetry, or to what takes its profiles: OTLP by HTTP or gRPC, as protobuf
(opentelemetry-proto 1.10, collector/profiles/v1development; "OTLP/HTTP" and "OTLP/gRPC" of its specification)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..archive.capture import Capture
from ..base import libraries, profile_proto
from ..base.printable import printable
from .profile_server import Server, ServerError, parts_of, refuse_headers, refuse_secrets

grpc = libraries.optional("grpc")

_EXPORT = "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export"
_GRPC = ("grpc", "grpcs")
_MOST_ATTEMPTS = 5  # that gRPC makes


class GrpcCollector(Server):
    """A collector at ``grpc://host:port``, or ``grpcs://`` for one with TLS. gRPC itself tries again, while nobody is
    there: at most five times, after about 1, 2, 4 and 8 seconds."""

    def check(self) -> None:
        """Raises ServerError if ``url`` is not such an address or a header cannot be sent, MissingLibraryError without
        gRPC."""
        refuse_secrets(self.url)
        refuse_headers(self.headers)
        parts = parts_of(self.url)
        if not parts.hostname or parts.path.strip("/") or parts.query:
            raise ServerError(
                f"{self.url!r} is no collector's address, such as grpc://collector.example.org:4317", True
            )
        libraries.require("grpc")

    def post(self, path: str, content: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> bytes:
        try:
            with self._channel() as channel:
                answer: bytes = channel.unary_unary(_EXPORT)(
                    content["body"],
                    timeout=self.timeout * self.attempts,
                    metadata=[(name.lower(), value) for name, value in self.headers.items()],
                )
        except grpc.RpcError as error:
            code = error.code()
            problem = printable(f"{self.url} answered {code.name}: {(error.details() or '')[:300]}")
            # These refuse this profile; all else would refuse any.
            this_one = code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED)
            raise ServerError(problem, not this_one) from error
        return answer

    def _channel(self) -> Any:
        again = {
            "maxAttempts": min(self.attempts, _MOST_ATTEMPTS),
            "initialBackoff": "1s",
            "maxBackoff": "8s",
            "backoffMultiplier": 2,
            "retryableStatusCodes": ["UNAVAILABLE"],
        }
        policy = {"retryPolicy": again} if self.attempts > 1 else {}
        options = [("grpc.service_config", json.dumps({"methodConfig": [{"name": [{}], **policy}]}))]
        parts = parts_of(self.url)
        where = parts.netloc if parts.port else f"{parts.netloc}:4317"
        if parts.scheme == "grpcs":
            return grpc.secure_channel(where, grpc.ssl_channel_credentials(), options)
        return grpc.insecure_channel(where, options)


def collector(url: str, headers: Mapping[str, str], attempts: int, timeout: float) -> Server:
    """What takes profiles at ``url``, by gRPC or by HTTP as its scheme says."""
    if url.partition(":")[0].lower() in _GRPC:
        return GrpcCollector(url, "", headers, attempts, timeout)
    return Server(f"{url.rstrip('/')}/v1development/profiles", "", headers, attempts, timeout)


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
