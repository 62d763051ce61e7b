# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The third-party Python libraries that the controller uses, and the error if some are missing.

Modules can be imported without them, as ansible-doc and the sanity tests require. Only using one fails.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from typing import Any, NoReturn

from .errors import ControllerError

#: import name -> pip's name; meta/ee-requirements.txt has the versions
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
#: needed to read and symbolize a dump
DUMPS = ("numpy", "pydemumble", "symbolic", "zstandard")
#: needed to judge an archive
JUDGING = (*DUMPS, "pyarrow")


class MissingLibraryError(ControllerError):
    """Libraries are not installed. The message names all of them and the command that installs them."""

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
    """The library or, if it is missing, an object that raises MissingLibraryError when used."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return _Missing(name)


def require(*names: str) -> None:
    """Raises one MissingLibraryError that names all missing libraries."""
    missing = [name for name in names if isinstance(optional(name), _Missing)]
    if missing:
        raise MissingLibraryError(missing)
