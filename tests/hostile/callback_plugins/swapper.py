# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Somebody who waits for the moment after a file was looked at, and puts another one in its place."""

from __future__ import annotations

import json
import os
import shutil
from typing import Any

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
name: swapper
type: aggregate
short_description: Replaces a file after a task
description:
  - C(OFFHEAP_SWAP) is a JSON list of a part of a task's name, the file to replace, and the one to replace it by.
"""


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "swapper"

    def v2_runner_on_ok(self, result: Any) -> None:
        task, replaced, other = json.loads(os.environ["OFFHEAP_SWAP"])
        if task in result.task.get_name():
            shutil.copyfile(other, replaced)
