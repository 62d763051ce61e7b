# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Build what the controller gives to hosts, for all their platforms, twice, and compare it with our SHA-256.

reproduce.py [RELEASE]                     the agent and, from jemalloc's release tarball RELEASE, the library
reproduce.py RELEASE PLATFORM DIRECTORY    both, once, for one of the platforms in vars/main.yml, left in DIRECTORY

The second build has another directory, HOME, locale and umask than the first and, where this machine lets it have a
namespace of users, another user. Both are compared with cross_checksums.json beside this file. It needs PyYAML and what
cross_build.py does. Ends with status 1 if anything differs.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

ROLE = Path(__file__).resolve().parents[1]
CARRIED = ROLE / "files" / "cross_checksums.json"
BUILDER = ROLE / "files" / "cross_build.py"
AGENT = ROLE / "files" / "agent"
DEFAULTS = yaml.safe_load((ROLE / "defaults" / "main.yml").read_text())
VARIABLES = yaml.safe_load((ROLE / "vars" / "main.yml").read_text())
TARGETS: dict[str, str] = VARIABLES["_jemalloc_cross"]["targets"]
VERSION: str = DEFAULTS["jemalloc_version"]
RELEASE: str = VARIABLES["_jemalloc_checksums"][VERSION]
_SOMEBODY = ("unshare", "--user", "--map-user=12345", "--map-group=12345")


def sha256(file: Path) -> str:
    """Of a file's content, in hex. Raises OSError."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def agent_sources() -> list[Path]:
    """What the agent is built from, in the order of names."""
    return sorted(path for path in AGENT.iterdir() if path.is_file())


def agent_stem() -> str:
    """As vars/main.yml names it, after its sources."""
    texts = [path.read_text().rstrip() for path in agent_sources()]
    return f"agent-{hashlib.sha256(''.join(texts).encode()).hexdigest()[:12]}"


def library_stem() -> str:
    """As vars/main.yml names it, after what makes it what it is."""
    parts = [RELEASE, DEFAULTS["jemalloc_cflags"], *DEFAULTS["jemalloc_configure_options"]]
    parts += [f"{path.name} {sha256(path)}" for path in patches()]
    return f"jemalloc-{VERSION}-{hashlib.sha256(' '.join(parts).encode()).hexdigest()[:8]}"


def patches() -> list[Path]:
    """Ours, in the order in which they are applied."""
    return sorted((ROLE / "files" / "patches" / VERSION).glob("*.patch"))


def patched(release: Path, directory: Path, applied: Sequence[Path] | None = None) -> Path:
    """The release with our patches, or with these of them, as a tarball in the directory."""
    source = directory / "source.tar"
    script = str(ROLE / "files" / "patched_source.sh")
    files = map(str, (release, RELEASE, f"jemalloc-{VERSION}", source, *(patches() if applied is None else applied)))
    subprocess.run(["sh", script, sys.executable, *files], check=True, stdout=subprocess.DEVNULL)
    return source


def built(
    part: str,
    platform: str,
    source: Path,
    directory: Path,
    expected: str = "",
    run: Sequence[str] = (sys.executable,),
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Build a part into a directory with the compiler of the Python in ``run``; the record beside its tarball.

    Raises subprocess.CalledProcessError, whose ``stderr`` says why, also if its SHA-256 is not the ``expected`` one.
    """
    page = int(platform.split("-")[-1]).bit_length() - 1
    stem = library_stem() if part == "library" else agent_stem()
    suffix = "-musl" if platform.startswith("musl") else ""  # beside that for the host itself
    wanted = {
        "part": part,
        "source": str(source),
        "target": TARGETS[platform],
        "options": [f"--with-lg-page={page}", *DEFAULTS["jemalloc_configure_options"]],
        "cflags": DEFAULTS["jemalloc_cflags"],
        "place": f"/opt/offheap/{stem.partition('-')[0]}/{stem.partition('-')[2]}{suffix}",
        "result": str(directory / f"{stem}-{platform}-cross.tar.gz"),
        "sha256": expected,
        "record": {"platform": platform},
    }
    asked, env = json.dumps(wanted), {**os.environ, **(environment or {})}
    subprocess.run([*run, str(BUILDER)], input=asked, text=True, check=True, capture_output=True, env=env)
    record: dict[str, Any] = json.loads(Path(f"{wanted['result']}.json").read_text())
    return record


def sum_of(record: dict[str, Any]) -> str:
    """That of the shared library in a build."""
    return str(next(found for name, found in record["files"].items() if ".so" in name))


def _elsewhere(directory: Path) -> dict[str, str]:
    """What a build in another directory finds different around it."""
    home = directory / "another-home"
    (home / "scratch").mkdir(parents=True)
    return {"HOME": str(home), "TMPDIR": str(home / "scratch"), "LANG": "C.UTF-8", "TZ": "Asia/Kathmandu"}


def _as_somebody() -> tuple[str, ...]:
    """What runs a program as another user; without namespaces, as this one."""
    try:
        subprocess.run([*_SOMEBODY, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        print("this machine gives us no other user: both builds are yours")
        return ()
    return _SOMEBODY


def reproduced(release: Path | None, directory: Path) -> list[str]:
    """Build everything twice below an empty directory; what differs from our checksums, a line each."""
    carried: dict[str, str] = json.loads(CARRIED.read_text())
    sources = {"agent": AGENT}
    if release is not None:
        if sha256(release) != RELEASE:
            return [f"{release} has SHA-256 {sha256(release)}, and the release {VERSION} has {RELEASE}"]
        sources["library"] = patched(release, directory)
    other_user = (*_as_somebody(), "sh", "-c", 'umask 077; exec "$@"', "sh", sys.executable)
    wrong = []
    for part, source in sources.items():
        for platform in TARGETS:
            name = f"{library_stem() if part == 'library' else agent_stem()}-{platform}"
            first, second = (Path(tempfile.mkdtemp(dir=directory)) for _number in range(2))
            found = [
                sum_of(built(part, platform, source, first)),
                sum_of(built(part, platform, source, second, "", other_user, _elsewhere(second))),
            ]
            expected = carried.get(name, "nothing")
            print(f"{name}: {' and '.join(found)}", flush=True)
            if found != [expected, expected]:
                wrong.append(f"{name} should be {expected}")
    return wrong


def left(release: Path, platform: str, directory: Path, work: Path) -> None:
    """Build both parts once, as the controller leaves them in its cache. Raises subprocess.CalledProcessError."""
    carried: dict[str, str] = json.loads(CARRIED.read_text())
    directory.mkdir(parents=True, exist_ok=True)
    sources = (("library", library_stem(), patched(release, work)), ("agent", agent_stem(), AGENT))
    for part, stem, source in sources:
        built(part, platform, source, directory, carried[f"{stem}-{platform}"])


def main(arguments: list[str]) -> int:
    """The status to end with."""
    if len(arguments) not in (0, 1, 3) or (arguments[1:] and arguments[1] not in TARGETS):
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory(prefix="offheap-reproduce-") as directory:
        try:
            if arguments[1:]:
                left(Path(arguments[0]), arguments[1], Path(arguments[2]), Path(directory))
                return 0
            wrong = reproduced(Path(arguments[0]) if arguments else None, Path(directory))
        except subprocess.CalledProcessError as error:
            wrong = [str(error.stderr or error).strip()]
    print("\n".join(wrong) or "both builds are, to the byte, what the collection says")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
