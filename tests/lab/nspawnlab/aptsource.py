# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Finds the machine's Debian mirror by asking APT, which reads every format of sources."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from pathlib import Path

from .command import run
from .console import say
from .settings import LabError, Settings

JEMALLOC_SHA256 = "2db82d1e7119df3e71b7640219b6dfe84789bc0537983c3b7ac4f7189aecfeaa"
JEMALLOC_VERSION = "5.3.0"
# Debian 12's source package has upstream's 5.3.0 release tarball, byte for byte; Debian 11 has 5.2.1
JEMALLOC_SUITE = "bookworm"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"

# the machine's APT settings that may be needed to reach the mirror
_TRANSPORT = ("Acquire::http::", "Acquire::https::", "Acquire::Check-", "Acquire::Retries", "Acquire::ForceIPv")


def mirror() -> str:
    """URI of the Debian archive that this machine is configured with.

    Raises LabError (status 2) if no configured source is Debian's main archive.
    """
    found = _debian_mirrors()
    if not found:
        say("updating APT's lists (apt-get update)")
        run(["apt-get", "update", "-q"])
        found = _debian_mirrors()
    if not found:
        raise LabError("needs an APT source of the Debian archive (origin and label Debian, component main)", 2)
    return found[0]


def transport_options() -> list[str]:
    """The machine's APT settings for proxies and validity, as ``Key "value";`` lines."""
    lines = run(["apt-config", "dump"]).stdout.splitlines()
    return [line for line in lines if line.startswith(_TRANSPORT) and not line.endswith('"";')]


def fetch_jemalloc(settings: Settings) -> Path:
    """Upstream's jemalloc tarball from Debian's source package, verified and kept in the lab's directory."""
    target = settings.directory / "sources" / f"jemalloc-{JEMALLOC_VERSION}.tar.bz2"
    if target.exists() and _sha256(target) == JEMALLOC_SHA256:
        return target
    say(f"fetching the source of jemalloc {JEMALLOC_VERSION} from Debian's archive")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as name:
        work = Path(name)
        _download(work, "deb-src", JEMALLOC_SUITE, ["--download-only", "source", "jemalloc"])
        tarball = work / "download" / f"jemalloc_{JEMALLOC_VERSION}.orig.tar.bz2"
        if not tarball.exists():
            raise LabError(f"Debian's source package of jemalloc in {JEMALLOC_SUITE} has no {tarball.name}")
        digest = _sha256(tarball)
        if digest != JEMALLOC_SHA256:
            raise LabError(f"{tarball.name} has sha256 {digest}, upstream's release has {JEMALLOC_SHA256}")
        shutil.move(tarball, target)
    return target


def unpack_packages(suite: str, packages: list[str], target: Path) -> Path:
    """Unpack packages of a suite at ``target`` without installing them; done once."""
    if target.exists():
        return target
    say(f"fetching {', '.join(packages)} of {suite} from Debian's archive")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as name:
        work = Path(name)
        _download(work, "deb", suite, ["download", *packages])
        for package in (work / "download").glob("*.deb"):
            run(["dpkg-deb", "--extract", package, work / "root"])
        (work / "root").rename(target)
    return target


def _download(work: Path, kind: str, suite: str, command: list[str]) -> None:
    """Run an apt-get command in ``work``/download, with only the lists of ``kind`` (deb, deb-src) of one suite.

    The configuration is private: nothing below the machine's /etc/apt or /var/lib/apt changes.
    """
    work.chmod(0o755)
    for directory in ("lists/partial", "cache/archives/partial", "download"):
        (work / directory).mkdir(parents=True)
    (work / "sources.list").write_text(f"{kind} [signed-by={KEYRING}] {mirror()} {suite} main\n")
    options = [
        "-q",
        f"-oDir::Etc::SourceList={work}/sources.list",
        "-oDir::Etc::SourceParts=/dev/null",
        f"-oDir::State::Lists={work}/lists",
        # Otherwise download would take the installed version
        "-oDir::State::Status=/dev/null",
        f"-oDir::Cache={work}/cache",
        "-oAPT::Sandbox::User=root",
        "-oAPT::Update::Post-Invoke-Success::=",
    ]
    run(["apt-get", *options, "update"])
    script = 'cd "$1"; shift; exec apt-get "$@"'
    run(["sh", "-c", script, "sh", work / "download", *options, *command])


def _debian_mirrors() -> list[str]:
    """Repository URIs with origin and label Debian, in the order of the configuration."""
    layout = "$(ORIGIN)|$(LABEL)|$(COMPONENT)|$(REPO_URI)"
    listed = run(["apt-get", "indextargets", "--format", layout, "Created-By: Packages"], check=False).stdout
    uris = [line.split("|") for line in listed.splitlines()]
    return [row[3] for row in uris if row[:3] == ["Debian", "Debian", "main"] and "://" in row[3]]


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
