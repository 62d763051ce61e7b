# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Why a unit cannot be profiled, and what to do about each reason.

LD_PRELOAD fails silently: ``systemctl restart`` returns 0 and the service runs
unprofiled, or is dead a second later. So we refuse what cannot work before we
touch anything.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from typing import Iterator, Mapping

from ansible_collections.offheap.profiler.plugins.module_utils.formats import elf, malloc_conf, preload
from ansible_collections.offheap.profiler.plugins.module_utils.host import places, procfs, systemd
from ansible_collections.offheap.profiler.plugins.module_utils.malloc import proof
from ansible_collections.offheap.profiler.plugins.module_utils.unit import (
    drop_in,
    drop_in_files,
    health,
    preload_obstacles,
    programs,
)
from ansible_collections.offheap.profiler.plugins.module_utils.unit.refusal import Refusal
from ansible_collections.offheap.profiler.plugins.module_utils.unit.service import Service

_CONTAINER_ENGINES = """
    docker dockerd docker-compose podman podman-compose nerdctl ctr runc crun conmon containerd containerd-shim
    lxc-start lxc-execute systemd-nspawn machinectl apptainer singularity
"""
_LOADER = re.compile(r"ld(-linux|-musl|64|-\d|\.so)")
_COMMENT = re.compile(r"(?m)(?:^|(?<=[\s;]))#.*$")
# The words before LD_PRELOAD are counted, or a script of nothing but "env" would take hours.
_PRELOAD_ASSIGNMENT = re.compile(
    r"""\b(?P<name>LD_PRELOAD|MALLOC_CONF)=(?P<value>(?:"(?:[^"\\]|\\.)*"|'[^']*'|[^\s;&|"'])*)"""
    r"|(?P<drop>\bunset[ \t]+(?:[\w-]+[ \t]+){0,32}LD_PRELOAD\b|\benv[ \t]+-i\b"
    r"|\benv[ \t]+(?:[^\s;&|]+[ \t]+){0,32}(?:-u[ \t]*|--unset=)LD_PRELOAD\b)"
)
# What makes the environment anew: another user's login (su(1), runuser(1)), and sudo, which never leaves LD_PRELOAD.
_LOGIN = re.compile(
    r"(?m)(?:\A|^[ \t]*exec[ \t]+)(?P<command>(?:/\S*/)?(?:sudo(?!\S)|(?:su|runuser)[ \t]+"
    r"(?:(?!-[cuw]|--command|--user|--whitelist|--[ \t])\S+[ \t]+){0,8}?(?:-l?|--login)(?!\S)"
    r"(?!.*[ \t](?:-w|--whitelist))))"
)
# What has been proven within ``proven_once``, by library and options.
_PROVEN: list[dict[tuple[str, str], proof.Proof]] = []


@contextlib.contextmanager
def proven_once() -> Iterator[None]:
    """Within it, units that are to have the same library with the same options share its proof."""
    _PROVEN.append({})
    try:
        yield
    finally:
        _PROVEN.pop()


