# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The controller's half of heap_fetch: a way to the host, and the outcome in Ansible's terms."""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ..module_utils.formats.capture_facts import CaptureFacts
from ..module_utils.formats.errors import OffheapError
from ..plugin_utils.archive import far_archive
from ..plugin_utils.archive.archive import Archive
from ..plugin_utils.archive.object_store import is_address
from ..plugin_utils.base import libraries
from ..plugin_utils.base.byte_size import as_text
from ..plugin_utils.base.options import from_here, size
from ..plugin_utils.driver import told_options
from ..plugin_utils.fetch import ansible_ssh, ingest, unpack_tar
from ..plugin_utils.fetch.collect import Collected, CollectError, Transport, Wanted, collect
from ..plugin_utils.fetch.host_session import Session
from ..plugin_utils.fetch.plan import Batch, Found
from ..plugin_utils.fetch.stream import SessionTransport
from ..plugin_utils.fetch.unpack_tar import TransferError
from ..plugin_utils.model.raw import Told

_MODULE = "offheap.profiler.heap_fetch"
_ARGUMENTS: dict[str, dict[str, Any]] = {
    "archive": {"type": "path", "required": True},
    "units": {"type": "list", "elements": "str", "default": []},
    "delete_collected": {"type": "bool", "default": False},
    "max_batch": {"type": size, "default": "512M"},
    "max_dump": {"type": size, "default": "256M"},
    "max_image": {"type": size, "default": "1G"},
    "max_captures": {"type": "int", "default": 5000},
    "label": {"type": "str", "default": ""},
    **told_options.ARGUMENTS,
}

display = Display()


class ActionModule(ActionBase):
    """Works over a session if possible, else by the steps of the module of the same name."""

    _supports_check_mode = True
    _supports_async = False
    _finished = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        self._task_vars = task_vars or {}
        _validation, self._args = self.validate_argument_spec(_ARGUMENTS)  # type: ignore[no-untyped-call]
        host = str(self._task.delegate_to or self._task_vars["inventory_hostname"])
        name = self._args["archive"]
        result["archive"] = name if is_address(name) else str(from_here(name))
        self._finished = False
        try:
            libraries.require("zstandard")
            ansible_ssh.prepare(self._connection)
            with ansible_ssh.session(self._connection, self._python()) or nullcontext() as session:
                result["streamed"] = session is not None
                collected = self._collect(host, session)
        except ansible_ssh.Unreachable as error:
            raise AnsibleConnectionFailure(str(error)) from None
        except CollectError as error:
            # Ansible prints the whole result of a failure, so there is nothing in it but the sentence.
            collected = error.so_far
            result.update(failed=True, msg=str(error), changed=collected.changed)
        except OffheapError as error:
            collected = Collected()
            result.update(failed=True, msg=str(error), changed=False)
        else:
            result.update(_as_result(collected), summary=f"{host}: {_summary(collected, self._task.check_mode)}")
        self._finished = True
        if collected.warnings:
            result["warnings"] = [f"{host}: {warning}" for warning in collected.warnings]
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
            display.warning(f"{left} may remain on the host until the next run finds it: {exc}")

    def _python(self) -> str:
        """The host's interpreter, if Ansible knows it already."""
        facts = self._task_vars.get("ansible_facts", {})
        wanted = str(self._templar.template(self._task_vars.get("ansible_python_interpreter", "auto")))
        return str(facts.get("discovered_interpreter_python", "python3")) if wanted.startswith("auto") else wanted

    def _collect(self, host: str, session: Session | None) -> Collected:
        args, check_mode = self._args, bool(self._task.check_mode)
        archive = far_archive.created(args["archive"], check_mode)
        wanted = Wanted(
            host, args["max_batch"], args["max_dump"], args["max_image"], args["label"], args["max_captures"]
        )
        transport = self._transport(session, check_mode)
        return collect(transport, archive, wanted, check_mode, lambda text: display.display(f"{host}: {text}"))

    def _transport(self, session: Session | None, check_mode: bool) -> Transport:
        told = told_options.told(self._args)
        if session is None:
            # Owned by the login user, and removed by the base class's cleanup.
            staging = str(self._connection._shell.tmpdir or self._make_tmp_path())
            return ModuleTransport(self._execute, self._connection, staging, told)
        units, max_dump, max_captures = (self._args[name] for name in ("units", "max_dump", "max_captures"))
        delete = self._args["delete_collected"]
        return SessionTransport(session, units, max_dump, max_captures, not check_mode, delete, told=told)

    def _execute(self, step: str, request: dict[str, Any]) -> dict[str, Any]:
        # None is not among an option's choices: what was not given stays away.
        given = {name: value for name, value in self._args.items() if value is not None}
        answer: dict[str, Any] = self._execute_module(
            module_name=_MODULE,
            module_args={**given, "step": step, "request": request},
            task_vars=self._task_vars,
        )
        return answer


