# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The controller's half of heap_fetch: decide what is new, bring it, and tell the target what is safe."""

from __future__ import annotations

import functools
import resource
import shlex
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ..module_utils.formats.capture_facts import CaptureFacts
from ..module_utils.formats.errors import OffheapError
from ..plugin_utils.archive.archive import Archive
from ..plugin_utils.base import libraries
from ..plugin_utils.base.byte_size import as_text
from ..plugin_utils.base.options import from_here
from ..plugin_utils.fetch import ingest, unpack_tar
from ..plugin_utils.fetch import plan as fetch_plan
from ..plugin_utils.fetch import stream as streamed
from ..plugin_utils.fetch.host_session import PasswordRefused, ProcessStream, Session, SessionError, command
from ..plugin_utils.fetch.unpack_tar import TransferError

_MODULE = "offheap.profiler.heap_fetch"
_ARGUMENTS: dict[str, dict[str, Any]] = {
    "archive": {"type": "path", "required": True},
    "units": {"type": "list", "elements": "str", "default": []},
    "delete_collected": {"type": "bool", "default": False},
    "max_batch": {"type": "bytes", "default": "512M"},
    "max_dump": {"type": "bytes", "default": "256M"},
    "max_image": {"type": "bytes", "default": "1G"},
    "max_captures": {"type": "int", "default": 5000},
    "label": {"type": "str", "default": ""},
}
#: what stays free on the target's file system while a batch lies there
_RESERVE = 32 << 20

#: seconds without a word while ssh connects (it has its own limit) and sudo and Python begin
_BEGIN_PATIENCE = 60.0
#: ssh's own exit status when there is no connection
_NO_CONNECTION = 255
_SUDO_FLAGS = "-H -S -n"
#: 30 s without an answer
_KEEP_ALIVE = "-o ServerAliveInterval=10 -o ServerAliveCountMax=3"

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
        self._host = str(self._task.delegate_to or self._task_vars["inventory_hostname"])
        root = from_here(self._args["archive"])
        result.update(changed=False, archive=str(root), captures=[], images=[], bytes=0, transferred=0, collected=0)
        warnings: list[str] = []
        self._finished = False
        try:
            libraries.require("zstandard")
            _prepare(self._connection)
            with _session(self._connection, self._python()) as session:
                self._session = session
                result["streamed"] = session is not None
                self._fetch(root, result, warnings)
        except OffheapError as exc:
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
        unpack_tar.check_room(archive.root, 2 * batch.size)
        packed = ingest.read_packed(self._step("pack", **batch.request()), batch)
        unpack_tar.check_room(archive.root, 2 * sum(packed.members.values()))
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


def _brief(facts: CaptureFacts) -> dict[str, Any]:
    """A capture as the task's result shows it."""
    return {
        "unit": facts.unit,
        "host": facts.host,
        "name": facts.dump.name,
        "process": facts.process.key,
        "size": facts.dump.size,
        "time": facts.dump.time,
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


def _prepare(connection: Any) -> None:
    """Let OpenSSH notice a host that is gone without a word, and not compress what is compressed already.

    By itself it waits for ever for more to come, and what the user has said of that stays. Ansible's own default is to
    compress (C(-C)); it has its effect where no earlier task has opened the connection.
    """
    if connection.transport != "ssh":
        return
    options = ["ssh_args", "ssh_common_args", "ssh_extra_args"]
    texts = {option: str(connection.get_option(option) or "") for option in options}
    if not any("serveralive" in text.lower() for text in texts.values()):
        connection.set_option("ssh_common_args", f"{texts['ssh_common_args']} {_KEEP_ALIVE}".strip())
    connection.set_option("ssh_args", shlex.join(word for word in shlex.split(texts["ssh_args"]) if word != "-C"))


def _session(connection: Any, python: str) -> AbstractContextManager[Session | None]:
    """A session over the task's connection. A module costs a host more of its processor, and a file on its disk.

    C(python) is the host's interpreter. It is None where it needs what only Ansible's own modules can, or where they
    may have more luck. Raises AnsibleConnectionFailure, and PasswordRefused when sudo does not take the password.
    """
    return (_begun(connection, python) if _is_plain(connection) else None) or nullcontext()


def _is_plain(connection: Any) -> bool:
    """OpenSSH without a password, and nobody else than the login user, or sudo as it is by default."""
    if connection.transport != "ssh" or connection.get_option("password") or connection._play_context.password:
        return False
    become = connection.become
    return become is None or (
        become.name == "sudo"
        and become.get_option("become_exe") == "sudo"
        and become.get_option("become_flags") == _SUDO_FLAGS
    )


def _begun(connection: Any, python: str) -> Session | None:
    become = connection.become
    user, password = (become.get_option(name) if become else None for name in ("become_user", "become_pass"))
    line, ready, prompt = command(python, become is not None, user or "root")
    connection.host = connection.get_option("host")
    executable = connection.get_option("ssh_executable")
    # What ssh itself says must not get between the answers, so only the host's errors are in them.
    arguments = connection._build_command(executable, "ssh", connection.host, f"{line} 2>&1")
    with tempfile.TemporaryFile() as said:
        stream = ProcessStream(arguments, _BEGIN_PATIENCE, said)
        try:
            return Session(stream, ready, prompt, lambda: password)
        except PasswordRefused:
            raise
        except SessionError as error:
            if stream.status != _NO_CONNECTION or connection.get_option("reconnection_retries"):
                return None  # the modules find another Python, say what is wrong in Ansible's words, or try again
            said.seek(0)
            reason = said.read().decode("utf-8", "replace").strip() or error
            raise AnsibleConnectionFailure(f"Failed to connect to the host via ssh: {reason}") from None