def check_state(service: Service) -> None:
    """The unit must exist, be loaded cleanly and not be broken already."""
    state = service.text["LoadState"]
    users = systemd.users_with(service.name) if state == "not-found" else []
    if users:
        raise Refusal(
            "user-unit",
            f"{service.name} is a unit of the user {users[0]}, and only units of the system are profiled. Make it one"
            " (a file in /etc/systemd/system, with User=), or preload the library yourself with 'systemctl --user"
            f" edit {service.name}'",
        )
    if state == "not-found":
        raise Refusal("no-such-unit", f"there is no unit {service.name} on this host; see 'systemctl list-units'")
    if state == "masked":
        raise Refusal("masked", f"{service.name} is masked; run 'systemctl unmask {service.name}' first")
    if state != "loaded":
        raise Refusal("not-loaded", f"systemd cannot load {service.name} ({state}); see 'systemctl status'")
    if service.text["FragmentPath"].startswith("/run/systemd/transient/"):
        raise Refusal(
            "transient",
            f"{service.name} was made by a program, such as systemd-run, and is gone once it ends: nobody could start"
            " it again. Give it a file in /etc/systemd/system and start it from there, or trace it without a restart"
            " (fab trace)",
        )
    if service.name.startswith("user@"):
        raise Refusal(
            "user-manager",
            f"{service.name} is the systemd of a user: its restart would end all services of that user, twice. Trace it"
            " without a restart (fab trace)",
        )
    template, instance, _rest = service.name.partition("@")
    if instance and systemd.show(f"{template}.socket", ["Accept"]).get("Accept") == ["yes"]:
        raise Refusal(
            "one-connection",
            f"{template}.socket starts an instance of {template}@.service for each connection (Accept=yes), each under"
            f" another name, and a restart of {service.name} would break off the connection. Trace it without a restart"
            " (fab trace)",
        )
    if "no" in (service.text["CanStart"], service.text["CanStop"]):
        raise Refusal(
            "no-restart",
            f"systemd restarts {service.name} for nobody (RefuseManualStart= or RefuseManualStop=), so the preload"
            " could be neither brought in nor taken out. Set them to no in a drop-in of yours while it is profiled, or"
            " trace it without a restart (fab trace)",
        )
    if service.has_left and not service.runs_podman:
        raise Refusal(
            "left-its-group",
            f"the main process of {service.name} has left the unit's control group, as su and PAMName= do it, which"
            " make a session (pam_systemd(8)): what it has started would go on after a restart, beside the new"
            " processes. Set User= in the unit instead of both",
        )
    active, sub = service.text["ActiveState"], service.text["SubState"]
    if active == "failed" or sub == "auto-restart":
        raise Refusal(
            "already-failing",
            f"{service.name} is {active} ({sub}) already, so nobody could tell whether profiling harms it."
            f" Get it running first; see 'journalctl -u {service.name}'",
        )
    if service.is_running and health.ends_again_and_again(service):
        raise Refusal(
            "already-failing",
            f"{service.name} ends soon after each start, and systemd starts it again ({service.restarts} times so far),"
            " so nobody could tell whether profiling harms it. Get it running first; see"
            f" 'journalctl -u {service.name}'",
        )
    if service.text["NeedDaemonReload"] == "yes" and not drop_in_files.is_to_be_read(service):
        raise Refusal(
            "needs-daemon-reload",
            f"the files of {service.name} have changed since systemd read them; our restart would apply these"
            " changes too. Run 'systemctl daemon-reload' and restart the unit yourself first",
        )


def check_restart(service: Service) -> None:
    """What runs now must start again: else the restart would end it, with the profiler and without."""
    obstacle = service.start_obstacle or systemd.unmet_condition(service.name)
    if obstacle:
        raise Refusal(
            "would-not-start",
            f"{service.name} runs, but systemd could not start it again: {obstacle}. Correct that first",
        )


def check_container(service: Service) -> None:
    """A container has its own file system, where neither the library nor the spool is (but see container.py)."""
    for command in [*service.commands, *programs.running(service)[:1]]:
        if os.path.basename(command) in _CONTAINER_ENGINES.split():
            raise Refusal(
                "container",
                f"{service.name} runs a container ({command}); the preload would reach the engine, not the service."
                " Put the library and a volume for the dumps into the container, and set LD_PRELOAD and MALLOC_CONF",
            )
    for setting in ("RootDirectory", "RootImage"):
        if service.text[setting]:
            raise Refusal(
                "own-root",
                f"{service.name} has {setting}={service.text[setting]}; the library is not inside it."
                " Install it there and set LD_PRELOAD and MALLOC_CONF in the unit by hand",
            )
    if service.main_pid and _has_other_root(service.main_pid):
        raise Refusal(
            "own-root",
            f"the main process of {service.name} was started in another root than this host's, as a snap and what bwrap"
            " runs are: the library is not inside it. Trace it without a restart (fab trace)",
        )


def _has_other_root(pid: int) -> bool:
    """Whether the loader that the process began with is that of its root, and not the host's. One that has changed its
    root since (chroot(2)) has the host's."""
    root = f"{procfs.directory(pid)}/root"
    try:
        here = os.readlink(root)  # "/" also of a root in a mount namespace of its own
        for path, (mapped, *_rest) in procfs.mapped_files(pid).items():
            if not _LOADER.match(os.path.basename(path)):
                continue
            if here != "/" and path.startswith(f"{here}/"):
                return True
            theirs = os.stat(root + path)
            if mapped.inode == theirs.st_ino and not (os.path.exists(path) and os.path.samestat(theirs, os.stat(path))):
                return True
    except (procfs.ProcfsError, OSError):
        pass  # it has ended, or its root has no such file
    return False


