# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A session's answers while dumps are fetched.

This module is private to the collection.
"""

from __future__ import annotations

import functools
from typing import Any, Callable

from ansible_collections.offheap.profiler.plugins.module_utils.agent import failed_dumps
from ansible_collections.offheap.profiler.plugins.module_utils.formats import wire
from ansible_collections.offheap.profiler.plugins.module_utils.formats.pack_request import PackRequest, SpooledDump
from ansible_collections.offheap.profiler.plugins.module_utils.spool import steps


def _find(request: dict[str, Any], _write: wire.Write) -> dict[str, Any]:
    found = steps.find(request["options"])
    found.problems.extend(failed_dumps.told(request["options"]["units"]))
    if request["ask_jvms"]:
        steps.ask_jvms(found)
    # A session packs nothing on disk, so no file system limits a batch.
    return {**found.to_json(), "free": 1 << 60}


def _stream(request: dict[str, Any], write: wire.Write) -> dict[str, Any]:
    return steps.stream_captures(PackRequest.from_json(request["request"]), functools.partial(wire.write_data, write))


def _mark(request: dict[str, Any], _write: wire.Write) -> dict[str, Any]:
    return steps.mark([SpooledDump.from_json(entry) for entry in request["dumps"]], request["delete"])


ANSWERS: dict[str, Callable[[dict[str, Any], wire.Write], dict[str, Any]]] = {
    "find": _find,
    "stream": _stream,
    "mark": _mark,
}
