# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The third-party Python libraries that the controller uses, and the error if some are missing.

Modules can be imported without them, as ansible-doc and the sanity tests require. Only using one fails.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .errors import ControllerError

# numpy's OpenBLAS would start a thread for each processor, and these spin a while. Nothing here multiplies matrices.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# A thousand captures take as long with Arrow's own pools, and 20 MB more (tests/bench/archive.py).
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")

_REQUIREMENTS = Path(__file__).parents[3] / "meta" / "ee-requirements.txt"

#: import name -> pip's name; meta/ee-requirements.txt has the versions, but of what Ansible brings along, Dask and gRPC
PACKAGES = {
    "deltalake": "deltalake",
    "distributed": "distributed",
    "fsspec": "fsspec",
    "google.protobuf": "protobuf",
    "grpc": "grpcio",
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
DUMPS = ("numpy", "zstandard", "symbolic", "pydemumble")
#: needed to judge an archive
JUDGING = (*DUMPS, "pyarrow")


class MissingLibraryError(ControllerError):
    """Libraries are not installed. The message names all of them, and the command that installs them with all others of
    the requirements: the next step will want these."""

    def __init__(self, names: Iterable[str]) -> None:
        packages = list(dict.fromkeys(PACKAGES[name] for name in names))
        listed = _REQUIREMENTS.read_text() if _REQUIREMENTS.is_file() else ""
        others = [name for name in packages if f"\n{name}>" not in listed]
        wanted = [*(["-r", shlex.quote(str(_REQUIREMENTS))] if others != packages else []), *others]
        super().__init__(
            f"Python libraries are missing on the controller: {' '.join(packages)}. Install all that it needs with: "
            f"{sys.executable or 'python3'} -m pip install {' '.join(wanted)}"
        )


class _Library:
    """Stands for a library until it is used, which imports it: what a run does not use takes no time."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        try:
            value = getattr(importlib.import_module(self._name), attribute)
        except ImportError:
            raise MissingLibraryError([self._name]) from None
        self.__dict__[attribute] = value  # the next time it is found here
        return value


def optional(name: str) -> Any:
    """The library, imported when it is first used. If it is missing, that raises MissingLibraryError."""
    return _Library(name)


def load(*names: str) -> None:
    """Import these modules now, those that are there: where another process is waited for anyway."""
    for name in names:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def require(*names: str) -> None:
    """Raises one MissingLibraryError that names all missing libraries."""
    missing = [name for name in names if not _is_there(name)]
    if missing:
        raise MissingLibraryError(missing)


def _is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:  # what it is part of is missing
        return False
