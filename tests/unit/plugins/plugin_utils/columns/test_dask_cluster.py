# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A cluster says what this machine says, whatever happens to its workers."""

from __future__ import annotations

import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deltalake
import pytest
from ansible.errors import AnsibleActionFail
from dask import config as dask_config
from hypothesis import HealthCheck, Phase, given, settings

from ansible_collections.offheap.profiler.plugins.action import lake_update, leak_assert, leak_report
from ansible_collections.offheap.profiler.plugins.plugin_utils.columns import dask_cluster, series_reader
from ansible_collections.offheap.profiler.plugins.plugin_utils.columns.dask_cluster import (
    ClusterError,
    connected,
    exposed,
)
from ansible_collections.offheap.profiler.plugins.plugin_utils.columns.lake import TABLES
from ansible_collections.offheap.profiler.tests.conftest import COLLECTIONS
from ansible_collections.offheap.profiler.tests.unit.fakes import dask
from ansible_collections.offheap.profiler.tests.unit.fakes.actions import run_action
from ansible_collections.offheap.profiler.tests.unit.strategies import leaky_archives
from ansible_collections.offheap.profiler.tests.unit.strategies.described_archives import DescribedArchive, archives


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a cluster of two workers."""
    directory = tmp_path_factory.mktemp("cluster")
    with (
        dask.scheduler(directory) as address,
        dask.worker(directory, address, "one"),
        dask.worker(directory, address, "two"),
    ):
        yield address


def _files(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def _said(plugin: Any, place: Path, cluster: str, **arguments: Any) -> dict[str, Any]:
    """What an action returned about the archive in a directory, without the directory's name."""
    result = run_action(plugin, archive=str(place / "archive"), cluster=cluster, **arguments)
    return {name: repr(value).replace(str(place), "") for name, value in result.items()}


