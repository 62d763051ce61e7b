# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""One canary for several runs that have nothing in common but an archive at an address.

    <archive>/rollouts/<name>/canary.json     which hosts go first, and whose they are
    <archive>/rollouts/<name>/outcome.json    how they are afterwards

Each is created once and never changed. The first run that has a host creates canary.json, so nobody needs to know which
run that is, and a run without hosts holds up nobody. Only that run creates outcome.json, and the others wait for it. If
it is killed, there is no outcome: they stop when their time is up.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from ...module_utils.formats import values
from ..base.directory_name import directory_name
from ..base.errors import ControllerError
from .far_archive import FarArchive
from .object_store import ObjectStore, is_address

CANARY, OUTCOME = "canary.json", "outcome.json"
_LARGEST = 1 << 16
# Far more than a rollout takes, and than any two clocks differ.
_LONGEST = 86_400.0
# Seconds between two looks, and between two words to who waits.
_LOOK, _TELL = 3.0, 60.0


class RolloutError(ControllerError):
    """A run must not go on. The message says why, and what to do."""


@dataclass(frozen=True)
class Canary:
    """The hosts that go first. ``run`` is whose they are, ``time`` when they began by that run's clock, and ``token``
    is different in each."""

    hosts: str
    run: str
    time: float
    token: str


@dataclass(frozen=True)
class Outcome:
    """How the canary is."""

    well: bool


class Rollout:
    """A rollout by its name, which all of its runs know and no other rollout has.

    All methods also raise StoreError.
    """

    def __init__(self, archive: str, name: str) -> None:
        """Creates the archive if there is none. Raises ControllerError."""
        if not is_address(archive):
            raise RolloutError(
                f"the runs of rollout {name} cannot meet in {archive}: set offheap_archive to an address that all of"
                " them reach, such as s3://bucket/offheap, or leave out offheap_rollout if this is the only run"
            )
        self._store = ObjectStore(archive)
        FarArchive(self._store).make()
        self._name = name
        self._place = f"rollouts/{directory_name(name)}"

    def go_first(self, hosts: Sequence[str], run: str) -> bool:
        """Whether these hosts are the canary. Raises RolloutError if the name was used by an earlier rollout."""
        named = hosts[0] if len(hosts) == 1 else f"{hosts[0]} and {len(hosts) - 1} more"
        own = Canary(named, run, time.time(), uuid.uuid4().hex)
        if self._store.create(f"{self._place}/{CANARY}", _packed(own)):
            return True
        there = self._canary()
        if abs(own.time - there.time) > _LONGEST:
            began = time.strftime("%Y-%m-%d", time.gmtime(there.time))
            raise RolloutError(
                f"the name {self._name} belongs to a rollout that {there.run} began on {began}: set offheap_rollout to"
                " a name that was never used"
            )
        # A request whose answer was lost is sent again by the library, and then finds what it has written.
        return there.token == own.token

    def tell(self, well: bool) -> None:
        """Tell the other runs how the canary is. What was told first stays."""
        self._store.create(f"{self._place}/{OUTCOME}", _packed(Outcome(well)))

    def wait(self, timeout: float, tell: Callable[[str], None]) -> None:
        """Return once the canary is well. Calls ``tell`` with what it waits for, now and then.

        Raises RolloutError if the canary is not well, or if ``timeout`` seconds have passed.
        """
        began = time.monotonic()
        due = began
        while (outcome := self._outcome()) is None:
            canary, waited = self._canary(), time.monotonic() - began
            who = f"{canary.hosts} of {canary.run}"
            if began + waited >= due:
                due += _TELL
                tell(f"rollout {self._name}: waiting for its canary, {who} ({waited:.0f} s)")
            if waited >= timeout:
                raise RolloutError(
                    f"rollout {self._name}: after {timeout:.0f} s there is no word of its canary, {who}. No unit was"
                    " touched by this run. See whether that run still works (then set offheap_canary_timeout higher)"
                    f" or was killed (then see whether {canary.hosts} is well, and start all runs again under another"
                    " offheap_rollout; new jobs of AWX have another)"
                )
            time.sleep(min(_LOOK, max(timeout - waited, 0.0)))
        if not outcome.well:
            canary = self._canary()
            raise RolloutError(
                f"rollout {self._name} has stopped: its canary, {canary.hosts} of {canary.run}, is not well. No unit"
                " was touched by this run. See there for the reason; then start all runs again under another"
                " offheap_rollout (new jobs of AWX have another)"
            )

    def _canary(self) -> Canary:
        try:
            found = json.loads(self._read(CANARY))
            if not values.is_time(found["time"]):
                raise ValueError("it began at no time")
            return Canary(str(found["hosts"]), str(found["run"]), float(found["time"]), str(found["token"]))
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise self._damaged(CANARY, error) from error

    def _outcome(self) -> Outcome | None:
        content = self._read(OUTCOME)
        try:
            return Outcome(json.loads(content)["well"] is True) if content else None
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise self._damaged(OUTCOME, error) from error

    def _read(self, file: str) -> bytes:
        return self._store.read(f"{self._place}/{file}", _LARGEST) or b""

    def _damaged(self, file: str, error: Exception) -> RolloutError:
        place = f"{self._store.address}/{self._place}/{file}"
        return RolloutError(f"{place} is damaged: {error}. Start all runs again under another offheap_rollout")


def _packed(marker: Canary | Outcome) -> bytes:
    return json.dumps(asdict(marker)).encode() + b"\n"
