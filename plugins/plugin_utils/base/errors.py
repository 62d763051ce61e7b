# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The base of the controller's errors. Catchers name OffheapError: what both ends read raises that, too."""

from __future__ import annotations

from ...module_utils.formats.errors import OffheapError


class ControllerError(OffheapError):
    """The controller cannot do what was asked for."""
