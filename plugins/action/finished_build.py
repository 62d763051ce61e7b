# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Builds of jemalloc and the agent: made on the controller for all, or on a host, or taken from an archive."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.metadata
import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.module_utils.urls import open_url
from ansible.plugins.action import ActionBase

from ..plugin_utils.base import durable
from ..plugin_utils.base.options import from_here
from ..plugin_utils.fetch import ansible_ssh

_ARGUMENTS: dict[str, dict[str, Any]] = {
    "places": {"type": "dict", "required": True},
    "method": {"type": "str", "required": True, "choices": ["auto", "cross", "build", "archive"]},
    "hosts": {"type": "dict", "required": True},
    "build_host": {"type": "str", "default": ""},
    "cache": {"type": "path", "required": True},
    "archive": {"type": "path", "default": ""},
    "archive_checksums": {"type": "dict", "default": {}},
    "files": {"type": "path", "required": True},
    "cross": {"type": "dict", "required": True},
    "version": {"type": "str", "required": True},
    "source": {"type": "str", "required": True},
    "checksum": {"type": "str", "required": True},
    "patches": {"type": "dict", "required": True},
    "configure_options": {"type": "list", "elements": "str", "required": True},
    "cflags": {"type": "str", "required": True},
}
_SECONDS = 60  # of silence in a download
_MUSL = "-musl"  # ends the name of a part and of its directory
_PINNED = {"library": "lib/libjemalloc.so.2", "agent": "liboffheap.so"}


