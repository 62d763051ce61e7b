# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The options by which users say what a file does not say itself; the playbook's modules and the console share them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..base import byte_size
from ..base.errors import ControllerError
from ..model.raw import Told
from ..model.sampling import Measure


class ToldError(ControllerError):
    """What the user says of a dump cannot be understood."""


#: for the argument spec of an action
ARGUMENTS: dict[str, dict[str, Any]] = {
    "source_measure": {"type": "str", "choices": [one.value for one in Measure if one is not Measure.LARGEST]},
    "source_unit": {"type": "str", "choices": ["bytes", "objects"]},
    "source_interval": {"type": "str", "default": "0"},
}


def told(arguments: Mapping[str, Any]) -> Told:
    """What such options say. Raises ByteSizeError."""
    measure = arguments["source_measure"]
    interval = byte_size.parse(arguments["source_interval"])
    return Told(Measure(measure) if measure else None, arguments["source_unit"] or "", interval)


def told_in_short(text: str) -> Told:
    """The same from ``live:bytes:512KiB``, where every part may be missing. Raises ToldError, ByteSizeError."""
    parts = [*text.split(":"), "", "", ""]
    if any(parts[3:]):
        raise ToldError(f"{text!r} is not in the form measure:unit:interval, such as live:bytes:512KiB")
    arguments = dict(zip(ARGUMENTS, (parts[0], parts[1], parts[2] or "0"), strict=True))
    for name, value in arguments.items():
        choices = ARGUMENTS[name].get("choices")
        if value and choices and value not in choices:
            raise ToldError(f"{value!r} is not one of {', '.join(choices)}")
    return told(arguments)
