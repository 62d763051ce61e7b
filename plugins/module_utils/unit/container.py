# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A unit whose service runs in a container of Podman: the preload goes into the container, not to Podman.

Podman reads one more file of settings where CONTAINERS_CONF_OVERRIDE names it, and from that come variables and volumes
of each container that it starts (containers.conf(5)). So the drop-in names such a file beside itself; neither the unit
nor its Quadlet file changes. Since Podman 5 a list there can add to those of other files instead of replacing them.

This module is private to the collection.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import subprocess
import tempfile
from typing import Mapping, Sequence

from ansible_collections.offheap.profiler.plugins.module_utils.formats import elf, malloc_conf, preload
from ansible_collections.offheap.profiler.plugins.module_utils.host import places, procfs, selinux, systemd
from ansible_collections.offheap.profiler.plugins.module_utils.unit import drop_in, programs
from ansible_collections.offheap.profiler.plugins.module_utils.unit.refusal import Refusal
from ansible_collections.offheap.profiler.plugins.module_utils.unit.service import Service

_LEAST_VERSION = 5
_OVERRIDE = "CONTAINERS_CONF_OVERRIDE"
_ID = re.compile(r"/libpod-payload-([0-9a-f]{64})(?:/|$)")
_SECONDS = 60.0
# What may be in a path of a volume, whose parts colons separate.
_PLAIN = re.compile(r"[\w.@%+\\/-]+\Z")


def check(unit: Service, by_hand: str) -> None:
    """The preload must reach the container, and nothing in it may take its place. ``by_hand`` says how else it can.

    Raises Refusal.
    """
    if not re.search(r"\brun\b", unit.arguments[0]) or unit.text["User"] not in ("", "root", "0"):
        raise Refusal(
            "container",
            f"{unit.name} starts a container that was made before, or as another user than root: what is in it is"
            " settled. Let root's 'podman run' make it at each start, as a Quadlet file (.container) does, or make it"
            f" anew yourself. {by_hand}",
        )
    if "--cgroups=split" not in unit.arguments[0].split():
        raise Refusal(
            "container",
            f"the container of {unit.name} is not in the unit's control group, so nobody could tell which processes are"
            " its. Add --cgroups=split to its 'podman run', as Quadlet does",
        )
    if not _PLAIN.match(unit.name):
        raise Refusal("container", f"the name {unit.name} cannot be part of a volume's path. Rename the unit")
    version = _podman(unit, ["--version"]).split()[-1:]
    if not version or not version[0].split(".")[0].isdigit() or int(version[0].split(".")[0]) < _LEAST_VERSION:
        raise Refusal(
            "container",
            f"{unit.name} runs in a container of Podman {version[0] if version else '(of no version)'}, which cannot be"
            f" given settings beside its own; Podman {_LEAST_VERSION} can. {by_hand}",
        )
    if selinux.is_enforcing():
        raise Refusal(
            "container",
            f"SELinux keeps the container of {unit.name} from files of the host, unless they have a label that it may"
            f" read. {by_hand}",
        )
    own = systemd.read_assignments(unit.own_files)
    ends = any(one.key == "ExecStop" and re.search(r"\b(rm|stop)\b", one.value) for one in own)
    if re.search(r"\s--(name|cidfile)[ =]", unit.arguments[0]) and not ends:
        raise Refusal(
            "container",
            f"{unit.name} has no ExecStop= that ends its container, so a restart that has to kill it finds its name"
            f" taken. Add 'ExecStop={unit.commands[0]} rm -f -i NAME', as Quadlet does",
        )
    for assignment in own:
        if assignment.key in ("Environment", "EnvironmentFile") and _OVERRIDE in assignment.value:
            raise Refusal("container", f"{assignment.path} sets {_OVERRIDE}, which ours would replace. {by_hand}")
    if not unit.is_running:
        raise Refusal(
            "container", f"{unit.name} is not running, and what is in its container is not known before. Start it first"
        )
    may_be_ours = any(map(drop_in.is_ours, unit.drop_ins))
    for pid in unit.leaders():
        theirs = {"LD_PRELOAD", preload.MALLOC_CONF} & set(procfs.environ(pid))
        if theirs and not may_be_ours:
            raise Refusal(
                "container",
                f"the image of {unit.name}, or its 'podman run', sets {' and '.join(sorted(theirs))}, and Podman takes"
                " that before ours. Take it out while the unit is profiled",
            )


def by_hand(
    unit: Service, library: str, options: Mapping[str, malloc_conf.Value], agent: drop_in.AgentSettings | None
) -> str:
    """How somebody brings the profiler into a container that we cannot change. Then its dumps are collected as any."""
    spool = places.spool_of(unit.name)
    inside = drop_in.compose(unit.name, library, options, [], {}, [], "", agent)
    read = sorted({os.path.dirname(path) for path in (library, agent.library if agent else "") if path})
    volumes = [*(f"{path}:{path}:ro" for path in read), f"{spool}:{spool}"]
    words = [f"--volume={volume}" for volume in volumes]
    words += [f"--env={name}={value}" for name, value in inside.environment.items()]
    return f"Make {spool} for its user (mode 0700), and give its 'run' these: {' '.join(map(shlex.quote, words))}"


