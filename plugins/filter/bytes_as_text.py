# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Filter: a size in bytes, for people."""

from __future__ import annotations

DOCUMENTATION = r"""
name: bytes_as_text
short_description: Write a number of bytes with a binary unit
version_added: 0.1.0
author:
  - Offheap contributors (@offheap)
description:
  - Writes bytes as the reports of this collection do, with one decimal and a unit that is a power of 1024.
positional: _input
options:
  _input:
    description: Number of bytes. May be negative, for a difference.
    type: float
    required: true
"""

EXAMPLES = r"""
- name: Say how much leaks
  ansible.builtin.debug:
    msg: "{{ 62914560 | offheap.profiler.bytes_as_text }} per day"  # 60.0 MiB per day
"""

RETURN = r"""
_value:
  description: The size as readable text.
  type: string
  sample: 60.0 MiB
"""

from collections.abc import Callable
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.offheap.profiler.plugins.plugin_utils.base import byte_size


def bytes_as_text(size: Any) -> str:
    """62914560 as ``60.0 MiB``."""
    if isinstance(size, bool) or not isinstance(size, (int, float)):
        raise AnsibleFilterError(f"bytes_as_text needs a number, not {type(size).__name__}")
    return byte_size.as_text(size)


class FilterModule:
    """The class that Ansible looks for in a file of filters."""

    def filters(self) -> dict[str, Callable[[Any], Any]]:
        """The filter by its name."""
        return {"bytes_as_text": bytes_as_text}
