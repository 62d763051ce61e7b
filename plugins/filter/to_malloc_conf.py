# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Filter: a mapping as MALLOC_CONF."""

from __future__ import annotations

DOCUMENTATION = r"""
name: to_malloc_conf
short_description: Write a dictionary as jemalloc's MALLOC_CONF
version_added: 0.1.0
author:
  - Offheap contributors (@offheap)
description:
  - Writes options in the form that jemalloc takes from the environment variable E(MALLOC_CONF).
  - Fails for a value that E(MALLOC_CONF) cannot express, such as one with a comma.
positional: _input
options:
  _input:
    description: jemalloc's options by name. Booleans become V(true) and V(false).
    type: dictionary
    required: true
seealso:
  - plugin: offheap.profiler.from_malloc_conf
    plugin_type: filter
"""

EXAMPLES = r"""
- name: Show the environment that a service would start with
  ansible.builtin.debug:
    msg: "MALLOC_CONF={{ {'prof': true, 'lg_prof_sample': 19} | offheap.profiler.to_malloc_conf }}"
    # MALLOC_CONF=prof:true,lg_prof_sample:19
"""

RETURN = r"""
_value:
  description: Pairs C(name:value), joined by commas.
  type: string
  sample: prof:true,lg_prof_sample:19
"""

from collections.abc import Callable
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.offheap.profiler.plugins.module_utils.formats import malloc_conf


def to_malloc_conf(options: Any) -> str:
    """A mapping as ``prof:true,lg_prof_sample:19``."""
    if not isinstance(options, dict):
        raise AnsibleFilterError(f"to_malloc_conf needs a mapping, not {type(options).__name__}")
    try:
        return malloc_conf.render(options)
    except malloc_conf.MallocConfError as error:
        raise AnsibleFilterError(f"to_malloc_conf: {error}") from error


class FilterModule:
    """The class that Ansible looks for in a file of filters."""

    def filters(self) -> dict[str, Callable[[Any], Any]]:
        """The filter by its name."""
        return {"to_malloc_conf": to_malloc_conf}
