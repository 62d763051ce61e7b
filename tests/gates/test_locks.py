# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What is installed is what was tried: each requirement, and all that it brings, has one version and its hashes."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ansible_collections.offheap.profiler.tests.gates.files import ROOT
from ansible_collections.offheap.profiler.tests.gates.locked import Locked, asked, locked

FILES = ["meta/ee-requirements", "tests/requirements", "tests/requirements-importer", "tests/requirements-newest"]
AGAIN = "run 'make lock'"


@pytest.fixture(params=FILES)
def pair(request: pytest.FixtureRequest) -> tuple[list[Requirement], list[Locked]]:
    path = ROOT / request.param
    return asked(path.with_suffix(".txt")), locked(path.with_suffix(".lock"))


def test_each_line_has_one_version_and_hashes(pair: tuple[list[Requirement], list[Locked]]) -> None:
    for one in pair[1]:
        assert one.version and one.hashes and not one.requirement.url, f"{one.requirement}: {AGAIN}"


def test_each_requirement_is_locked_to_a_version_that_it_allows(pair: tuple[list[Requirement], list[Locked]]) -> None:
    versions = {one.name: one.version for one in pair[1]}
    wrong = [
        str(requirement)
        for requirement in pair[0]
        if versions.get(canonicalize_name(requirement.name), "") not in requirement.specifier
    ]
    assert not wrong, f"{wrong}: {AGAIN}"


def _brought(requirements: list[Requirement]) -> dict[str, str]:
    """What is installed of these, and of what they require in turn: name and version."""
    found: dict[str, str] = {}
    left = [(requirement, extra) for requirement in requirements for extra in ("", *requirement.extras)]
    while left:
        requirement, extra = left.pop()
        name = canonicalize_name(requirement.name)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        if name not in found:
            found[name] = metadata.version(name)
            needs = [Requirement(line) for line in metadata.requires(name) or ()]
            left += [(need, more) for need in needs for more in ("", *requirement.extras)]
    return found


def test_what_tests_run_with_is_what_is_locked() -> None:
    versions = {one.name: one.version for one in locked(ROOT / "tests/requirements.lock")}
    brought = _brought(asked(ROOT / "tests/requirements.txt"))
    assert len(brought) > 50
    other = {name: version for name, version in brought.items() if versions.get(name) != version}
    assert not other, f"{other}: {AGAIN}"


def test_the_controller_runs_with_what_is_tested() -> None:
    tested = {one.name: one.version for one in locked(ROOT / "tests/requirements.lock")}
    assert {one.name: one.version for one in locked(ROOT / "meta/ee-requirements.lock")}.items() <= tested.items()


@pytest.mark.parametrize(
    "line", ["a>=1 --hash=sha256:" + "0" * 64, "a==1.* --hash=sha256:" + "0" * 64, "a==1 --hash=md5:0", "a==1"]
)
def test_a_lock_that_is_none(tmp_path: Path, line: str) -> None:
    (tmp_path / "x.lock").write_text(line + "\n")
    with pytest.raises((ValueError, AssertionError)):
        test_each_line_has_one_version_and_hashes(([], locked(tmp_path / "x.lock")))
