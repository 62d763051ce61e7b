# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The files that clients of the lab get."""

from __future__ import annotations

import configparser
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.tests.lab.nspawnlab import access
from ansible_collections.offheap.profiler.tests.lab.nspawnlab.access import Host
from ansible_collections.offheap.profiler.tests.lab.nspawnlab.settings import Settings


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A lab of four hosts, with stand-ins for keys."""

    def keygen(argv: list[str | Path], **_: object) -> None:
        path = Path(argv[-1])
        path.write_text("secret")
        path.with_name(path.name + ".pub").write_text(f"ssh-ed25519 KEY{path.name} comment\n")

    monkeypatch.setattr(access, "run", keygen)
    settings = Settings("offheap", tmp_path, "10.77.0")
    settings.run.mkdir()
    access.write(settings, [Host(i, f"app{i}", "trixie", Path("/image")) for i in range(1, 5)])
    return settings


def test_inventory_has_hosts_with_rates_in_turns(written: Settings) -> None:
    parser = configparser.ConfigParser(allow_no_value=True, delimiters=("\n",))
    parser.read(written.inventory)
    rows = [dict(word.split("=", 1) for word in row.split()[1:]) for row in parser["fleet"]]
    assert [row["ansible_host"] for row in rows] == ["10.77.0.11", "10.77.0.12", "10.77.0.13", "10.77.0.14"]
    assert [row["frontend_leak_every"] for row in rows] == ["3", "3", "0", "3"]
    assert rows[0]["frontend_rate"] == rows[3]["frontend_rate"] != rows[1]["frontend_rate"]


def test_host_keys_are_checked(written: Settings) -> None:
    assert written.known_hosts.read_text().splitlines()[1] == "10.77.0.12,app2 ssh-ed25519 KEYapp2.hostkey"
    for text in (written.ssh_config.read_text(), written.inventory.read_text()):
        assert "StrictHostKeyChecking" in text and str(written.known_hosts) in text
        assert "StrictHostKeyChecking no" not in text and "StrictHostKeyChecking=no" not in text


def test_hosts_file_names_every_host(written: Settings) -> None:
    lines = (written.run / "hosts").read_text().splitlines()
    assert lines == ["127.0.0.1 localhost", *(f"10.77.0.{10 + i} app{i}" for i in range(1, 5))]
