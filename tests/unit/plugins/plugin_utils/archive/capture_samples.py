# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Facts of made-up captures, and the listing in which a target would send them."""

from __future__ import annotations

import hashlib
from typing import Any

from ansible_collections.offheap.profiler.plugins.module_utils.formats.capture_facts import CaptureFacts

BUILD_ID = "00112233445566778899aabbccddeeff00112233"
IMAGE = b"image"
SHA256 = hashlib.sha256(IMAGE).hexdigest()


def facts(content: bytes = b"dump", **of: Any) -> CaptureFacts:
    """Valid facts for a dump of this content."""
    return CaptureFacts.from_json(written(content, **of))


def written(
    content: bytes = b"dump", host: str = "app1", unit: str = "frontend.service", pid: int = 12, sequence: int = 0
) -> dict[str, Any]:
    """The same in the form of capture.json."""
    return {
        "format": 1,
        "host": host,
        "unit": unit,
        "dump": {
            "name": f"jeprof.{pid}.{sequence}.i{sequence}.heap",
            "size": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
            "time": 1761234567.25 + sequence,
        },
        "process": {
            "pid": pid,
            "key": f"{pid}-1a2b3c4d",
            "boot_id": "3311dc9f-1808-4ca7-82ce-6a2ac4a132ac",
            "start_time": 1761234000.5,
            "exe": "/usr/bin/java",
            "cmdline": ["java", "", "-jar", "ä b.jar"],
        },
        "images": [
            {"path": "/usr/lib/libz.so.1.2.13", "build_id": BUILD_ID, "size": 100, "sha256": SHA256},
            {"path": "/opt/gone.so", "build_id": None, "size": None, "reason": "replaced"},
        ],
    }


def listing(*contents: bytes, unit: str = "frontend.service") -> dict[str, Any]:
    """What the module's step "list" would return for dumps of these contents."""
    sample = written(unit=unit)
    return {
        "captures": [
            {
                "unit": unit,
                "name": f"jeprof.12.{number}.i{number}.heap",
                "identity": [1000 + number, len(content), 1761234567250000000],
                "sha256": hashlib.sha256(content).hexdigest(),
                "time": 1761234567.25,
                "process": 0,
                "images": [0, 1],
            }
            for number, content in enumerate(contents)
        ],
        "processes": [sample["process"]],
        "images": [
            {"reason": None, "source": "/proc/12/map_files/7f00-7f01", **sample["images"][0]},
            {"source": None, "sha256": None, **sample["images"][1]},
        ],
        "left": 0,
        "others": {"incomplete": [], "unreadable": [], "writing": []},
        "counts": {"incomplete": 0, "unreadable": 0, "writing": 0},
        "absent": [],
        "problems": [],
        "free": 1 << 30,
    }
