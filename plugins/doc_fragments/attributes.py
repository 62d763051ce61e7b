# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What the attributes mean, for all modules. A module only states how far it supports each."""

from __future__ import annotations


class ModuleDocFragment:
    """Used as ``extends_documentation_fragment: [offheap.profiler.attributes]``."""

    DOCUMENTATION = r"""
options: {}
attributes:
  check_mode:
    description: Can run in C(check_mode) and return changed status prediction without modifying target.
  diff_mode:
    description: Returns what has changed, or would change in C(check_mode), when in diff mode.
  idempotent:
    description:
      - When run twice in a row outside check mode, with the same arguments, the second invocation indicates no change.
      - This assumes that the system controlled or queried by the module has not changed in a relevant way.
  platform:
    description: Target OS families that can be operated against.
"""

    # For action plugins, which run (partly) on the controller.
    ACTION = r"""
options: {}
attributes:
  action:
    description: Has a corresponding action plugin, so that parts of it run on the controller.
  async:
    description: Supports being used with the C(async) keyword.
"""

    # Modules of which all runs on the controller, without a connection.
    CONTROLLER = r"""
options: {}
attributes:
  action:
    description: Has a corresponding action plugin, so that parts of it run on the controller.
    support: full
    details: All of it runs on the controller.
  async:
    description: Supports being used with the C(async) keyword.
    support: none
  platform:
    description: Target OS families that can be operated against.
    support: full
    platforms: posix
"""
