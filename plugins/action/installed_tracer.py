# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""async-profiler's library on a host: the controller's file is compared, unpacked and sent from memory."""

from __future__ import annotations

import hashlib
import io
import os
import re
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ..plugin_utils.base.options import from_here

_ARGUMENTS: dict[str, dict[str, Any]] = {
    "src": {"type": "path", "required": True},
    "checksum": {"type": "str", "required": True},
    "path": {"type": "path", "required": True},
}
_INSIDE = re.compile(r"[^/]+/lib/libasyncProfiler\.so")


def library_of(file: Path, checksum: str) -> bytes:
    """The library that a file is, or that it holds as a release's tarball. The file is read once: nobody can swap it
    after it was compared. Raises AnsibleActionFail."""
    try:
        content = file.read_bytes()
        found = hashlib.sha256(content).hexdigest()
        if found != checksum:
            raise AnsibleActionFail(f"{file} has the SHA-256 {found}; wanted is {checksum}.")
        if file.suffix == ".so":
            return content
        with tarfile.open(fileobj=io.BytesIO(content)) as tar:
            for member in filter(tarfile.TarInfo.isreg, tar):
                if _INSIDE.fullmatch(member.name):
                    return tar.extractfile(member).read()  # type: ignore[union-attr]
    except (OSError, tarfile.TarError) as error:
        raise AnsibleActionFail(f"{file} cannot be read: {error}") from None
    raise AnsibleActionFail(f"{file} holds no lib/libasyncProfiler.so: it is no release of async-profiler.")


class ActionModule(ActionBase):
    """Sends the library to the host; in check mode, says whether it would."""

    _supports_check_mode = True
    _supports_async = False
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _validation, arguments = self.validate_argument_spec(_ARGUMENTS)  # type: ignore[no-untyped-call]
        library = library_of(from_here(arguments["src"]), arguments["checksum"])
        path, owner = arguments["path"], {"owner": "root", "group": "root"}
        directory = {"path": os.path.dirname(path), "state": "directory", "mode": "0755", **owner}
        made = self._module("file", directory, task_vars)
        if made["changed"] and self._task.check_mode:
            return {**result, "changed": True}
        with tempfile.NamedTemporaryFile() as file:
            file.write(library)
            file.flush()
            sent = (self._connection._shell.tmpdir or self._make_tmp_path()) + os.path.basename(path)
            self._transfer_file(file.name, sent)  # type: ignore[no-untyped-call]
        asked = {"src": sent, "dest": path, "remote_src": True, "mode": "0644", **owner}
        return {**result, "changed": self._module("copy", asked, task_vars)["changed"] or made["changed"]}

    def _module(self, name: str, arguments: dict[str, Any], task_vars: dict[str, Any] | None) -> dict[str, Any]:
        name = f"ansible.builtin.{name}"
        done: dict[str, Any] = self._execute_module(module_name=name, module_args=arguments, task_vars=task_vars)
        if done.get("failed"):
            raise AnsibleActionFail(str(done.get("msg")))
        return done
