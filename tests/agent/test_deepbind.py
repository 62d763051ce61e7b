# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Libraries that are opened with RTLD_DEEPBIND, as PHP opens its extensions, share the allocator of all others."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.tests.agent.conftest import COMPILER, EMULATED, PROGRAMS, compiled
from ansible_collections.offheap.profiler.tests.agent.service import Service

Start = Callable[..., Service]
# The library is found only where the program says, and only if dlopen knows that it is the program that asks.
_SEARCH = "-Wl,-rpath,$ORIGIN"


def _library(name: str, *options: str) -> Path:
    return compiled(f"lib{name}.so", [PROGRAMS / f"{name}.c"], "-shared", "-fPIC", *options, compiler=COMPILER)


@pytest.fixture(scope="module")
def opener() -> Path:
    _library("deepbind_library")
    return compiled("deepbind", [PROGRAMS / "deepbind.c"], "-rdynamic", _SEARCH, compiler=COMPILER)


@pytest.fixture(scope="module")
def early_opener() -> Path:
    """The same, with a library that opens another one before any constructor of what is preloaded."""
    _library("deepbind_library")
    early = _library("deepbind_early", _SEARCH)
    options = ("-rdynamic", _SEARCH, "-Wl,--no-as-needed", str(early))
    return compiled("deepbind_with_early", [PROGRAMS / "deepbind.c"], *options, compiler=COMPILER)


def test_without_the_agent_the_process_dies(start: Start, opener: Path, jemalloc: Path) -> None:
    service = start(opener, "1", preload=[jemalloc])
    assert service.result()[0] in (-signal.SIGABRT, -signal.SIGSEGV)


def test_the_allocator_is_shared(start: Start, opener: Path) -> None:
    service = start(opener, "1")
    assert (service.result(), service.stderr()) == ((0, "program\n"), "")


def test_also_in_a_process_that_is_not_meant(start: Start, opener: Path) -> None:
    """What a service starts has the libraries too."""
    service = start(opener, "1", executable="/another/program")
    assert (service.result(), service.stderr()) == ((0, "program\n"), "")
    assert service.dumps() == []


def test_also_before_the_agents_constructor(start: Start, early_opener: Path) -> None:
    service = start(early_opener, "1")
    assert (service.result(), service.stderr()) == ((0, "before the agent\nprogram\n"), "")


def test_without_jemalloc_the_flag_means_what_it_means(start: Start, opener: Path, library: Path) -> None:
    service = start(opener, "1", preload=[library], executable="/another/program")
    assert (service.result(), service.stderr()) == ((0, "library\n"), "")


@pytest.mark.skipif(EMULATED, reason="the fake is for this machine")
def test_where_the_program_has_another_allocator_it_does_too(
    start: Start, library: Path, fake_jemalloc: Path, opener: Path
) -> None:
    """One that only looks like jemalloc, as there is beside a program with an allocator of its own."""
    service = start(opener, "1", preload=[fake_jemalloc, library], executable="/another/program")
    assert (service.result(), service.stderr()) == ((0, "library\n"), "")
