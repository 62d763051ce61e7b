# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Spools that tests fill by themselves, on hosts where nothing is profiled."""

from __future__ import annotations

import base64

from ansible_collections.offheap.profiler.tests.integration.hosts import LabHost

UNIT = "collecttest.service"
SPOOL = f"/var/lib/offheap/{UNIT}"
OWNER = "nobody"


def put(host: LabHost, name: str, content: bytes, spool: str = SPOOL) -> None:
    """Write a dump into a spool as the service would."""
    path = f"{spool}/{name}"
    text = base64.b64encode(content).decode()
    for start in range(0, len(text), 60000):
        host.run(f"printf %s {text[start : start + 60000]} | base64 -d >> {path}")
    host.run(f"chown {OWNER} {path} && chmod 644 {path}")


def make_spool(host: LabHost) -> None:
    host.run(f"rm -rf /var/lib/offheap; mkdir -p {SPOOL}; chmod 755 /var/lib/offheap; chmod 700 {SPOOL}")
    host.run(f"chown {OWNER} {SPOOL}")
