# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Make a tree what is published: with full addresses in README.md, which Galaxy shows alone, and in galaxy.yml.

python -m ansible_collections.offheap.profiler.tests.gates.published TREE [--release]

All of them begin with ``repository`` in galaxy.yml, the only place that has it. ``--release`` refuses the name that
stands there as long as there is no public place.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from urllib.parse import urlsplit

import yaml

_LINK = re.compile(r"(!?)(\[[^\]]*\])\((?![a-z]+:|#)([^)\s]+)\)")


def full_links(text: str, repository: str, version: str) -> str:
    """Markdown whose links to files of ours are addresses of this version in the repository."""

    def full(found: re.Match[str]) -> str:
        image, words, path = found.groups()
        return f"{image}{words}({repository}/{'raw' if image else 'blob'}/{version}/{path})"

    return _LINK.sub(full, text)


def publish(tree: Path, release: bool) -> None:
    """Rewrite the two files in ``tree``. Raises SystemExit for a release without a public place."""
    readme, galaxy = tree / "README.md", tree / "galaxy.yml"
    text = galaxy.read_text(encoding="utf-8")
    ours = yaml.safe_load(text)
    repository, version = ours["repository"].rstrip("/"), ours["version"]
    if release and (urlsplit(repository).hostname or "").endswith(".invalid"):
        raise SystemExit(
            f"galaxy.yml: the repository is {repository}, which nobody can reach. A release needs a public one: "
            "every other address is made from it."
        )
    readme.write_text(full_links(readme.read_text(encoding="utf-8"), repository, version), encoding="utf-8")
    places = {
        "documentation": f"{repository}/blob/{version}/docs/guide_hunt.md",
        "homepage": repository,
        "issues": f"{repository}/issues",
    }
    galaxy.write_text(text + yaml.safe_dump(places), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("tree", type=Path)
    parser.add_argument("--release", action="store_true")
    given = parser.parse_args()
    publish(given.tree, given.release)
