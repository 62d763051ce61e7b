# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A dask.distributed cluster that reads and judges captures instead of this machine.

Its workers open the archive by its name: an address, or a directory that all of them share. They do what this machine
would do, so the results are the same; what hosts sent is parsed there as here, in a child with limits. Whoever can
reach a scheduler runs code on its workers, and they answer with objects of Python: a cluster is trusted like the
controller.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from ..base import libraries
from ..base.errors import ControllerError
from . import sample_cache

distributed = libraries.optional("distributed")

Result = TypeVar("Result")
_SECONDS_TO_CONNECT = 20


class ClusterError(ControllerError):
    """A cluster cannot be used. The message says which and why."""


class Cluster:
    """The workers behind a scheduler that answers."""

    def __init__(self, client: Any, address: str) -> None:
        self._client = client
        self._address = address

    def map(self, function: Callable[..., Result], calls: Sequence[tuple[Any, ...]]) -> Iterator[Result]:
        """What ``function`` (of a module) answers to each of these arguments, in their order.

        A call whose worker died is made again elsewhere. Raises the error of the first that failed, and ClusterError.
        """
        futures = [self._client.submit(function, *arguments, pure=False) for arguments in calls]
        try:
            for future in futures:
                yield future.result()
                future.release()
        except distributed.KilledWorker as error:
            raise ClusterError(
                f"workers of {self._address} died one after the other at the same work: {error}"
            ) from error
        except distributed.client.FutureCancelledError as error:
            raise ClusterError(f"the scheduler at {self._address} is gone: {error}; run this again") from error
        finally:
            self._client.cancel(futures, force=True)


def exposed(address: str) -> str:
    """What to know of an address at which others can reach the scheduler, too; empty for others."""
    scheme, _colon, rest = address.rpartition("://")
    host = rest.rpartition(":")[0].strip("[]")
    if not address or scheme == "tls" or host == "localhost" or _is_loopback(host):
        return ""
    return (
        f"the Dask scheduler at {address} is reached without TLS: whoever can reach it, or stands between, can run"
        " code on its workers and here. Give it certificates and a tls:// address (docs/lake.md)"
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@contextmanager
def connected(address: str) -> Iterator[Cluster | None]:
    """The cluster whose scheduler is at ``tls://host:port`` or ``tcp://host:port``; None for an empty address.

    Raises ClusterError.
    """
    if not address:
        yield None
        return
    libraries.require("distributed")
    try:
        client = distributed.Client(address, timeout=_SECONDS_TO_CONNECT, set_as_default=False)
    except TypeError as error:
        raise ClusterError(
            f"{address} needs a certificate: {error}. Say where yours is in Dask's settings (distributed.comm.tls)"
        ) from error
    except (OSError, ValueError) as error:
        raise ClusterError(
            f"no Dask scheduler answers at {address}: {error}. Start one with: dask scheduler"
        ) from error
    with client:
        _prove(client, address)
        yield Cluster(client, address)


def _prove(client: Any, address: str) -> None:
    """Raises ClusterError if nobody there could run this library: a worker that cannot unpack a call just leaves."""
    if not client.scheduler_info()["workers"]:
        raise ClusterError(f"the Dask scheduler at {address} has no workers. Start some with: dask worker {address}")
    try:
        for run in (client.run_on_scheduler, client.run):
            run(exec, f"import {sample_cache.__name__}")
    except ImportError as error:
        raise ClusterError(
            f"the cluster at {address} cannot run this: {error}. Its scheduler and workers need the collection in their"
            " PYTHONPATH, and the controller's versions of Python and its libraries"
        ) from error