class Build:
    """The library or the agent for a host, and what is called after it. Refuses by AnsibleActionFail."""

    def __init__(self, options: dict[str, Any], part: str, host: str) -> None:
        self.options, self.host, self.path = options, host, options["places"][part]
        self.part, self.is_musl = part.removesuffix(_MUSL), part.endswith(_MUSL)
        self.files, self.cache = Path(options["files"]), from_here(options["cache"])
        self.is_library = self.part == "library"
        self.name = os.path.basename(self.path).removesuffix(_MUSL if self.is_musl else "")
        self.platform: dict[str, Any] = options["hosts"][host]["platform"]
        self.wanting = [name for name, found in options["hosts"].items() if self._lacks_it(found)]
        self.what = f"jemalloc {self.name.partition('-')[0]}" if self.is_library else "the agent"
        self.what += " for containers with musl" if self.is_musl else ""
        self.stem = f"{'jemalloc' if self.is_library else 'agent'}-{self.name}"
        self.libc = ".".join(map(str, self.platform["libc_version"]))
        sums = json.loads((self.files / "cross_checksums.json").read_text())
        self.carried: str = sums.get(f"{self.stem}-{self.key}", "")
        self.method: str = options["method"]
        if self.is_musl:
            # No host can build it, and what the controller cannot is not installed: the unit is refused then.
            self.method = "cross" if self.carried and not self._lacks_compiler() else ""
        elif self.method == "auto":
            # What the collection has a checksum for, the controller builds; anything else, the host.
            own = self.carried and self._libc_will_do() and not options["build_host"] and not self._lacks_compiler()
            self.method = "cross" if own else "build"
        self.tarball = self._tarball()

    @property
    def key(self) -> str:
        """The platform that it is built for: the host's, but for the C library of containers with musl."""
        key = str(self.platform["key"])
        return key.replace("glibc", "musl", 1) if self.is_musl else key

    def _lacks_it(self, found: Any) -> bool:
        """Whether that is of a host of the same platform without the build. It says so itself, in any words."""
        try:
            return bool(found["platform"]["key"] == self.platform["key"] and self.path in found["missing"])
        except (LookupError, TypeError):
            return False

    def _tarball(self) -> Path | None:
        """The place of the finished build on the controller; None for one that stays on its host."""
        if self.method == "archive":
            archive = from_here(self.options["archive"])
            if self.is_library:
                return archive
            # The one that was built with the archive is beside it.
            beside = f"{self.stem}-{self.key}-*.tar.gz"
            return min(archive.parent.glob(beside), default=archive.parent / beside)
        maker = "cross" if self.method == "cross" else self.options["build_host"]
        return self.cache / f"{self.stem}-{self.key}-{maker}.tar.gz" if maker else None

    @property
    def record(self) -> dict[str, Any]:
        """What its record says of how it was made."""
        libc = self.options["cross"]["libc"] if self.method == "cross" else self.libc
        facts = {"platform": self.key, "libc_version": "" if self.is_musl else libc}
        if not self.is_library:
            return {**facts, "version": self.name}
        names = ("version", "patches", "configure_options", "cflags")
        return {**facts, "source_sha256": self.options["checksum"], **{name: self.options[name] for name in names}}

    def is_finished(self) -> bool:
        """Whether it lies on the controller. Its record is written last: a tarball without one does not count, nor does
        a record whose tarball somebody has removed."""
        return self.tarball is not None and self.tarball.is_file() and Path(f"{self.tarball}.json").is_file()

    def _libc_will_do(self) -> bool:
        if self.is_musl:
            return True
        needed = tuple(map(int, self.options["cross"]["libc"].split(".")))
        return needed <= tuple(map(int, self.platform["libc_version"]))

    def _lacks_compiler(self) -> bool:
        try:
            return importlib.metadata.version("ziglang") != str(self.options["cross"]["compiler"])
        except importlib.metadata.PackageNotFoundError:
            return True

    @property
    def _zig(self) -> str:
        return f"{sys.executable} -m pip install ziglang=={self.options['cross']['compiler']}"

    def refuse_archive(self) -> None:
        """One that is not there, or whose checksum nobody has given."""
        if self.tarball is None or not self.tarball.is_file():
            raise AnsibleActionFail(f"There is no file {self.tarball} on the controller.")
        if not re.fullmatch("[0-9a-f]{64}", self.options["archive_checksums"].get(self.part, "")):
            raise AnsibleActionFail(
                f"The SHA-256 of {self.tarball} is not given. It is in the file {self.tarball.name}.json, which the"
                f" build left beside it. Set jemalloc_{'archive' if self.is_library else 'agent'}_checksum to it."
            )

    def refuse_cache(self) -> None:
        """One that others can write to: root on each host preloads what lies there."""
        try:
            found = self.cache.lstat()
        except FileNotFoundError:
            return
        foreign = found.st_uid not in (0, os.geteuid()) or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if foreign or not stat.S_ISDIR(found.st_mode):
            raise AnsibleActionFail(
                f"Others than user {os.geteuid()} can write to {self.cache} on the controller (jemalloc_cache; mode"
                f" {stat.S_IMODE(found.st_mode):04o}, user {found.st_uid}), and what lies there is preloaded on the"
                " hosts. Remove it, or set offheap_cache to a directory that is yours alone."
            )

    def refuse_controller(self) -> None:
        """One that cannot build for this host."""
        cross = self.options["cross"]
        if self.key not in cross["targets"] or not self._libc_will_do():
            raise AnsibleActionFail(
                f"The controller cannot build {self.what} for {self.key} with glibc {self.libc}. It can for"
                f" {', '.join(cross['targets'])}, from glibc {cross['libc']} on. Let the host build for itself"
                " (jemalloc_method=build)."
            )
        # Nobody can set an option of the agent, so each has a checksum; a library with options of one's own has none.
        if not self.is_library and not self.carried:
            raise AnsibleActionFail(
                f"The collection has no checksum of {self.stem}-{self.key}, so the agent's sources in"
                f" {self.files}/agent are not those that it came with. Install the collection anew (ansible-galaxy"
                " collection install --force offheap.profiler)."
            )
        lacking = [tool for tool in ("make", "patch") if not shutil.which(tool)]
        lacking += ["ziglang"] if self._lacks_compiler() else []
        if lacking and not self.is_finished():
            hosts = " Or let each host build for itself (jemalloc_method=build), which takes gcc and make there."
            raise AnsibleActionFail(
                f"The controller cannot build {self.what}: it lacks {' and '.join(lacking)}. Install what is missing"
                f" (apt-get install make patch, or dnf; {self._zig}).{'' if self.is_musl else hosts}"
            )

    def refuse_build_host(self) -> None:
        """One that is not in the play, or is of another platform than this host."""
        named, hosts = self.options["build_host"], self.options["hosts"]
        platform = hosts[named]["platform"]["key"] if named in hosts else ""
        if platform != self.key:
            raise AnsibleActionFail(
                f"jemalloc_build_host is {named}, "
                + (
                    f"whose platform is not this host's ({platform}, {self.key})"
                    if named in hosts
                    else "which is not among the hosts of this play, or failed in it"
                )
                + f", so it cannot build {self.what} for this one. Name another host, include it (--limit), or let each"
                " host build for itself (no jemalloc_build_host)."
            )

    def refuse_host(self, has_compiler: bool) -> None:
        """One without a compiler, and a controller that cannot patch what the host is to build."""
        if not has_compiler:
            instead = "use a library that is already on the hosts (jemalloc_method=reuse)"
            if not self.is_library:
                instead = "do without the agent (jemalloc_agent=false)"
            wanting = ", ".join(self.wanting) if self.tarball else "itself"
            raise AnsibleActionFail(
                f"{self.host} has no compiler (gcc and make are needed) to build {self.what} for {wanting}. Have the"
                f" controller build it, which needs a compiler there and none here ({self._zig}). Or install both here"
                " (Debian: apt-get install gcc make libc6-dev; Red Hat: dnf install gcc make), name a host that has one"
                " and the oldest C library in jemalloc_build_host, use a build made elsewhere"
                f" (jemalloc_method=archive), or {instead}."
            )
        if self.is_library and not shutil.which("patch"):
            raise AnsibleActionFail(
                f"The controller has no patch, which puts our patches into the source of {self.what} (apt-get"
                " install patch, or dnf)."
            )

    def sources(self) -> Path:
        """A tarball of the patched release, or the agent's directory, on the controller.

        A release is patched exactly as it was when the patch was made, or not at all; and each time, since only the
        release has a checksum.
        """
        if not self.is_library:
            return self.files / "agent"
        version, checksum, release = (self.options[name] for name in ("version", "checksum", "source"))
        if re.match("[a-z]+://", release):
            release = downloaded(release, self.cache / f"jemalloc-{version}.tar.bz2", checksum)
        elif not from_here(release).is_file():
            raise AnsibleActionFail(f"There is no file {release} on the controller (jemalloc_source).")
        made = self.cache / f"{self.stem}-source.tar"
        patches = sorted(self.files / "patches" / version / name for name in self.options["patches"])
        script = [self.files / "patched_source.sh", sys.executable, from_here(release), checksum, f"jemalloc-{version}"]
        _run(["sh", *script, made, *patches])
        return made

    def installed(self) -> dict[str, Any]:
        """How installed_build is to install it."""
        # Whatever lay in the cache, and whatever its record says.
        pinned = {_PINNED[self.part]: self.carried} if self.method == "cross" and self.carried else {}
        sha256 = self.options["archive_checksums"][self.part] if self.method == "archive" else ""
        return {"path": self.path, "tarball": str(self.tarball), "sha256": sha256, "pinned": pinned}

    def asked(self, source: str, result: str) -> dict[str, Any]:
        """What cross_build.py is to do."""
        page = int(self.platform["page_size"]).bit_length() - 1
        crosses = self.method == "cross"
        return {
            "part": self.part,
            "source": source,
            "target": self.options["cross"]["targets"][self.key] if crosses else "",
            "options": [f"--with-lg-page={page}", *self.options["configure_options"]],
            "cflags": self.options["cflags"],
            "place": self.path,
            "result": result,
            "sha256": self.carried if crosses else "",
            "record": self.record,
        }


