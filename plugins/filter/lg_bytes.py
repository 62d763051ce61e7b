# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Filter: a size as the exponent that jemalloc's lg_ options take."""

from __future__ import annotations

DOCUMENTATION = r"""
name: lg_bytes
short_description: Convert a size to the exponent that jemalloc's lg options take
version_added: 0.1.0
author:
  - Offheap contributors (@offheap)
description:
  - jemalloc's options whose names begin with C(lg_) take the base 2 logarithm of a size.
  - Fails for a size that is not a power of two.
positional: _input
options:
  _input:
    description: Bytes as a number, or a text such as V(512 KiB) or V(512k). Every unit is a power of 1024.
    type: raw
    required: true
"""

EXAMPLES = r"""
- name: Set options for a service that allocates a lot
  ansible.builtin.set_fact:
    malloc_conf:
      lg_prof_sample: "{{ '512 KiB' | offheap.profiler.lg_bytes }}"  # 19
      lg_prof_interval: "{{ '1 GiB' | offheap.profiler.lg_bytes }}"  # 30
"""

RETURN = r"""
_value:
  description: The exponent.
  type: integer
  sample: 19
"""

from collections.abc import Callable
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.offheap.profiler.plugins.plugin_utils.base import byte_size


def lg_bytes(size: Any) -> int:
    """``512 KiB`` as 19, for jemalloc's options that begin with ``lg_``."""
    if not isinstance(size, (int, str)):
        raise AnsibleFilterError(f"lg_bytes needs a number or a string, not {type(size).__name__}")
    try:
        return byte_size.lg(size)
    except byte_size.ByteSizeError as error:
        raise AnsibleFilterError(f"lg_bytes: {error}") from error


class FilterModule:
    """The class that Ansible looks for in a file of filters."""

    def filters(self) -> dict[str, Callable[[Any], Any]]:
        """The filter by its name."""
        return {"lg_bytes": lg_bytes}
