# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Write what a release consists of and runs with, as CycloneDX 1.6 in JSON (ECMA-424).

python -m ansible_collections.offheap.profiler.tests.gates.sbom TREE    of the collection in this directory

The controller's libraries are those of meta/ee-requirements.lock, which has the hashes of all their files. The same
tree gives the same text.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml

from ansible_collections.offheap.profiler.tests.gates.locked import locked


def purl(kind: str, name: str, version: str) -> str:
    """The address of a package (package-url)."""
    return f"pkg:{kind}/{name}@{version}"


def _library(name: str, version: str, purl: str, **more: Any) -> dict[str, Any]:
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl, **more}


def sbom(tree: Path) -> dict[str, Any]:
    """The bill of materials of the collection in ``tree``."""
    galaxy = yaml.safe_load((tree / "galaxy.yml").read_text(encoding="utf-8"))
    name, version = f"{galaxy['namespace']}.{galaxy['name']}", str(galaxy["version"])
    ours = _library(
        name, version, purl("generic", name, version), licenses=[{"license": {"id": id_}} for id_ in galaxy["license"]]
    )
    parts = [
        _library(one.name, one.version, purl("pypi", one.name, one.version))
        for one in locked(tree / "meta" / "ee-requirements.lock")
    ]
    checksums = yaml.safe_load((tree / "roles/jemalloc/vars/main.yml").read_text(encoding="utf-8"))
    parts += [
        _library(
            "jemalloc",
            release,
            purl("github", "jemalloc/jemalloc", release),
            hashes=[{"alg": "SHA-256", "content": checksum}],
            description="source that the role jemalloc builds",
        )
        for release, checksum in checksums["_jemalloc_checksums"].items()
    ]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": ours},
        "components": sorted(parts, key=lambda part: str(part["bom-ref"])),
        "dependencies": [{"ref": ours["bom-ref"], "dependsOn": sorted(str(part["bom-ref"]) for part in parts)}],
    }


if __name__ == "__main__":
    print(json.dumps(sbom(Path(sys.argv[1])), indent=2, sort_keys=True))
