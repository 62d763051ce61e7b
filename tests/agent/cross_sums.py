# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The SHA-256 of what the controller builds for other hosts, which the role carries.

cross_sums.py [agent | library]    builds both or that one, and writes roles/jemalloc/files/cross_checksums.json
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / ".cache" / "collections"))

from ansible_collections.offheap.profiler.roles.jemalloc.files import reproduce
from ansible_collections.offheap.profiler.tests.lab.nspawnlab import aptsource
from ansible_collections.offheap.profiler.tests.lab.nspawnlab.settings import Settings


def release() -> Path:
    """The release of jemalloc, from Debian's archive."""
    return aptsource.fetch_jemalloc(Settings.from_environment())


def patched_source(directory: Path, applied: Sequence[Path] | None = None) -> Path:
    """The release with our patches, or with these of them, as a tarball."""
    return reproduce.patched(release(), directory, applied)


def main(parts: list[str]) -> None:
    stems = {"library": reproduce.library_stem(), "agent": reproduce.agent_stem()}
    replaced = tuple(stems[part].partition("-")[0] for part in parts)
    carried = json.loads(reproduce.CARRIED.read_text())
    sums = {name: value for name, value in carried.items() if not name.startswith(replaced)}
    with tempfile.TemporaryDirectory() as scratch:
        for part in parts:
            source = patched_source(Path(scratch)) if part == "library" else reproduce.AGENT
            for platform in reproduce.TARGETS:
                built = reproduce.built(part, platform, source, Path(scratch))
                sums[f"{stems[part]}-{platform}"] = reproduce.sum_of(built)
                print(f"{stems[part]}-{platform}", flush=True)
    reproduce.CARRIED.write_text(json.dumps(sums, indent=4, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:] or ["library", "agent"])