@pytest.mark.slow
@settings(
    max_examples=16,
    phases=[Phase.generate],
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(described=archives())
def test_the_results_are_the_same_byte_for_byte(cluster: str, described: DescribedArchive) -> None:
    with tempfile.TemporaryDirectory() as made:
        here, there = Path(made) / "here", Path(made) / "there"
        for place in (here, there):
            place.mkdir()
            described.make(place / "archive")
        told = [
            _said(leak_report, place, address, dest=str(place / "report"), show=False)
            for place, address in ((here, ""), (there, cluster))
        ]
        assert told[0] == told[1]
        assert _files(here / "report") == _files(there / "report")
        assert _said(leak_assert, here, "") == _said(leak_assert, there, cluster)


def test_the_lake_has_the_same_rows(cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ansible_collections.offheap.profiler.plugins.plugin_utils.columns.lake._AT_ONCE", 5)
    archives_of = {}
    for name, address in (("here", ""), ("there", cluster)):
        place = tmp_path / name
        archive = leaky_archives.fill(place / "archive", tmp_path / f"scratch-{name}", dumps=6)
        next(iter(archive.captures())).dump.write_bytes(b"damaged")
        archives_of[name] = _said(lake_update, place, address, lake=str(place / "lake"))
    assert archives_of["here"] == archives_of["there"]
    assert "was left out" in archives_of["there"]["warnings"]
    for table in TABLES:
        here, there = (deltalake.DeltaTable(str(tmp_path / name / "lake" / table)) for name in ("here", "there"))
        rows = [
            one.to_pyarrow_table().sort_by([("stack" if table != "captures" else "name", "ascending")])
            for one in (here, there)
        ]
        assert rows[0].equals(rows[1])
        assert len(rows[0])


def test_what_a_dead_worker_did_is_done_by_another(cluster: str, tmp_path: Path) -> None:
    with connected(cluster) as workers:
        assert workers is not None
        assert list(workers.map(dask.dies_at_first, [(tmp_path / "flag",)]))
        assert (tmp_path / "flag").exists()


def test_work_that_kills_its_workers_is_an_error(cluster: str) -> None:
    with (
        connected(cluster) as workers,
        pytest.raises(ClusterError, match=r"workers of .* died one after the other at the same work"),
    ):
        assert workers is not None
        list(workers.map(dask.dies, [()]))


@pytest.mark.slow
@pytest.mark.parametrize("bare", ["scheduler", "worker"])
def test_one_without_the_collection(tmp_path: Path, bare: str) -> None:
    archive = leaky_archives.fill(tmp_path / "archive", tmp_path / "scratch", dumps=2)
    empty = tmp_path / "empty"
    empty.mkdir()
    places = {name: empty if name == bare else COLLECTIONS for name in ("scheduler", "worker")}
    with dask.scheduler(tmp_path, places["scheduler"]) as address:
        with pytest.raises(AnsibleActionFail, match=f"{address} has no workers. Start some with: dask worker"):
            run_action(leak_assert, archive=str(archive.root), cluster=address)
        told = "cannot run this: .*No module named 'ansible_collections.*PYTHONPATH"
        with dask.worker(tmp_path, address, "bare", places["worker"]), pytest.raises(AnsibleActionFail, match=told):
            run_action(leak_assert, archive=str(archive.root), cluster=address)


def test_no_scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = leaky_archives.fill(tmp_path / "archive", tmp_path / "scratch", dumps=2)
    monkeypatch.setattr(
        "ansible_collections.offheap.profiler.plugins.plugin_utils.columns.dask_cluster._SECONDS_TO_CONNECT", 1
    )
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{nobody.getsockname()[1]}"
        with pytest.raises(AnsibleActionFail, match=f"no Dask scheduler answers at {address}"):
            run_action(leak_assert, archive=str(archive.root), cluster=address)
    with pytest.raises(AnsibleActionFail, match="no Dask scheduler answers at nonsense"):
        run_action(leak_assert, archive=str(archive.root), cluster="nonsense")


def _certificate(directory: Path) -> dict[str, str]:
    """Dask's settings for an authority of its own, which everybody has the certificate of."""
    directory.mkdir()
    key, certificate = str(directory / "key.pem"), str(directory / "certificate.pem")
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=offheap"]
    subprocess.run([*made, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    roles = ("scheduler", "worker", "client")
    owned = {"ca-file": certificate} | {f"{role}.cert": certificate for role in roles}
    return owned | {f"{role}.key": key for role in roles}


@pytest.mark.slow
def test_one_that_only_who_has_a_certificate_can_reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = leaky_archives.fill(tmp_path / "archive", tmp_path / "scratch", dumps=2)
    owned, of_a_stranger = _certificate(tmp_path / "ours"), _certificate(tmp_path / "theirs")
    for name, value in owned.items():
        monkeypatch.setenv("DASK_DISTRIBUTED__COMM__TLS__" + name.replace(".", "__").replace("-", "_").upper(), value)
    with dask.scheduler(tmp_path, protocol="tls") as address:
        assert address.startswith("tls://")
        with pytest.raises(AnsibleActionFail, match="needs a certificate"):
            run_action(leak_assert, archive=str(archive.root), cluster=address)
        theirs, ours = (
            {f"distributed.comm.tls.{name}": value for name, value in of_one.items()}
            for of_one in (of_a_stranger, owned)
        )
        with (
            dask_config.set(theirs),
            monkeypatch.context() as patch,
            pytest.raises(AnsibleActionFail, match=f"no Dask scheduler answers at {address}"),
        ):
            patch.setattr(dask_cluster, "_SECONDS_TO_CONNECT", 2)
            run_action(leak_assert, archive=str(archive.root), cluster=address)
        with dask_config.set(ours), dask.worker(tmp_path, address, "one"):
            there = run_action(leak_assert, archive=str(archive.root), cluster=address)
    assert there == run_action(leak_assert, archive=str(archive.root))


def test_a_run_warns_of_an_address_without_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = leaky_archives.fill(tmp_path / "archive", tmp_path / "scratch", dumps=2)
    monkeypatch.setattr(series_reader, "connected", lambda _address: connected(""))
    told = [
        run_action(leak_assert, archive=str(archive.root), cluster=f"{scheme}://dask.example.org:8786")
        for scheme in ("tcp", "tls")
    ]
    warned = ["is reached without TLS" in str(result.get("warnings")) for result in told]
    assert warned == [True, False]


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("", False),
        ("tcp://127.0.0.1:8786", False),
        ("tcp://[::1]:8786", False),
        ("localhost:8786", False),
        ("tls://dask.example.org:8786", False),
        ("tcp://dask.example.org:8786", True),
        ("dask.example.org:8786", True),
        ("tcp://10.0.0.7:8786", True),
        ("ws://10.0.0.7:8786", True),
    ],
)
def test_an_address_without_tls_is_told_of(address: str, told: bool) -> None:
    assert ("without TLS" in exposed(address)) is told
