# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The base of the controller's errors. Catch OffheapError instead: code shared with the target raises that, too."""

from __future__ import annotations

from ...module_utils.formats.errors import OffheapError


class ControllerError(OffheapError):
    """The controller cannot do what was asked for."""
