# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Filter: a mapping, also where somebody has written it as one text."""

from __future__ import annotations

DOCUMENTATION = r"""
name: as_mapping
short_description: Take a mapping, also from a text
version_added: 1.0.0
author:
  - Offheap contributors (@offheap)
description:
  - Surveys of AWX, and C(-e name=value), give texts only. This takes a text for a mapping.
  - What is a mapping already stays as it is.
positional: _input
options:
  _input:
    description: YAML or JSON, or words such as V(name=value). An empty text is an empty mapping.
    type: raw
    required: true
"""

EXAMPLES = r"""
- name: Add what a survey has asked for to our own options
  ansible.builtin.set_fact:
    malloc_conf: "{{ {'lg_prof_sample': 19} | combine(options | offheap.profiler.as_mapping) }}"
"""

RETURN = r"""
_value:
  description: The mapping.
  type: dict
"""

from collections.abc import Callable
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.offheap.profiler.plugins.plugin_utils.base import written_value
from ansible_collections.offheap.profiler.plugins.plugin_utils.base.errors import ControllerError


def as_mapping(value: Any) -> dict[str, Any]:
    """``a=1 b=2`` as ``{'a': '1', 'b': '2'}``."""
    try:
        return written_value.as_mapping(value)
    except ControllerError as error:
        raise AnsibleFilterError(f"as_mapping: {error}") from error


class FilterModule:
    """The class that Ansible looks for in a file of filters."""

    def filters(self) -> dict[str, Callable[[Any], Any]]:
        """The filter by its name."""
        return {"as_mapping": as_mapping}
