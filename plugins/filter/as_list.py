# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Filter: a list, also where somebody has written it as one text."""

from __future__ import annotations

DOCUMENTATION = r"""
name: as_list
short_description: Take a list, also from a text
version_added: 1.0.0
author:
  - Offheap contributors (@offheap)
description:
  - Surveys of AWX, and C(-e name=value), give texts only. This takes a text for a list.
  - What is a list already stays as it is.
positional: _input
options:
  _input:
    description: Words, separated by commas or white space, or YAML or JSON. An empty text is an empty list.
    type: raw
    required: true
"""

EXAMPLES = r"""
- name: Report on the units that a survey has asked for, one in a line
  offheap.profiler.leak_report:
    archive: s3://profiles/offheap
    units: "{{ units | offheap.profiler.as_list }}"
"""

RETURN = r"""
_value:
  description: The list.
  type: list
  elements: raw
"""

from collections.abc import Callable
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.offheap.profiler.plugins.plugin_utils.base import written_value
from ansible_collections.offheap.profiler.plugins.plugin_utils.base.errors import ControllerError


def as_list(value: Any) -> list[Any]:
    """``a, b`` as ``['a', 'b']``."""
    try:
        return written_value.as_list(value)
    except ControllerError as error:
        raise AnsibleFilterError(f"as_list: {error}") from error


class FilterModule:
    """The class that Ansible looks for in a file of filters."""

    def filters(self) -> dict[str, Callable[[Any], Any]]:
        """The filter by its name."""
        return {"as_list": as_list}
