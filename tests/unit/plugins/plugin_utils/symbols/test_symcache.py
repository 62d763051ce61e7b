# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

import multiprocessing
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.symbols import symcache
from ansible_collections.offheap.profiler.plugins.plugin_utils.symbols.elf_image import ElfImage, SymbolError


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("image")
    (directory / "program.c").write_text("int main(void) { return 0; }\n")
    subprocess.run(["gcc", "-g", "-o", directory / "program", directory / "program.c"], check=True)
    return directory / "program"


def _open(image: Path, directory: Path, start: Any, made: Any) -> None:
    """One of many processes that want the same symcache at the same time."""
    make = symcache.make

    def counted(*arguments: Any) -> None:
        with made.get_lock():
            made.value += 1
        make(*arguments)

    symcache.make = counted  # type: ignore[assignment]
    start.wait()
    assert symcache.found_or_made(ElfImage(image).build_id or "", "", image, directory, 0).stat().st_size


def test_processes_that_want_one_at_once_make_it_once(image: Path, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    start, made = context.Barrier(6), context.Value("i", 0)
    processes = [context.Process(target=_open, args=(image, tmp_path / "new", start, made)) for _number in range(6)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 6
    assert made.value == 1
    assert len(list((tmp_path / "new").iterdir())) == 1


def test_what_cannot_be_made_leaves_nothing(image: Path, tmp_path: Path) -> None:
    with pytest.raises(SymbolError, match="another build-id"):
        symcache.found_or_made("00" * 20, "", image, tmp_path, 0)
    assert list(tmp_path.iterdir()) == []
