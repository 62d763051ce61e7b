# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Filter: variables whose names are almost those of this collection."""

from __future__ import annotations

DOCUMENTATION = r"""
name: misspelt
short_description: Find variables whose names are almost those of this collection
version_added: 1.1.0
author:
  - Offheap contributors (@offheap)
description:
  - Ansible says nothing about a variable that no playbook reads. This finds those that look like one of ours.
positional: _input
options:
  _input:
    description: Names of variables, as P(ansible.builtin.varnames#lookup) gives them.
    type: list
    elements: str
    required: true
"""

EXAMPLES = r"""
- name: Refuse a variable that nobody reads
  ansible.builtin.assert:
    that: misspelt | length == 0
    fail_msg: "{{ misspelt | join('. ') }}"
  vars:
    misspelt: "{{ query('ansible.builtin.varnames', '^[^_]') | offheap.profiler.misspelt }}"
"""

RETURN = r"""
_value:
  description: A sentence for each of them, with the name that was probably meant.
  type: list
  elements: str
  sample: ["offheap_unit is no variable of these playbooks: did you mean offheap_units?"]
"""

import difflib
import re
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

# Every variable of the playbooks and roles has a row there.
_PAGE = Path(__file__).resolve().parents[2] / "docs" / "variables.md"
_OURS = re.compile(r"(?:offheap|jemalloc|profiled_service|heap_collect|triage|rollback)_\w+")
# offheap_unit for offheap_units is 0.96; one's own offheap_team is 0.72 of offheap_cache.
_ALIKE = 0.9


@cache
def _known() -> tuple[str, ...]:
    rows = [line.split("|")[1] for line in _PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    return tuple(_OURS.findall(" ".join(rows)))


def misspelt(names: Iterable[str]) -> list[str]:
    """``offheap_unit`` as ``offheap_unit is no variable of these playbooks: did you mean offheap_units?``."""
    found = []
    for name in sorted(set(names) - set(_known())):
        meant = difflib.get_close_matches(name, _known(), 1, _ALIKE)
        if meant:
            found.append(f"{name} is no variable of these playbooks: did you mean {meant[0]}?")
    return found


class FilterModule:
    """The class that Ansible looks for in a file of filters."""

    def filters(self) -> dict[str, Callable[[Iterable[str]], list[str]]]:
        """The filter by its name."""
        return {"misspelt": misspelt}
