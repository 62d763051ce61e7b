# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Filter: MALLOC_CONF as a mapping."""

from __future__ import annotations

DOCUMENTATION = r"""
name: from_malloc_conf
short_description: Read jemalloc's MALLOC_CONF into a dictionary
version_added: 0.1.0
author:
  - Offheap contributors (@offheap)
description:
  - Reads the text that jemalloc takes from the environment variable E(MALLOC_CONF).
  - If an option has several values, the last one wins, as in jemalloc. Values stay strings.
positional: _input
options:
  _input:
    description: Pairs C(name:value), joined by commas.
    type: string
    required: true
seealso:
  - plugin: offheap.profiler.to_malloc_conf
    plugin_type: filter
"""

EXAMPLES = r"""
- name: Show how often this service samples
  ansible.builtin.debug:
    msg: "{{ ('prof:true,lg_prof_sample:19' | offheap.profiler.from_malloc_conf).lg_prof_sample }}"  # 19
"""

RETURN = r"""
_value:
  description: The options by name.
  type: dictionary
  sample:
    prof: "true"
    lg_prof_sample: "19"
"""

from collections.abc import Callable
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.offheap.profiler.plugins.module_utils.formats import malloc_conf


def from_malloc_conf(text: Any) -> dict[str, str]:
    """``prof:true,lg_prof_sample:19`` as a mapping. Values stay text, as jemalloc reads them."""
    if not isinstance(text, str):
        raise AnsibleFilterError(f"from_malloc_conf needs a string, not {type(text).__name__}")
    try:
        return malloc_conf.parse(text)
    except malloc_conf.MallocConfError as error:
        raise AnsibleFilterError(f"from_malloc_conf: {error}") from error


class FilterModule:
    """The class that Ansible looks for in a file of filters."""

    def filters(self) -> dict[str, Callable[[Any], Any]]:
        """The filter by its name."""
        return {"from_malloc_conf": from_malloc_conf}
