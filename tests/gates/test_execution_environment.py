# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""ansible-builder understands what the collection says about execution environments. It builds no image here."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ansible_collections.offheap.profiler.tests.conftest import COLLECTIONS
from ansible_collections.offheap.profiler.tests.gates.files import ROOT


@pytest.fixture(scope="module")
def builder() -> str:
    venv = ROOT / "build" / "builder"
    if not (venv / "bin" / "ansible-builder").exists():
        uv = str(Path(sys.executable).with_name("uv"))
        subprocess.run([uv, "venv", "-q", "--clear", "-p", sys.executable, str(venv)], check=True)
        python = str(venv / "bin" / "python")
        subprocess.run([uv, "pip", "install", "-q", "-p", python, "ansible-builder>=3.1"], check=True)
    return str(venv / "bin" / "ansible-builder")


def test_it_finds_what_the_collection_needs(builder: str) -> None:
    done = subprocess.run([builder, "introspect", str(COLLECTIONS)], check=True, capture_output=True, text=True)
    found = yaml.safe_load(done.stdout)
    wanted = (ROOT / "meta" / "ee-requirements.txt").read_text(encoding="utf-8").splitlines()
    assert [line.partition(" ")[0] for line in found["python"]] == [
        line.partition(" ")[0] for line in wanted if line and not line.startswith("#")
    ]
    assert any(line.startswith("openssh-clients [platform:rpm]") for line in found["system"])


def test_it_writes_the_build_context_of_the_definition(builder: str, tmp_path: Path) -> None:
    definition = ROOT / "docs" / "execution-environment.yml"
    version = yaml.safe_load((ROOT / "galaxy.yml").read_text(encoding="utf-8"))["version"]
    tarball = f"offheap-profiler-{version}.tar.gz"
    (tmp_path / tarball).write_bytes(b"not looked into")
    shutil.copy(definition, tmp_path)
    subprocess.run([builder, "create", "-f", definition.name, "-c", "context"], cwd=tmp_path, check=True)
    assert (tmp_path / "context" / "_build" / "collections" / tarball).exists()
    needed = yaml.safe_load((tmp_path / "context" / "_build" / "requirements.yml").read_text(encoding="utf-8"))
    assert needed["collections"] == [{"name": f"collections/{tarball}", "type": "file"}]