def check_wrappers(service: Service, library: str, environment: drop_in.Environment, replaces: bool = True) -> None:
    """A start script that sets LD_PRELOAD or MALLOC_CONF itself silently discards ours.

    Unless the library ``replaces`` the allocator, MALLOC_CONF is the service's own affair.
    """
    words = [word for arguments in service.arguments for word in arguments.split() if word.startswith("/")]
    texts = {path: programs.script_text(path) for path in [*service.commands, *words]}
    texts.update({f"line {number} of its ExecStart=": line for number, line in enumerate(service.arguments, 1)})
    for origin, text in texts.items():
        login = _LOGIN.search(text or "")
        if login:
            raise Refusal(
                "wrapper-overwrites-preload",
                f"the start of {service.name} makes the environment anew ({origin} contains '{login['command']}')."
                " Ours would be lost silently. Set User= in the unit instead",
            )
        for match in _PRELOAD_ASSIGNMENT.finditer(_COMMENT.sub("", text or "")):
            name = match.group("name")
            if name == preload.MALLOC_CONF and not replaces:
                continue
            if not name or not re.search(r"\$\{?" + name, match.group("value")):
                _refuse_wrapper(service.name, f"{origin} contains '{match.group(0).strip()}'", library)
    if "LD_PRELOAD" in environment.variables or service.text["NeedDaemonReload"] == "yes":
        return
    theirs = _main_environment(service).get("LD_PRELOAD")
    if theirs and not any(map(drop_in.is_ours, service.drop_ins)):
        _refuse_wrapper(service.name, f"its main process has LD_PRELOAD={theirs}, which no unit file sets", library)


def _main_environment(service: Service) -> dict[str, str]:
    try:
        return procfs.environ(service.main_pid) if service.main_pid else {}
    except procfs.ProcfsError:
        return {}  # it has ended, so its environment no longer matters


def _refuse_wrapper(name: str, evidence: str, library: str) -> None:
    raise Refusal(
        "wrapper-overwrites-preload",
        f"the start script of {name} overwrites LD_PRELOAD or MALLOC_CONF: {evidence}. Ours would be lost silently."
        ' Make it keep what it is given (LD_PRELOAD="its.so:$LD_PRELOAD"), or pass our library through its own setting'
        f" (Cassandra: CASSANDRA_LIBJEMALLOC={library})",
    )


def check_programs(service: Service, library: str, replaces: bool = True) -> None:
    """The dynamic loader of the service's programs must be able to, and be allowed to, preload the library."""
    if service.text["ActiveState"] == "active" and not service.main_pid and not service.pids():
        raise Refusal(
            "no-process",
            f"{service.name} is active without any process: it has finished its work, or only groups other units."
            " Name the unit whose processes use the memory; see 'systemctl list-units' and 'systemctl status'",
        )
    obstacles: dict[str, Refusal] = {}
    inside = service.contained()
    found = programs.running(service, inside or None)
    for program in found:
        try:
            check_program(programs.file_of(service, program), service, library, replaces)
        except Refusal as refusal:
            obstacles[program] = refusal
    if found and (found[0] in obstacles or len(obstacles) == len(found)):
        raise obstacles.get(found[0]) or next(iter(obstacles.values()))


def check_program(path: str, service: Service, library: str, replaces: bool = True) -> None:
    """The dynamic loader of one program must be able to, and be allowed to, preload the library. Raises Refusal.

    ``replaces``: the library takes the place of the program's allocator; else it samples that one.
    """
    try:
        program = elf.read(path)
        ours = elf.read(library) if os.path.exists(library) else None
        own_jemalloc = replaces and preload_obstacles.has_jemalloc(path, program)
    except (elf.ElfError, OSError) as error:
        raise Refusal("not-readable", f"{path}, which {service.name} runs, cannot be examined: {error}") from error
    if program.is_static:
        raise Refusal(
            "static-binary",
            f"{path} is statically linked: no dynamic loader runs, so nothing can be preloaded."
            " Use a dynamically linked build of it",
        )
    if program.runs_on_musl and not (replaces and places.is_for_musl(library)):
        raise Refusal(
            "musl",
            f"{path} runs on musl ({program.interpreter}), whose loader does not take a library for glibc. Use a glibc"
            " build of it. Only in a container of Podman can jemalloc for musl take the place of its allocator, and the"
            " controller builds that (jemalloc_method: cross)",
        )
    if ours and (program.bits, program.machine) != (ours.bits, ours.machine):
        raise Refusal(
            "other-architecture",
            f"{path} is a {program.bits}-bit {program.machine_name} program, the library is {ours.bits}-bit"
            f" {ours.machine_name}. Build jemalloc for the program's architecture",
        )
    if own_jemalloc:
        raise Refusal(
            "own-jemalloc",
            f"{path} has its own jemalloc linked in, so a preloaded one would not be used. If that has its profiler,"
            " profiled_service_mode: own switches it on. If the service offers profiles by itself, say where in"
            " offheap_offered. Otherwise build the program with --enable-prof (in Rust: tikv-jemallocator's feature"
            " profiling), or with the system's malloc",
        )
    check_secure(path, service)
    preload_obstacles.check_program(service.name, path, program, replaces)


