# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Write what the builds with a checksum in this collection are made of, as provenance of SLSA 1.0 (in-toto, JSON).

python -m ansible_collections.offheap.profiler.tests.gates.provenance    of the collection that this file lies in

No one place builds them: each controller does, and refuses what has another checksum. The compiler has a digest for
each platform that it runs on. The same tree gives the same text.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ansible_collections.offheap.profiler.roles.jemalloc.files import cross_build, reproduce
from ansible_collections.offheap.profiler.tests.gates.locked import locked
from ansible_collections.offheap.profiler.tests.gates.sbom import purl

_TREE = reproduce.ROLE.parents[1]


def provenance() -> list[dict[str, Any]]:
    """A statement for the agent and one for the library."""
    carried: dict[str, str] = json.loads(reproduce.CARRIED.read_text())
    release = {
        "uri": purl("github", "jemalloc/jemalloc", reproduce.VERSION),
        "digest": {"sha256": reproduce.RELEASE},
    }
    options = {name: reproduce.DEFAULTS[name] for name in ("jemalloc_configure_options", "jemalloc_cflags")}
    return [
        _statement(reproduce.agent_stem(), carried, {}, [_file(path) for path in reproduce.agent_sources()]),
        _statement(
            reproduce.library_stem(), carried, options, [release, *(_file(path) for path in reproduce.patches())]
        ),
    ]


def _statement(
    stem: str, carried: dict[str, str], parameters: dict[str, Any], sources: list[dict[str, Any]]
) -> dict[str, Any]:
    made = {name: checksum for name, checksum in sorted(carried.items()) if name.startswith(f"{stem}-")}
    targets = {name: reproduce.TARGETS[name.removeprefix(f"{stem}-")] for name in made}
    (compiler,) = [one for one in locked(_TREE / "meta" / "ee-requirements.lock") if one.name == "ziglang"]
    assert compiler.version == cross_build.COMPILER
    uri = purl("pypi", compiler.name, compiler.version)
    compilers = [{"uri": uri, "digest": {"sha256": checksum.partition(":")[2]}} for checksum in sorted(compiler.hashes)]
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {"sha256": checksum}} for name, checksum in made.items()],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "tag:offheap.profiler,2026:roles/jemalloc/files/cross_build.py",
                "externalParameters": {"targets": targets, **parameters},
                "resolvedDependencies": [_file(reproduce.BUILDER), *compilers, *sources],
            },
            "runDetails": {"builder": {"id": "tag:offheap.profiler,2026:controller"}},
        },
    }


def _file(path: Path) -> dict[str, Any]:
    """A file of the collection."""
    return {"name": path.relative_to(_TREE).as_posix(), "digest": {"sha256": reproduce.sha256(path)}}


if __name__ == "__main__":
    print(json.dumps(provenance(), indent=2, sort_keys=True))
