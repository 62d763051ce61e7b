# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""An image is rebuilt exactly when its recipe changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.tests.lab.nspawnlab.images import BUILDER, KERNEL, SUITES, Recipe, image_path
from ansible_collections.offheap.profiler.tests.lab.nspawnlab.settings import LabError, Settings


def test_digest_is_stable_and_tells_recipes_apart() -> None:
    recipe = Recipe.of("trixie")
    assert recipe.digest == Recipe.of("trixie").digest
    others = [
        replace(recipe, packages=(*recipe.packages, "gcc")),
        replace(recipe, customize=recipe.customize + "\n"),
        replace(recipe, left_out=()),
        Recipe.of("bookworm"),
    ]
    assert len({recipe.digest, *(other.digest for other in others)}) == 5


def test_only_the_builder_has_a_compiler() -> None:
    assert [suite for suite in SUITES if "gcc" in Recipe.of(suite).packages] == [BUILDER]


def test_a_host_with_a_kernel_is_asked_for_by_name() -> None:
    assert KERNEL not in SUITES
    recipe = Recipe.of(KERNEL)
    assert recipe.release == "trixie"
    assert any(package.startswith("linux-image") for package in recipe.packages)


def test_image_path_names_suite_and_recipe() -> None:
    path = image_path(Settings("offheap", Path("/lab"), "10.77.0"), "bullseye")
    assert path == Path("/lab/images") / f"bullseye-{Recipe.of('bullseye').digest}"


def test_unknown_suite() -> None:
    with pytest.raises(LabError, match="unknown suite 'buster'"):
        Recipe.of("buster")