def has_musl(unit: Service) -> bool:
    """Whether the C library in the unit's container is musl, which its first process need not use."""
    contained = unit.contained()
    for program in programs.running(unit, contained) if contained else []:
        with contextlib.suppress(elf.ElfError):  # it has just ended
            if elf.read(programs.file_of(unit, program)).runs_on_musl:
                return True
    return False


def free_of(variables: Mapping[str, Sequence[str]], unit: Service) -> dict[str, Sequence[str]]:
    """Without those variables that the container has already with other words, which Podman takes before ours."""
    theirs: dict[str, str] = {}
    for pid in unit.leaders():
        theirs.update(procfs.environ(pid))
    return {
        name: words
        for name, words in variables.items()
        if name not in theirs or set(words) <= set(theirs[name].split())
    }


def into(
    injection: drop_in.Injection, unit: Service, libraries: Sequence[str], owner: programs.Owner, directory: str
) -> drop_in.Injection:
    """The drop-in that brings ``injection`` into the container; ``owner`` is who writes the dumps, as the host sees it.

    What a volume comes from must be there, or the container would not start: so it is made before each start.
    """
    spool, sockets = places.spool_of(unit.name), places.sockets_of(unit.name)
    read = sorted({os.path.dirname(library) for library in libraries})
    lines = [
        f"Environment={systemd.quote(f'{_OVERRIDE}={directory}/{drop_in.CONTAINER_NAME}').replace('%', '%%')}",
        "ExecStartPre=-/bin/mkdir -p " + " ".join(map(_escaped, [*read, spool])),
        # A RuntimeDirectory= would be the unit's user's, who is not the container's.
        f"ExecStartPre=-/usr/bin/install -d -o {owner.uid} -g {owner.gid} {_escaped(sockets)}",
        f"ExecStopPost=-/bin/rm -rf {_escaped(sockets)}",
    ]
    volumes = [*(f"{path}:{path}:ro" for path in read), f"{spool}:{spool}", f"{sockets}:{sockets}"]
    return injection._replace(settings=lines, container=settings(injection.environment, volumes))


def _escaped(path: str) -> str:
    return path.replace("\\", "\\\\").replace("%", "%%")


def settings(environment: Mapping[str, str], volumes: Sequence[str]) -> str:
    """The text of a file of Podman's settings that adds these."""
    variables = [f"{name}={value}" for name, value in environment.items()]
    return (
        "# Written by offheap.profiler: what brings the profiler into the unit's container. The drop-in beside it says"
        " how to undo that.\n[containers]\n"
        f"env = [{_listed(variables)}]\nvolumes = [{_listed(volumes)}]\n"
    )


def _listed(texts: Sequence[str]) -> str:
    """As TOML; a text's quotes and escapes are those of JSON."""
    return ", ".join([*(json.dumps(text) for text in texts), "{append=true}"])


def rehearse(unit: Service, program: str, environment: Mapping[str, str], libraries: Sequence[str]) -> None:
    """The loader of the container's image must take the libraries. It lists what it would load, and runs nothing of the
    service. Raises Refusal."""
    pid = next((process.pid for process in programs.of(unit, program)), 0)
    if not pid:
        raise Refusal("unknown-executable", f"no process in the container of {unit.name} runs {program} (executable)")
    loader = elf.read(f"{procfs.directory(pid)}/root{program}").interpreter
    with open(f"/proc/{pid}/cgroup", encoding="utf-8", errors="replace") as file:
        found = _ID.search(file.read().replace("\n", "/\n"))
    if not loader or not found:
        return
    image = _podman(unit, ["inspect", "--format={{.Image}}", found[1]]).strip()
    directories = sorted({os.path.dirname(library) for library in libraries})
    volumes = [f"{path}:{path}:ro" for path in directories]
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir="/run", prefix="offheap-", suffix=".conf") as file:
        file.write(settings({"LD_PRELOAD": environment["LD_PRELOAD"]}, volumes))
        file.flush()
        # Podman adds this to what it reads; its own volumes are not needed to list what is loaded.
        words = ["run", "--rm", "--network=host", f"--entrypoint={loader}", image, "--list", program]
        told = _podman(unit, words, {_OVERRIDE: file.name})
    # musl's loader goes on where it misses a symbol.
    missing = [library for library in libraries if library not in told or f"Error relocating {library}" in told]
    if missing:
        last = (told.strip().splitlines() or ["it said nothing"])[-1]
        raise Refusal(
            "dies-in-rehearsal",
            f"the loader of {unit.name}'s image does not take {missing[0]}, so the service would not start:"
            f" {last[:300]}. Attach to the running process instead (trace_live with offheap_trace_source=attach)",
        )


def _podman(unit: Service, words: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """What Podman says, whatever its status. Raises Refusal where it cannot be asked."""
    command = [unit.commands[0], *words]
    try:
        # Not AnsibleModule.run_command, which a module alone has.
        done = subprocess.run(  # pylint: disable=ansible-bad-function
            command,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Refusal("container", f"'{shlex.join(command)}' does not work: {error}. See why, and try again") from error
    return done.stdout.decode("utf-8", "replace")
