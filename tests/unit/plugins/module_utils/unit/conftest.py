# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A service's program, and a library to preload into it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.tests.unit.fakes import programs


@pytest.fixture(scope="module")
def dynamic(directory: Path) -> Path:
    return programs.compiled(directory, "dynamic")


@pytest.fixture(scope="module")
def library(directory: Path) -> Path:
    return programs.library(directory, "libours.so")
