# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The SHA-256 of what the controller builds for other hosts, which the role carries.

cross_sums.py [agent | library]    builds both or that one, and writes roles/jemalloc/files/cross_checksums.json
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / ".cache" / "collections"))

from ansible_collections.offheap.profiler.tests.lab.nspawnlab import aptsource
from ansible_collections.offheap.profiler.tests.lab.nspawnlab.settings import Settings

ROLE = ROOT / "roles" / "jemalloc"
CARRIED = ROLE / "files" / "cross_checksums.json"
BUILDER = ROLE / "files" / "cross_build.py"
DEFAULTS = yaml.safe_load((ROLE / "defaults" / "main.yml").read_text())
VARIABLES = yaml.safe_load((ROLE / "vars" / "main.yml").read_text())
TARGETS: dict[str, str] = VARIABLES["_jemalloc_cross_targets"]
VERSION: str = DEFAULTS["jemalloc_version"]


def agent_stem() -> str:
    """As tasks/agent.yml names it, after its sources."""
    texts = [path.read_text().rstrip() for path in sorted((ROLE / "files" / "agent").iterdir()) if path.is_file()]
    return f"agent-{hashlib.sha256(''.join(texts).encode()).hexdigest()[:12]}"


def library_stem() -> str:
    """As vars/main.yml names it, after what makes it what it is."""
    parts = [VARIABLES["_jemalloc_checksums"][VERSION], DEFAULTS["jemalloc_cflags"]]
    parts += DEFAULTS["jemalloc_configure_options"]
    parts += [f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}" for path in patches()]
    return f"jemalloc-{VERSION}-{hashlib.sha256(' '.join(parts).encode()).hexdigest()[:8]}"


def patches() -> list[Path]:
    """Ours, in the order in which they are applied."""
    return sorted((ROLE / "files" / "patches" / VERSION).glob("*.patch"))


def patched_source(directory: Path, applied: Sequence[Path] | None = None) -> Path:
    """The release with our patches, or with these of them, as a tarball."""
    source = directory / "source.tar"
    applied = patches() if applied is None else applied
    release = aptsource.fetch_jemalloc(Settings.from_environment())
    script = str(ROLE / "files" / "patched_source.sh")
    files = map(str, (release, f"jemalloc-{VERSION}", source, *applied))
    subprocess.run([script, sys.executable, *files], check=True, stdout=subprocess.DEVNULL)
    return source


def built(
    part: str, platform: str, source: Path, directory: Path, sha256: str = "", python: str = sys.executable
) -> dict[str, Any]:
    """Build a part with the compiler of this Python, and return the record that lies beside its tarball."""
    page = VARIABLES["_jemalloc_lg_page"][int(platform.split("-")[-1])]
    stem = library_stem() if part == "library" else agent_stem()
    wanted = {
        "part": part,
        "source": str(source),
        "target": TARGETS[platform],
        "options": [f"--with-lg-page={page}", *DEFAULTS["jemalloc_configure_options"]],
        "cflags": DEFAULTS["jemalloc_cflags"],
        "place": f"/opt/offheap/{stem.partition('-')[0]}/{stem.partition('-')[2]}",
        "result": str(directory / f"{stem}-{platform}.tar.gz"),
        "sha256": sha256,
        "record": {"platform": platform},
    }
    subprocess.run([python, BUILDER], input=json.dumps(wanted), text=True, check=True, capture_output=True)
    record: dict[str, Any] = json.loads(Path(f"{wanted['result']}.json").read_text())
    return record


def sum_of(record: dict[str, Any]) -> str:
    """That of the shared library in a build."""
    return str(next(found for name, found in record["files"].items() if ".so" in name))


def main(parts: list[str]) -> None:
    stems = {"library": library_stem(), "agent": agent_stem()}
    replaced = tuple(stems[part].partition("-")[0] for part in parts)
    sums = {name: value for name, value in json.loads(CARRIED.read_text()).items() if not name.startswith(replaced)}
    with tempfile.TemporaryDirectory() as scratch:
        for part in parts:
            source = patched_source(Path(scratch)) if part == "library" else ROLE / "files" / "agent"
            for platform in TARGETS:
                sums[f"{stems[part]}-{platform}"] = sum_of(built(part, platform, source, Path(scratch)))
                print(f"{stems[part]}-{platform}", flush=True)
    CARRIED.write_text(json.dumps(sums, indent=4, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:] or ["library", "agent"])
