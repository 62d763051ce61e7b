# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Lists and mappings that somebody has written as one text, as in a survey of AWX or after ``-e name=``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from . import libraries
from .errors import ControllerError

if TYPE_CHECKING:
    import yaml
else:
    yaml = libraries.optional("yaml")


class WrittenValueError(ControllerError):
    """A text is neither what is wanted nor YAML that says it."""


def as_list(value: object) -> list[Any]:
    """Words, separated by commas or white space, or a list or mapping in YAML or JSON. An empty text is an empty list;
    what is no text is put into a list unless it is one. Raises WrittenValueError."""
    if isinstance(value, str):
        if not re.match(r"\s*(-\s|\[|\{)", value):
            return re.findall(r"[^\s,]+", value)
        value = _parsed(value)
    if value is None:
        return []
    return [*value] if isinstance(value, (list, tuple)) else [value]


def as_mapping(value: object) -> dict[str, Any]:
    """A mapping in YAML or JSON, or ``name=value`` in words. An empty text is an empty mapping. Raises
    WrittenValueError."""
    if isinstance(value, str):
        words = as_list(value)
        if words and all(isinstance(word, str) and "=" in word for word in words):
            return {name: said for name, _equals, said in (word.partition("=") for word in words)}
        value = _parsed(value)
    if value is not None and not isinstance(value, Mapping):
        raise WrittenValueError(f"{str(value)[:100]!r} is no mapping: write lines such as 'name: value'")
    return {**(value or {})}


def _parsed(text: str) -> Any:
    libraries.require("yaml")
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:  # a date that is none
        raise WrittenValueError(f"{text[:100]!r} is no YAML: {' '.join(str(error).split())}") from error
