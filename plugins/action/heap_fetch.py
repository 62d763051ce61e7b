# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The controller's half of heap_fetch: decide what is new, bring it, and tell the target what is safe."""

from __future__ import annotations

import functools
import resource
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ..plugin_utils import ansible_ssh, fetch_plan, ingest, streamed, transfer
from ..plugin_utils.archive import Archive, ArchiveError, zstandard_missing
from ..plugin_utils.byte_size import as_text
from ..plugin_utils.controller_action import from_here, require
from ..plugin_utils.session import HostError, SessionError
from ..plugin_utils.transfer import TransferError

_MODULE = "offheap.profiler.heap_fetch"
_ARGUMENTS: dict[str, dict[str, Any]] = {
    "archive": {"type": "path", "required": True},
    "units": {"type": "list", "elements": "str", "default": []},
    "delete_collected": {"type": "bool", "default": False},
    "max_batch": {"type": "bytes", "default": "512M"},
    "max_dump": {"type": "bytes", "default": "1G"},
    "max_image": {"type": "bytes", "default": "1G"},
    "max_captures": {"type": "int", "default": 5000},
    "label": {"type": "str", "default": ""},
}
#: what stays free on the target's file system while a batch lies there
_RESERVE = 32 << 20

display = Display()


class ActionModule(ActionBase):
    """Lists, brings and marks: over a session where that can be, else by the steps of the module of the same name."""

    _supports_check_mode = True
    _supports_async = False
    _finished = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        self._task_vars = task_vars or {}
        _validation, self._args = self.validate_argument_spec(_ARGUMENTS)  # type: ignore[no-untyped-call]
        require({"zstandard": zstandard_missing()})
        self._host = str(self._task.delegate_to or self._task_vars["inventory_hostname"])
        root = from_here(self._args["archive"])
        result.update(changed=False, archive=str(root), captures=[], images=[], bytes=0, transferred=0, collected=0)
        warnings: list[str] = []
        self._finished = False
        try:
            ansible_ssh.prepare(self._connection)
            with ansible_ssh.session(self._connection, self._python()) as session:
                self._session = session
                result["streamed"] = session is not None
                self._fetch(root, result, warnings)
        except ansible_ssh.NoConnection as exc:
            raise AnsibleConnectionFailure(str(exc)) from exc
        except (ArchiveError, HostError, SessionError, TransferError) as exc:
            brought = f" ({len(result['captures'])} captures had been brought before)" if result["captures"] else ""
            result.update(failed=True, msg=f"{exc}{brought}")
        else:
            result["summary"] = self._summary(result)
        self._finished = True
        if warnings:
            result["warnings"] = warnings
        return result

    def cleanup(self, force: bool = False) -> None:
        """Empty the target's temporary directory. After a broken run, never wait for a dead connection."""
        if self._finished:
            super().cleanup(force)  # type: ignore[no-untyped-call]
            return
        try:
            self._connection.reset()
            super().cleanup(force)  # type: ignore[no-untyped-call]
        except AnsibleError as exc:
            left = self._connection._shell.tmpdir
            display.warning(f"{left} may be left on the host, until the next run finds it: {exc}")

    def _python(self) -> str:
        """The host's interpreter, where Ansible knows it already."""
        facts = self._task_vars.get("ansible_facts", {})
        wanted = str(self._templar.template(self._task_vars.get("ansible_python_interpreter", "auto")))
        return str(facts.get("discovered_interpreter_python", "python3")) if wanted.startswith("auto") else wanted

    def _step(self, step: str, **request: Any) -> dict[str, Any]:
        """Run one step of the module on the target. Raises TransferError when it fails."""
        answer: dict[str, Any] = self._execute_module(
            module_name=_MODULE,
            module_args={**self._args, "step": step, "request": {"staging": self._staging, **request}},
            task_vars=self._task_vars,
        )
        if answer.get("failed"):
            raise TransferError(str(answer.get("msg") or f"the step {step} failed on the host: {answer}"))
        return answer

    def _fetch(self, root: Path, result: dict[str, Any], warnings: list[str]) -> None:
        is_there = (root / "archive.json").exists()
        archive = None if self._task.check_mode and not is_there else self._archive(root)
        listing = fetch_plan.read_listing(
            self._list(), self._host, self._args["max_dump"], self._args["max_image"], self._args["label"]
        )
        new, known, images = fetch_plan.without_known(listing, archive)
        result.update(listing.others, absent=listing.absent, left=listing.left, missing_images=listing.missing_images)
        warnings += self._warnings(listing)
        if archive is None or self._task.check_mode:
            self._foretell(new, known, images, result)
            return
        limit = max(1, min(self._args["max_batch"], listing.free - _RESERVE))
        plan = list(fetch_plan.batches(new, images, limit))
        for number, batch in enumerate(plan, 1):
            if len(plan) > 1:
                display.display(f"{self._host}: transfer {number} of {len(plan)}, {as_text(batch.size)}")
            self._bring(archive, batch, result, warnings)
        if known:
            self._mark(known, result, warnings)

    def _list(self) -> dict[str, Any]:
        if self._session is None:
            # Made by the login user for himself, and removed by the base class's cleanup
            self._staging = str(self._connection._shell.tmpdir or self._make_tmp_path())
            return self._step("list")
        units, max_dump, max_captures = (self._args[name] for name in ("units", "max_dump", "max_captures"))
        return streamed.find(self._session, units, max_dump, max_captures, ask_jvms=not self._task.check_mode)

    def _warnings(self, listing: fetch_plan.Listing) -> list[str]:
        """What of a listing somebody should know about."""
        host = self._host
        warnings = [f"{host}: {problem}" for problem in listing.problems]
        warnings += [f"{host}: {unit} has no spool there: it was never profiled" for unit in listing.absent]
        warnings += [
            f"{host}: {listing.counts[kind]} dumps are {kind} and were left there, the first because"
            f" {listing.others[kind][0]['reason']}"
            for kind in ("incomplete", "unreadable")
            if listing.others[kind]
        ]
        nameless = [image["path"] for image in listing.missing_images if image["reason"] in ("replaced", "gone")]
        if nameless:
            warnings.append(
                f"{host}: {len(nameless)} files of processes that ended are replaced or gone, the first {nameless[0]};"
                " addresses in them stay without names"
            )
        if listing.left:
            warnings.append(f"{host}: {listing.left} dumps are more than max_captures and were left; run again")
        return warnings

    def _archive(self, root: Path) -> Archive:
        return Archive.open(root) if self._task.check_mode else Archive.create(root)

    def _foretell(
        self,
        new: list[fetch_plan.Found],
        known: list[fetch_plan.Found],
        images: list[fetch_plan.WantedImage],
        result: dict[str, Any],
    ) -> None:
        """What a run without check mode would return."""
        result.update(
            changed=bool(new or known or images),
            captures=[_brief(found.facts) for found in new],
            images=[image.build_id for image in images],
            bytes=sum(found.size for found in new) + sum(image.size for image in images),
            collected=len(new) + len(known),
        )

    def _bring(self, archive: Archive, batch: fetch_plan.Batch, result: dict[str, Any], warnings: list[str]) -> None:
        """One transfer: bring, verify, store, mark."""
        by = self._by_module if self._session is None else functools.partial(streamed.bring, self._session)
        packed, brought = by(archive, batch)
        warnings += [f"{self._host}: {problem}" for problem in brought.problems]
        result["captures"] += [_brief(capture.facts) for capture, added in brought.captures if added]
        result["images"] += brought.images
        result["bytes"] += sum(packed.members.values())
        result["transferred"] += packed.size
        result["changed"] = result["changed"] or bool(brought.images or brought.captures)
        if brought.safe:
            self._mark(brought.safe, result, warnings)

    def _by_module(self, archive: Archive, batch: fetch_plan.Batch) -> tuple[ingest.Packed, ingest.Ingested]:
        """Packed on the host's disk, and fetched from there."""
        transfer.check_room(archive.root, 2 * batch.size)
        packed = ingest.read_packed(self._step("pack", **batch.request()), batch)
        transfer.check_room(archive.root, 2 * sum(packed.members.values()))
        with archive.incoming() as aside:
            file = aside / "transfer.tar.gz"
            self._get(packed, file)
            return packed, ingest.ingest(archive, batch, packed, file, aside)

    def _get(self, packed: ingest.Packed, file: Path) -> None:
        """Fetch the packed file from where we told the target to put it, and no more bytes than it has announced."""
        source = self._connection._shell.join_path(self._staging, ingest.PACKED_NAME)
        try:
            with _file_size_limit(packed.size + 1):
                self._connection.fetch_file(source, str(file))
        except AnsibleConnectionFailure:
            raise  # the host is unreachable, and Ansible has to know
        except AnsibleError as exc:
            raise TransferError(f"cannot fetch {source}: {exc}") from exc
        if not file.is_file():
            raise TransferError(f"{source} did not arrive, although the connection reported no error")

    def _mark(self, safe: list[fetch_plan.Found], result: dict[str, Any], warnings: list[str]) -> None:
        if self._session is None:
            answer = self._step("mark", dumps=[found.mark() for found in safe])
        else:
            answer = streamed.mark(self._session, safe, self._args["delete_collected"])
        result["collected"] += int(answer["collected"])
        result["changed"] = result["changed"] or bool(answer["collected"])
        warnings += [f"{self._host}: {str(problem)[:500]}" for problem in answer["problems"]]

    def _summary(self, result: dict[str, Any]) -> str:
        would = "would bring " if self._task.check_mode else ""
        if not result["captures"] and not result["images"]:
            return f"{self._host}: {'no new captures' if not would else would + 'no captures'}"
        units = Counter(capture["unit"] for capture in result["captures"])
        of_units = ", ".join(f"{count} captures of {unit}" for unit, count in sorted(units.items())) or "0 captures"
        network = f" ({as_text(result['transferred'])} over the network)" if result["transferred"] else ""
        return f"{self._host}: {would}{of_units}, {as_text(result['bytes'])}{network}, {len(result['images'])} images"


def _brief(facts: dict[str, Any]) -> dict[str, Any]:
    """A capture as the task's result shows it."""
    return {
        "unit": facts["unit"],
        "host": facts["host"],
        "name": facts["dump"]["name"],
        "process": facts["process"]["key"],
        "size": facts["dump"]["size"],
        "time": facts["dump"]["time"],
    }


@contextmanager
def _file_size_limit(limit: int) -> Iterator[None]:
    """While it is in force, neither this process nor one that it starts can write a file beyond the limit (bytes).

    What brings the file (sftp, scp) takes whatever the target sends; a target must not be able to fill our disk.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    wanted = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(resource.RLIMIT_FSIZE, (wanted, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
