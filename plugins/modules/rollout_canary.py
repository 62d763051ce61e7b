#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of rollout_canary. All of it runs on the controller, in the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: rollout_canary
short_description: Let one of several runs go first, and the others wait until its hosts are well
version_added: 1.0.0
description:
  - For runs of C(ansible-playbook) that share a rollout and nothing but an archive at an address, such as the slices of
    an AWX job. The play keyword C(serial) orders the hosts of one run only.
  - The first run that comes with hosts goes on at once. All others wait until that run has told the O(outcome). They
    fail if it is V(broken), or if they have waited for O(timeout) seconds, for example because that run was killed.
  - Writes two small files below C(rollouts/) in the archive. Each is created once, only where there is none.
  - Runs on the controller and connects to no host.
author:
  - Offheap contributors (@offheap)
extends_documentation_fragment:
  - offheap.profiler.attributes
  - offheap.profiler.attributes.controller
attributes:
  check_mode:
    support: full
    details: Writes nothing and waits for nobody.
  diff_mode:
    support: none
  idempotent:
    support: full
requirements:
  - fsspec (Python library, on the controller), with the library for the address
options:
  archive:
    description: Address of the archive, such as C(s3://bucket/offheap). It is created if missing.
    type: str
    required: true
  rollout:
    description:
      - A name that all runs of this rollout have, and no other rollout has ever had.
      - A name whose canary began more than a day ago is refused.
    type: str
    required: true
  hosts:
    description: The hosts that would go first. A run without any neither goes first nor waits.
    type: list
    elements: str
    required: true
  outcome:
    description: How the canary is, from the run that went first. What was told first stays.
    type: str
    choices: [well, broken]
  timeout:
    description: How long to wait, in seconds.
    type: int
    default: 1800
seealso:
  - module: offheap.profiler.unit_enable
"""

EXAMPLES = r"""
- name: Go first, or wait
  offheap.profiler.rollout_canary:
    archive: s3://profiles/offheap
    rollout: frontend-2027-01-14
    hosts: "{{ ansible_play_batch }}"
  register: canary
  run_once: true

- name: Tell the other runs
  offheap.profiler.rollout_canary:
    archive: s3://profiles/offheap
    rollout: frontend-2027-01-14
    hosts: "{{ canary.hosts }}"
    outcome: "{{ 'broken' if canary.hosts | difference(ansible_play_batch) else 'well' }}"
  run_once: true
  when: canary.first
"""

RETURN = r"""
first:
  description: Whether O(hosts) are the canary, so that this run has to tell the outcome.
  returned: success
  type: bool
hosts:
  description: What O(hosts) is.
  returned: success
  type: list
  elements: str
"""
