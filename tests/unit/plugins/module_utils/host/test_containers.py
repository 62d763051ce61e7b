# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The containers of a host, as the kubelet, CRI-O, Docker and Podman leave them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.host import containers, systemd

CART, PAUSE, CRIO, DOCKER, PODMAN, UNNAMED = (digit * 64 for digit in "abcdef")


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host's root, whose control groups are below sys."""
    monkeypatch.setattr(systemd, "CGROUP_ROOTS", (str(tmp_path / "none"), str(tmp_path / "sys")))
    return tmp_path


def _group(host: Path, path: str) -> str:
    (host / "sys" / path).mkdir(parents=True)
    return f"/{path}"


def _write(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_a_node_of_kubernetes(host: Path) -> None:
    pod = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod12ab_34.slice"
    cart = _group(host, f"{pod}/cri-containerd-{CART}.scope")
    _group(host, f"{pod}/cri-containerd-{PAUSE}.scope")
    crio = _group(host, f"{pod}/crio-{CRIO}.scope")
    _group(host, f"{pod}/crio-conmon-{CRIO}.scope")
    _write(host / f"var/log/containers/cart-0_shop_cart-{CART}.log")
    _write(host / f"var/log/containers/web-6d4_front-end_nginx-proxy-{CRIO}.log")
    assert containers.running(str(host)) == {"front-end/web-6d4/nginx-proxy": crio, "shop/cart-0/cart": cart}


def test_one_whose_groups_the_kubelet_manages(host: Path) -> None:
    cart = _group(host, f"kubepods/besteffort/pod12ab-34/{CART}")
    _write(host / f"var/log/containers/cart-0_shop_cart-{CART}.log")
    assert containers.running(str(host)) == {"shop/cart-0/cart": cart}


def test_docker_and_podman(host: Path) -> None:
    docker = _group(host, f"system.slice/docker-{DOCKER}.scope")
    podman = _group(host, f"machine.slice/libpod-{PODMAN}.scope")
    _group(host, f"machine.slice/libpod-{PODMAN}.scope/container")
    _group(host, f"machine.slice/libpod-conmon-{PODMAN}.scope")
    _write(host / f"var/lib/docker/containers/{DOCKER}/config.v2.json", json.dumps({"Name": "/cart"}))
    told = [{"id": PODMAN, "names": ["web"]}, {"id": UNNAMED, "names": []}]
    _write(host / "var/lib/containers/storage/overlay-containers/containers.json", json.dumps(told))
    assert containers.running(str(host)) == {"cart": docker, "web": podman}


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"Name": 1}', "[" * 100_000])
def test_files_that_say_nothing(host: Path, text: str) -> None:
    docker = _group(host, f"docker/{DOCKER}")
    _write(host / f"var/lib/docker/containers/{DOCKER}/config.v2.json", text)
    _write(host / "var/lib/containers/storage/overlay-containers/containers.json", text)
    assert containers.running(str(host)) == {DOCKER[:12]: docker}


def test_none(host: Path) -> None:
    _group(host, "system.slice/web.service")
    assert containers.running(str(host)) == {}