@dataclass(frozen=True)
class ModuleTransport:
    """A transport by the steps of the module, which packs on the host's disk, in ``staging``; the file is fetched from
    there.

    ``execute`` runs a step with its request on the host and returns the module's result. ``told`` is what the user says
    of offered profiles. Failures raise TransferError or AnsibleConnectionFailure.
    """

    execute: Callable[[str, dict[str, Any]], dict[str, Any]]
    connection: Any
    staging: str
    told: Told | None = None

    def find(self) -> dict[str, Any]:
        return self._step("list")

    def bring(self, archive: Archive, batch: Batch) -> tuple[ingest.Packed, ingest.Ingested]:
        unpack_tar.check_room(archive.root, 2 * batch.size)
        packed = ingest.read_packed(self._step("pack", **batch.request()), batch)
        unpack_tar.check_room(archive.root, 2 * sum(packed.members.values()))
        with archive.incoming() as aside:
            file = aside / "transfer.tar"
            self._get(packed, file)
            return packed, ingest.ingest(archive, batch, packed, file, aside, self.told)

    def mark(self, safe: Sequence[Found]) -> dict[str, Any]:
        return self._step("mark", dumps=[found.mark() for found in safe])

    def _step(self, step: str, **request: Any) -> dict[str, Any]:
        answer = self.execute(step, {"staging": self.staging, **request})
        if "module_stdout" in answer:
            said = " / ".join(f"{answer['module_stdout']}\n{answer.get('module_stderr', '')}".split("\n")[:3])[:500]
            raise TransferError(
                f"no module could run on the host, which said: {said}. It needs Python 3.8 or later"
                " (ansible_python_interpreter). If sudo there wants a terminal (requiretty), exempt the login user in"
                " sudoers, or switch pipelining off (ANSIBLE_PIPELINING=false)"
            )
        if answer.get("failed"):
            raise TransferError(str(answer.get("msg") or f"the step {step} failed on the host: {answer}"))
        return answer

    def _get(self, packed: ingest.Packed, file: Path) -> None:
        """Fetch the packed file from where the target was told to put it, and no more bytes than announced."""
        source = self.connection._shell.join_path(self.staging, ingest.PACKED_NAME)
        try:
            with _file_size_limit(packed.size + 1):
                self.connection.fetch_file(source, str(file))
        except AnsibleConnectionFailure:
            raise  # Ansible has to know that the host is unreachable
        except AnsibleError as exc:
            raise TransferError(f"cannot fetch {source}: {exc}") from exc
        if not file.is_file():
            raise TransferError(f"{source} did not arrive, although the connection reported no error")


def _as_result(collected: Collected) -> dict[str, Any]:
    """The outcome, as the task's result shows it."""
    result: dict[str, Any] = {
        "changed": collected.changed,
        "captures": [_brief(facts) for facts in collected.captures],
        "images": collected.images,
        "bytes": collected.bytes,
        "transferred": collected.transferred,
        "collected": collected.marked,
    }
    listing = collected.listing
    if listing is not None:
        result.update(listing.others, absent=listing.absent, left=listing.left, missing_images=listing.missing_images)
    return result


def _brief(facts: CaptureFacts) -> dict[str, Any]:
    return {
        "unit": facts.unit,
        "host": facts.host,
        "name": facts.dump.name,
        "process": facts.process.key,
        "size": facts.dump.size,
        "time": facts.dump.time,
    }


def _summary(collected: Collected, check_mode: bool) -> str:
    would = "would bring " if check_mode else ""
    if not collected.captures and not collected.images:
        return f"{would}no captures" if would else "no new captures"
    units = Counter(facts.unit for facts in collected.captures)
    of_units = (
        ", ".join(f"{count} capture{'s' * (count != 1)} of {unit}" for unit, count in sorted(units.items()))
        or "0 captures"
    )
    network = f" ({as_text(collected.transferred)} over the network)" if collected.transferred else ""
    return f"{would}{of_units}, {as_text(collected.bytes)}{network}, {len(collected.images)} images"


@contextmanager
def _file_size_limit(limit: int) -> Iterator[None]:
    """Until it ends, neither this process nor its children can write a file beyond the limit (bytes).

    The fetching program (sftp, scp) takes whatever the target sends, and a target must not be able to fill our disk.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    wanted = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(resource.RLIMIT_FSIZE, (wanted, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