def downloaded(url: str, release: Path, checksum: str) -> str:
    """The release's file in the cache, which may be there. Raises AnsibleActionFail, with how to do without."""
    if release.is_file() and hashlib.sha256(release.read_bytes()).hexdigest() == checksum:
        return str(release)
    try:
        with open_url(url, timeout=_SECONDS) as answer:
            release.write_bytes(answer.read())
    except (OSError, HTTPException) as error:
        raise AnsibleActionFail(
            f"The controller cannot download {url}: Request failed: {error}. Fetch that file where there is a network,"
            f" copy it to the controller, and pass its path: -e jemalloc_source=/path/to/{release.name}. Or let the"
            " controller have https_proxy in its environment."
        ) from None
    return str(release)


def _run(command: Sequence[str | Path], said: str = "") -> None:
    """Run a program of the role. Raises AnsibleActionFail with what it says."""
    done = subprocess.run(command, input=said, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        raise AnsibleActionFail(f"{done.stdout[-2000:]}{done.stderr}".strip())


@contextlib.contextmanager
def alone(cache: Path) -> Iterator[None]:
    """Work in the cache while no other host's task does."""
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    held = os.open(cache, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


class ActionModule(ActionBase):
    """Builds as the login user. What a host builds for itself alone stays there and is installed."""

    _supports_check_mode = True
    _supports_async = False
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _validation, options = self.validate_argument_spec(_ARGUMENTS)  # type: ignore[no-untyped-call]
        told: list[str] = []
        result.update(changed=False, builds=[])
        for part in options["places"]:
            build = Build(options, part, (task_vars or {})["inventory_hostname"])
            if not build.method:
                continue
            try:
                told += self._finished(build, task_vars or {})
            except (OSError, subprocess.SubprocessError) as error:
                raise AnsibleActionFail(f"{build.what} cannot be built: {error}") from None
            if build.tarball and build.host in build.wanting:
                result["builds"].append(build.installed())
        result["changed"] = bool(told)
        if told and self._task.check_mode:
            result.update(msg=told, _ansible_verbose_always=True)
        return result

    def _finished(self, build: Build, task_vars: dict[str, Any]) -> list[str]:
        """What was done for it, in words."""
        if not build.wanting or build.host not in (*build.wanting, build.options["build_host"]):
            return []
        if build.method == "archive":
            build.refuse_archive()
            return []
        build.refuse_cache()
        named, crosses = build.options["build_host"], build.method == "cross"
        if crosses:
            build.refuse_controller()
        elif named and build.host in build.wanting and not build.is_finished():
            build.refuse_build_host()
        if build.is_finished() or not (crosses or build.host == (named or build.host)):
            return []
        if not crosses:
            build.refuse_host(self._has_compiler())
        where, whose = "on the controller" if crosses else "here", ", ".join(build.wanting)
        if self._task.check_mode:
            return [f"{build.what} would be built {where}, for {whose if build.tarball else 'this host'}"]
        with alone(build.cache):
            if build.is_finished():
                return []
            source = build.sources()
            if crosses:
                asked = build.asked(str(source), str(build.tarball))
                _run([sys.executable, build.files / "cross_build.py"], json.dumps(asked))
        if not crosses:
            self._build_here(build, source, task_vars)
        return [f"{build.what} was built {where}"]

    def _has_compiler(self) -> bool:
        environment = self._compute_environment_string()  # type: ignore[no-untyped-call]
        looked = shlex.join(["sh", "-c", 'command -v "${CC:-gcc}" && command -v make'])
        with self._as_login_user():
            done = self._low_level_execute_command(f"{environment} {looked}".strip())  # type: ignore[no-untyped-call]
        return bool(done["rc"] == 0)

    @contextlib.contextmanager
    def _as_login_user(self) -> Iterator[None]:
        become = self._connection.become
        self._connection.become = None
        try:
            yield
        finally:
            self._connection.become = become

    def _build_here(self, build: Build, source: Path, task_vars: dict[str, Any]) -> None:
        """Build it on the host, and install it there or bring it to the controller."""
        ansible_ssh.prepare(self._connection)
        with self._as_login_user():
            directory = self._connection._shell.tmpdir or self._make_tmp_path()
            script, sent, result = (directory + name for name in ("cross_build.py", "source.tar", "result.tar.gz"))
            with tempfile.NamedTemporaryFile(suffix=".tar") as packed:
                if source.is_dir():
                    with tarfile.open(packed.name, "w") as tar:
                        tar.add(source, source.name)
                    source = Path(packed.name)
                self._transfer_file(str(source), sent)  # type: ignore[no-untyped-call]
            self._transfer_file(str(build.files / "cross_build.py"), script)  # type: ignore[no-untyped-call]
            asked = {
                "argv": ["env", "TMPDIR=/var/tmp", build.platform["python"], script],
                "stdin": json.dumps(build.asked(sent, result)),
            }
            sha256 = self._module("ansible.builtin.command", asked, task_vars)["stdout"].strip()
            if build.tarball:
                with tempfile.NamedTemporaryFile(dir=build.cache) as brought:
                    self._connection.fetch_file(result, brought.name)
                    content = Path(brought.name).read_bytes()
                record = {**build.record, "sha256": hashlib.sha256(content).hexdigest()}
                said = json.dumps(record, indent=4, sort_keys=True) + "\n"
                for path, written in ((build.tarball, content), (Path(f"{build.tarball}.json"), said.encode())):
                    part = Path(f"{path}.part")
                    durable.write(part, written)
                    part.rename(path)
        if not build.tarball:
            asked = {"builds": [{"path": build.path, "tarball": result, "sha256": sha256}]}
            self._module("offheap.profiler.installed_build", asked, task_vars)

    def _module(self, name: str, arguments: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        done: dict[str, Any] = self._execute_module(module_name=name, module_args=arguments, task_vars=task_vars)
        if done.get("failed"):
            raise AnsibleActionFail(str(done.get("stderr") or done.get("msg")).strip())
        return done
