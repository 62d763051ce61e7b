# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Sends an archive's profiles to Pyroscope or by OTLP, and its growth to Prometheus, from the controller."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ..module_utils.formats import unit_name
from ..module_utils.formats.errors import OffheapError
from ..plugin_utils.archive import far_archive
from ..plugin_utils.archive.archive import Archive
from ..plugin_utils.archive.capture import Capture
from ..plugin_utils.base import libraries, output_file, progress
from ..plugin_utils.base.options import from_here
from ..plugin_utils.columns.series_reader import Reader, reading
from ..plugin_utils.export import otlp, pprof
from ..plugin_utils.leaks import ranking
from ..plugin_utils.leaks.scope import Scope
from ..plugin_utils.model.samples import Samples
from ..plugin_utils.publish import otlp_collector, prometheus, push, pyroscope
from ..plugin_utils.publish.profile_server import Server, ServerError

_ARGUMENTS: dict[str, dict[str, Any]] = {
    "archive": {"type": "path", "required": True},
    "units": {"type": "list", "elements": "str", "default": []},
    "hosts": {"type": "list", "elements": "str", "default": []},
    "pyroscope_url": {"type": "str"},
    "pyroscope_tenant": {"type": "str", "default": ""},
    "pyroscope_headers": {"type": "dict", "default": {}, "no_log": True},
    "otlp_url": {"type": "str"},
    "otlp_headers": {"type": "dict", "default": {}, "no_log": True},
    "attempts": {"type": "int", "default": 4},
    "timeout": {"type": "int", "default": 30},
    "max_profiles": {"type": "int", "default": 100},
    "textfile": {"type": "path"},
    "required": {"type": "bool", "default": True},
    "cluster": {"type": "str", "default": ""},
}

display = Display()


class ActionModule(ActionBase):
    """Reads the archive and connects to no host."""

    _requires_connection = False
    _supports_check_mode = True
    _supports_async = False
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _validation, arguments = self.validate_argument_spec(_ARGUMENTS)  # type: ignore[no-untyped-call]
        warnings: list[str] = []
        failures: list[str] = []
        result.update(changed=False, pushed=0, left=0)
        if not any(arguments[name] for name in ("pyroscope_url", "otlp_url", "textfile")):
            raise AnsibleActionFail("leak_push has nowhere to send to: set pyroscope_url, otlp_url or textfile")
        if not (arguments["textfile"] or ".prom").endswith(".prom"):
            raise AnsibleActionFail(f"nobody would read {arguments['textfile']}: a textfile's name must end with .prom")
        try:
            libraries.require(*libraries.JUDGING, "google.protobuf", "prometheus_client", "urllib3")
            units = [unit_name.service(unit) for unit in arguments["units"]]
            archive = far_archive.opened(arguments["archive"])
        except OffheapError as error:
            raise AnsibleActionFail(str(error)) from None
        # If one fails, the others still run.
        parts: list[tuple[str | None, Callable[..., None]]] = [
            (arguments["pyroscope_url"], partial(self._push, "pyroscope", _to_pyroscope)),
            (arguments["otlp_url"], partial(self._push, "otlp", _by_otlp)),
            (arguments["textfile"], self._write),
        ]
        for wanted, part in parts:
            try:
                if wanted:
                    part(archive, units, arguments, result, warnings)
            except (OffheapError, OSError) as error:
                failures.append(str(error))
                result["failed"] = arguments["required"]
        warnings += failures
        sent = f"{result['pushed']} profiles sent, {result['left']} left"
        result["msg"] = "; ".join([*failures, sent])
        if warnings:
            result["warnings"] = list(dict.fromkeys(warnings))
        return result

    def _push(
        self,
        kind: str,
        send: Callable[[Server, Reader, Capture, list[Capture]], None],
        archive: Archive,
        units: list[str],
        arguments: dict[str, Any],
        result: dict[str, Any],
        problems: list[str],
    ) -> None:
        """Send what a server of this kind lacks. Raises ServerError."""
        url = arguments[f"{kind}_url"]
        headers = {str(name): str(value) for name, value in arguments[f"{kind}_headers"].items()}
        tries, seconds = max(arguments["attempts"], 1), max(arguments["timeout"], 1)
        server = (
            Server(url, arguments["pyroscope_tenant"], headers, tries, seconds)
            if kind == "pyroscope"
            else otlp_collector.collector(url, headers, tries, seconds)
        )
        server.check()
        wanted = push.wanted(archive, server, Scope(units, arguments["hosts"]), problems.append)
        if self._task.check_mode or not wanted:
            result["left"] += len(wanted)
            result["changed"] |= bool(wanted)
            return
        with reading(archive, problems.append) as reader:
            done = push.push(archive, server, wanted, arguments["max_profiles"], partial(send, server, reader))
            result["changed"] |= bool(done.sent)
            result["pushed"] += done.sent
            result["left"] += done.left
            problems += done.problems
        if done.failure:
            raise ServerError(done.failure, True)

    def _write(
        self, archive: Archive, units: list[str], arguments: dict[str, Any], result: dict[str, Any], problems: list[str]
    ) -> None:
        told = progress.for_people(lambda text: display.display(text, stderr=True))
        scope = Scope(units, arguments["hosts"])
        leaks, watched = ranking.rank(
            archive, problems.append, scope, self._task.check_mode, told, arguments["cluster"]
        )
        content = prometheus.render(leaks, watched)
        changed = output_file.write(from_here(arguments["textfile"]), content, True, self._task.check_mode)
        result["changed"] = result["changed"] or changed


def _to_pyroscope(server: Server, reader: Reader, capture: Capture, process: list[Capture]) -> None:
    pyroscope.push(server, capture, pprof.render(*_samples(reader, capture, process)))


def _by_otlp(server: Server, reader: Reader, capture: Capture, process: list[Capture]) -> None:
    whose = (capture.host, capture.unit, capture.process, capture.time, capture.facts.dump.sha256)
    identity = " ".join(map(str, whose))
    resource = otlp_collector.resource_of(capture)
    otlp_collector.push(server, otlp.render(*_samples(reader, capture, process), resource, identity))


def _samples(reader: Reader, capture: Capture, process: list[Capture]) -> tuple[Samples, pprof.About]:
    executable = capture.facts.process.exe or next((image.path for image in capture.images), "")
    return reader.samples(capture, reader.maps(process)), pprof.About(capture.time, executable)
