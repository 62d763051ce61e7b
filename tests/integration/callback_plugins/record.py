# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Writes what every task did on every host to the file $OFFHEAP_RECORD, for the tests to look at."""

from __future__ import annotations

import json
import os
from typing import Any

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
name: record
type: aggregate
short_description: Records results of tasks as lines of JSON
description:
  - Writes one line of JSON per task and host, and one with the recap, to the file that C(OFFHEAP_RECORD) names.
"""


class CallbackModule(CallbackBase):
    """Lines are ``{"play", "role", "task", "action", "host", "status", "result"}`` and, at the end, ``{"stats"}``."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "record"

    def __init__(self) -> None:
        super().__init__()
        self._path = os.environ.get("OFFHEAP_RECORD")
        self._play = ""
        self.disabled = self._path is None

    def v2_playbook_on_play_start(self, play: Any) -> None:
        self._play = play.get_name()

    def v2_runner_on_ok(self, result: Any) -> None:
        self._task("ok", result)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        self._task("ignored" if ignore_errors else "failed", result)

    def v2_runner_on_skipped(self, result: Any) -> None:
        self._task("skipped", result)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        self._task("unreachable", result)

    def v2_playbook_on_stats(self, stats: Any) -> None:
        self._write({"stats": {host: stats.summarize(host) for host in stats.processed}})

    def _task(self, status: str, result: Any) -> None:
        role = result.task._role
        self._write(
            {
                "play": self._play,
                "role": role.get_name() if role else None,
                "task": result.task_name,
                "action": result.task.action,
                "host": result.host.get_name(),
                "status": status,
                "result": result.result,
            }
        )

    def _write(self, record: dict[str, Any]) -> None:
        if self._path is not None:
            with open(self._path, "a", encoding="utf-8") as stream:
                stream.write(json.dumps(record, default=str) + "\n")
