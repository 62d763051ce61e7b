# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The Python libraries of others that the controller uses, and what is said where some of them are missing.

A module is importable without them, as ansible-doc and the sanity tests need it. Only what uses one notices.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from typing import Any, NoReturn

from .errors import ControllerError

#: import name -> what pip calls it; meta/ee-requirements.txt has the versions
PACKAGES = {
    "fsspec": "fsspec",
    "google.protobuf": "protobuf",
    "jinja2": "Jinja2",
    "numpy": "numpy",
    "prometheus_client": "prometheus-client",
    "pyarrow": "pyarrow",
    "pyarrow.parquet": "pyarrow",
    "pydemumble": "pydemumble",
    "symbolic": "symbolic",
    "urllib3": "urllib3",
    "yaml": "PyYAML",
    "zstandard": "zstandard",
}
#: what reading and naming a dump takes
DUMPS = ("numpy", "pydemumble", "symbolic", "zstandard")
#: what judging an archive takes
JUDGING = (*DUMPS, "pyarrow")


class MissingLibraryError(ControllerError):
    """Libraries are not installed. The message names all of them and the line that installs them."""

    def __init__(self, names: Iterable[str]) -> None:
        packages = " ".join(dict.fromkeys(PACKAGES[name] for name in names))
        super().__init__(
            f"Python libraries are missing on the controller: {packages}. Install them with: "
            f"{sys.executable or 'python3'} -m pip install {packages}"
        )


class _Missing:
    """Stands for a library that is not installed."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> NoReturn:
        raise MissingLibraryError([self._name])


def optional(name: str) -> Any:
    """The library, or where it is missing something that raises MissingLibraryError when it is used."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return _Missing(name)


def require(*names: str) -> None:
    """Raises MissingLibraryError, which names all that are missing at once."""
    missing = [name for name in names if isinstance(optional(name), _Missing)]
    if missing:
        raise MissingLibraryError(missing)