def check_secure(path: str, service: Service) -> None:
    """The kernel sets AT_SECURE for such programs, and the loader then ignores LD_PRELOAD (ld.so(8)).

    So does jemalloc with its own variable (secure_getenv(3)).
    """
    try:
        capabilities = bool(os.getxattr(path, "security.capability"))
    except OSError:
        capabilities = False  # the file has none, or its file system supports none
    if capabilities:
        raise Refusal(
            "file-capabilities",
            f"{path} has file capabilities ('getcap {path}'), so the loader ignores LD_PRELOAD."
            f" Give the unit AmbientCapabilities= instead and remove them ('setcap -r {path}')",
        )
    if _changes_identity(os.stat(path), service) and service.text["NoNewPrivileges"] != "yes":
        raise Refusal(
            "setuid",
            f"{path} is set-user-id or set-group-id, so the loader ignores LD_PRELOAD. Set"
            " NoNewPrivileges=yes in the unit, or set User= there and remove the bit",
        )


def _changes_identity(program: os.stat_result, service: Service) -> bool:
    """Whether the kernel starts the program with another user or group than the service's own."""
    sets_user = program.st_mode & stat.S_ISUID
    sets_group = program.st_mode & stat.S_ISGID and program.st_mode & stat.S_IXGRP
    if not sets_user and not sets_group:
        return False
    if service.text["DynamicUser"] == "yes":
        return True
    who = programs.owner(service)
    return bool((sets_user and program.st_uid != who.uid) or (sets_group and program.st_gid != who.gid))


def check_path(library: str) -> None:
    """The loader must be able to read the path in LD_PRELOAD, and only root may decide what lies there.

    To be called before anything opens the library: in its place there could be a pipe, which never ends.
    """
    if not re.fullmatch(r"/[^\s:%]+", library):
        raise Refusal(
            "bad-library-path",
            f"'{library}' cannot be used in LD_PRELOAD: the path must be absolute, without blanks, colons or percent"
            " signs (ld.so(8)). Install the library in another directory",
        )
    distrusted = proof.distrust(library)
    if distrusted:
        raise Refusal("library-" + str(distrusted.failure), f"{library}: {distrusted.message}")


def check_library(
    library: str, options: Mapping[str, malloc_conf.Value], version: str | None, may_be_missing: bool
) -> None:
    """The library must profile on this host with these options.

    ``may_be_missing`` is for check mode, where the library may not be installed yet: then only ``version`` and the
    names of the options can be checked.
    """
    check_options(options)
    if places.is_for_musl(library):
        if not (may_be_missing or os.path.exists(library)):
            raise Refusal(
                "musl",
                f"there is no {library}, for containers with musl: the controller builds it for x86_64, if it has"
                " ziglang (jemalloc_method: cross)",
            )
        library = places.for_host(library)  # the same release with the same options, which can be tried here
    if os.path.exists(library):
        shown = _proof(library, options)
        if not shown.ok:
            raise Refusal("library-" + str(shown.failure), f"{library}: {shown.message}")
    elif not may_be_missing:
        raise Refusal("no-library", f"{library} does not exist here; the role offheap.profiler.jemalloc installs it")
    else:
        danger = proof.unsound(version or "")
        if danger:
            raise Refusal("library-unsound", f"{library}: {danger}")
    unknown = malloc_conf.unknown_options(options, version or "")
    if unknown:
        raise Refusal("bad-option", f"jemalloc {version} has no option {', '.join(unknown)}; see its TUNING.md")


def _proof(library: str, options: Mapping[str, malloc_conf.Value]) -> proof.Proof:
    key, known = (library, malloc_conf.render(options)), _PROVEN[-1] if _PROVEN else {}
    if key not in known:
        known[key] = proof.prove(library, options)
    return known[key]


def check_options(options: Mapping[str, malloc_conf.Value]) -> None:
    """They must be written as jemalloc reads them, and be none that we set ourselves."""
    try:
        malloc_conf.render(options)
    except malloc_conf.MallocConfError as error:
        raise Refusal("bad-option", f"jemalloc cannot read malloc_conf: {error}. Correct it") from error
    for name in ("prof", "prof_prefix"):
        if name in options:
            raise Refusal("bad-option", f"this module sets {name}; remove it from malloc_conf")


def check_space(spool: str, needed_mib: int) -> None:
    """A full file system would lose the dumps and could stop the service's own writes."""
    path = spool
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    usage = os.statvfs(path)
    free = usage.f_bavail * usage.f_frsize >> 20
    if free < needed_mib:
        raise Refusal(
            "disk-full",
            f"the file system of {spool} has {free} MiB free, but {needed_mib} MiB are required."
            " Make room there, or lower profiled_service_min_free_mib",
        )
    if usage.f_files and usage.f_favail < 1000:
        raise Refusal("disk-full", f"the file system of {spool} has {usage.f_favail} inodes free; delete files there")
