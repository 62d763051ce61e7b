# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""etcd and Kubernetes' API server, built from source: a cluster on this machine, without nodes and controllers."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from ansible_collections.offheap.profiler.tests.gates.files import ROOT

#: the oldest Go that can build them
GO = (1, 24)
NAMESPACE = "shop"
_HERE = Path(__file__).resolve().parent
_BUILT = ROOT / "build" / "kubernetes"
# Each is named after the last part of its package.
_ETCD, _SERVER, _KUBECTL = "server", "kube-apiserver", "kubectl"
_START = 120.0


@dataclass(frozen=True)
class Cluster:
    """A running API server, and how to talk to it."""

    arguments: tuple[str, ...]
    home: Path

    def tried(self, *words: str, manifest: object = None) -> subprocess.CompletedProcess[str]:
        """What kubectl says, whatever its status. ``manifest`` is given to it on standard input."""
        return subprocess.run(
            [_BUILT / _KUBECTL, *self.arguments, *words],
            env={"PATH": os.environ["PATH"], "HOME": str(self.home)},
            input=None if manifest is None else json.dumps(manifest),
            capture_output=True,
            text=True,
            check=False,
        )

    def kubectl(self, *words: str, manifest: object = None) -> str:
        """What kubectl prints, which must succeed."""
        done = self.tried(*words, manifest=manifest)
        assert done.returncode == 0, f"kubectl {' '.join(words)}: {done.stderr}"
        return done.stdout

    def get(self, kind: str, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.kubectl("get", kind, name, "-o", "json"))
        return found


def go_version() -> tuple[int, ...]:
    """That of the Go that is here, () if there is none."""
    with contextlib.suppress(OSError):
        told = subprocess.run(["go", "env", "GOVERSION"], capture_output=True, text=True, check=False).stdout
        return tuple(int(part) for part in told.strip().removeprefix("go").split(".")[:2] if part.isdigit())
    return ()


def build() -> None:
    """Ten minutes on two cores, the first time."""
    _BUILT.mkdir(parents=True, exist_ok=True)
    command = [
        "go",
        "build",
        "-C",
        str(_HERE),
        "-mod=readonly",
        "-trimpath",
        "-ldflags=-s -w",
        "-o",
        f"{_BUILT}/",
        "tool",
    ]
    subprocess.run(command, check=True)


@contextlib.contextmanager
def running(directory: Path) -> Iterator[Cluster]:
    """A cluster with its data in ``directory``, and a namespace in it. It ends with the block."""
    ports = _free_ports(3)
    client, peer, secure = (f"127.0.0.1:{port}" for port in ports)
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    (directory / "accounts.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
    )
    token = secrets.token_hex(16)
    (directory / "tokens.csv").write_text(f"{token},admin,admin,system:masters\n")
    etcd = [
        f"--data-dir={directory}/etcd",
        f"--listen-client-urls=http://{client}",
        f"--advertise-client-urls=http://{client}",
        f"--listen-peer-urls=http://{peer}",
        f"--initial-advertise-peer-urls=http://{peer}",
        f"--initial-cluster=default=http://{peer}",
        "--unsafe-no-fsync",
    ]
    server = [
        f"--etcd-servers=http://{client}",
        f"--secure-port={ports[2]}",
        "--bind-address=127.0.0.1",
        f"--cert-dir={directory}/certificates",
        f"--token-auth-file={directory}/tokens.csv",
        "--service-account-issuer=https://kubernetes.example.org",
        f"--service-account-key-file={directory}/accounts.pem",
        f"--service-account-signing-key-file={directory}/accounts.pem",
        "--service-cluster-ip-range=10.0.0.0/24",
        "--endpoint-reconciler-type=none",
        "--disable-admission-plugins=ServiceAccount",  # a controller would make the accounts
    ]
    with _process(directory, _ETCD, etcd), _process(directory, _SERVER, server) as api:
        certificate = directory / "certificates" / "apiserver.crt"
        arguments = (f"--server=https://{secure}", f"--token={token}", f"--certificate-authority={certificate}")
        cluster = Cluster((*arguments, f"--namespace={NAMESPACE}"), directory)
        deadline = time.monotonic() + _START
        while cluster.tried("get", "--raw=/readyz").returncode:
            assert api.poll() is None and time.monotonic() < deadline, (directory / f"{_SERVER}.log").read_text()[
                -2000:
            ]
            time.sleep(0.5)
        cluster.kubectl("create", "namespace", NAMESPACE)
        yield cluster


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _number in range(count)]
        return [one.getsockname()[1] for one in sockets]


@contextlib.contextmanager
def _process(directory: Path, name: str, arguments: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    with (directory / f"{name}.log").open("wb") as log:
        process = subprocess.Popen([_BUILT / name, *arguments], cwd=directory, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
