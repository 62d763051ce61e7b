# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Whether what leaks is a monitoring agent in the service, and not the service: then the verdict says so."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from ..model.frame import Frame
from .verdict import Verdict

# What people call it, and what matches the whole name of its functions, of its libraries or of its source files.
_AGENTS = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        ("Datadog's tracer", r"(com\.)?datadog\..*|ddog_.*|(lib(dd_wrapper|javaProfiler|ddwaf)|_ddup\.).*"),
        ("Datadog's tracer", r".*/(ddtrace|dd-trace)/.*"),
        ("the OpenTelemetry agent", r"io\.opentelemetry\.javaagent\..*|.*/(site-packages/|@)opentelemetry/.*"),
        ("the New Relic agent", r"com\.newrelic\..*|newrelic[-.].*\.so|.*/newrelic/.*"),
        ("Dynatrace's OneAgent", r"com\.dynatrace\..*|liboneagent.*\.so.*"),
        ("Pyroscope's agent, as of Grafana Alloy", r"io\.pyroscope\..*|one\.profiler\..*"),
        ("the Elastic APM agent", r"co\.elastic\.apm\..*|.*/(elasticapm|elastic-apm-node)/.*"),
        ("the AppDynamics agent", r"com\.(appdynamics|singularity)\..*|libappdynamics.*\.so.*"),
        ("the Instana agent", r"com\.instana\..*|.*/@instana/.*"),
        ("the SkyWalking agent", r"org\.apache\.skywalking\.apm\..*"),
        ("the Application Insights agent", r"com\.microsoft\.applicationinsights\..*"),
        ("the Sentry SDK", r"io\.sentry\..*|.*/(sentry_sdk|@sentry)/.*"),
    )
)
# What an agent calls, as any program does: the C library, zlib, the JVM, and what comes with Java, Python and Node.
_BELOW = re.compile(
    r"(libc|libm|libz|libdl|libpthread|libstdc\+\+|libgcc_s|libcrypto|libssl|lib(java|jvm|zip|net|nio|jimage|instrument)"
    r"|libpython[0-9.]*|libnode)[-.].*|ld-.*|java|node|python[0-9.]*"
    r"|(java|javax|jdk|sun|com\.sun)\..*|<frozen .*|node:.*|.*/lib/python[0-9.]+/(?!site-packages/|dist-packages/).*"
)


def agent_of(path: Sequence[Frame]) -> str:
    """The monitoring agent that a path (leaf first) lies in; empty if none: that of the first function which is no
    library's that everybody calls. One that only wraps the service's own functions is not blamed."""
    for frame in path:
        names = (frame.function, frame.module, frame.file)
        for name, pattern in _AGENTS:
            if any(map(pattern.fullmatch, names)):
                return name
        if not any(map(_BELOW.fullmatch, names)):
            return ""
    return ""


def with_monitoring(verdict: Verdict) -> Verdict:
    """The verdict; where suspects lie in a monitoring agent, its sentence says which and in whose."""
    found: dict[str, list[str]] = {}
    for number, suspect in enumerate(verdict.suspects, 1):
        if name := agent_of(suspect.path):
            found.setdefault(name, []).append(str(number))
    for name, numbers in found.items():
        which = f"suspect{'s' if len(numbers) > 1 else ''} {' and '.join(numbers)}" if verdict.suspects[1:] else "it"
        lies = "lie" if len(numbers) > 1 else "lies"
        verdict = replace(verdict, reason=f"{verdict.reason}; {which} {lies} in {name}, which monitors the service")
    return verdict
