# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The contents of our drop-in: it keeps the unit's own environment and puts ours in front.

systemd builds a service's environment (systemd.exec(5)) from the manager's,
then ``Environment=``, then ``EnvironmentFile=``, and finally removes what
``UnsetEnvironment=`` names. It reads drop-ins in the order of their file names.
"""

from __future__ import annotations

import glob
import json
import os
import stat
from typing import Any, Mapping, NamedTuple, Sequence

from ansible_collections.offheap.profiler.plugins.module_utils.formats import aids, command_line, malloc_conf, preload
from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
from ansible_collections.offheap.profiler.plugins.module_utils.host import places, systemd
from ansible_collections.offheap.profiler.plugins.module_utils.unit.refusal import UnitError

NAME = "90-offheap.conf"
ENVIRONMENT_NAME = "90-offheap.env"
# Not .conf: systemd would read it.
CONTAINER_NAME = "90-offheap.containers"
VARIABLES = (preload.LD_PRELOAD, preload.MALLOC_CONF, "MALLOC_ARENA_MAX", *aids.VARIABLES)
_RECORD = "# offheap: "
_HUGE_PAGES = "/sys/kernel/mm/transparent_hugepage/enabled"
_HEAD = (
    "# Written by offheap.profiler: preloads a profiler into this unit, or configures its malloc.",
    "# To undo by hand: remove this file (and others named 90-offheap beside it, if any), run",
    "# 'systemctl daemon-reload' and restart the unit. What a rollback needs to know:",
)


class Variable(NamedTuple):
    """A variable of the unit's environment without ours, and the kind of setting that it comes from.

    Values of those in ``VARIABLES`` are as a process sees them; others keep their specifiers (``%``).
    """

    value: str
    setting: str
    path: str


class Environment(NamedTuple):
    """What the unit's own files say about the environment."""

    variables: dict[str, Variable]
    unset: list[str]


class Injection(NamedTuple):
    """What goes in front of the unit's own settings.

    ``settings`` are lines of the ``[Service]`` section, ``environment_file`` the text of a file beside the drop-in
    or None, ``environment`` the variables that processes of the unit will have. Those in the file are ``private``:
    their values may hold secrets from files that only root may read. ``container`` is the text of a file beside it with
    Podman's settings, or None; then the variables are those of the container.
    """

    library: str
    settings: list[str]
    environment_file: str | None
    environment: dict[str, str]
    private: frozenset[str]
    container: str | None = None

    def text(self, record: Mapping[str, Any]) -> str:
        """The drop-in's text, whose comments hold what a later rollback needs to know."""
        whole = {**record, "library": self.library}
        return "\n".join([*_HEAD, _RECORD + json.dumps(whole, sort_keys=True), "[Service]", *self.settings]) + "\n"

    def shown(self) -> dict[str, str]:
        """The variables for a result: without secrets, and those in the file with its name in place of their values."""
        return {
            name: f"(not shown, in {ENVIRONMENT_NAME})" if name in self.private else command_line.without_secret(value)
            for name, value in self.environment.items()
        }


class AgentSettings(NamedTuple):
    """The agent's library, and its settings as variables (roles/jemalloc/files/agent/README.md)."""

    library: str
    variables: dict[str, str]


class Swap(NamedTuple):
    """Another malloc instead of a profiler: glibc's with at most ``arena_max`` arenas or, if that is 0, jemalloc."""

    arena_max: int


class OwnMalloc(NamedTuple):
    """The jemalloc that the program brings itself, and the variable that configures it. Nothing is preloaded."""

    variable: str


def is_ours(path: str) -> bool:
    """Whether a drop-in's path is the one that this collection writes."""
    return os.path.basename(path) == NAME


def read_environment(assignments: Sequence[systemd.Assignment], manager: Mapping[str, str], unit: str) -> Environment:
    """Evaluate the settings of a unit in systemd's order.

    Raises UnitError when an environment file that must exist cannot be read, or is a pipe.
    Raises SystemdError when a specifier in a value that matters cannot be resolved.
    """
    from_manager = {key: Variable(value, "manager", "") for key, value in manager.items()}
    direct: dict[str, Variable] = {}
    files: list[systemd.Assignment] = []
    unset: list[str] = []
    for assignment in assignments:
        if assignment.key == "Environment":
            if not assignment.value:
                direct.clear()
            for key, value in filter(None, map(systemd.variable, systemd.split_words(assignment.value))):
                value = systemd.expand(value, unit) if _may_be_set(key) else value
                direct[key] = Variable(value, "Environment", assignment.path)
        elif assignment.key == "EnvironmentFile":
            if assignment.value:
                files.append(assignment)
            else:
                files.clear()
        elif assignment.key == "UnsetEnvironment":
            if assignment.value:
                unset.extend(systemd.split_words(assignment.value))
            else:
                unset.clear()
    variables = {**from_manager, **direct}
    for assignment in files:
        for key, value in _read_environment_files(assignment.value, unit).items():
            variables[key] = Variable(value, "EnvironmentFile", assignment.path)
    for word in unset:
        key, equals, value = word.partition("=")
        if key in variables and (
            not equals or variables[key].value == (systemd.expand(value, unit) if _may_be_set(key) else value)
        ):
            del variables[key]
    return Environment(variables, unset)


def _may_be_set(name: str) -> bool:
    """Whether it is a variable that we may set. A jemalloc with a prefix has it in the name of its own."""
    return name in VARIABLES or name.endswith(f"_{preload.MALLOC_CONF}")


def _read_environment_files(value: str, unit: str) -> dict[str, str]:
    """Variables of one ``EnvironmentFile=`` setting: ``-`` allows absence, the path may be a pattern."""
    optional = value.startswith("-")
    pattern = systemd.expand(value[1:] if optional else value, unit)
    variables: dict[str, str] = {}
    if not pattern.startswith("/"):
        return variables  # such as one in quotes: systemd warns, and starts the unit without it
    for path in sorted(glob.glob(pattern)) or [pattern]:
        if stat.S_ISFIFO(_mode(path)):
            # It would take from systemd what somebody has written, or wait for that, as would the unit's next start.
            raise UnitError(
                f"EnvironmentFile={value} of {unit} is a pipe, which gives what it holds once: nobody could read it"
                " before the restart. Put the variables into a file instead"
            )
        try:
            # Line endings matter within quotes, so they are not translated.
            with open(path, encoding="utf-8", errors="surrogateescape", newline="") as file:
                variables.update(systemd.parse_environment_file(file.read()))
        except (OffheapError, OSError) as error:
            if not optional:
                raise UnitError(
                    f"EnvironmentFile={value} cannot be read, so {unit} would not start again: {error}"
                ) from error
    return variables


def _mode(path: str) -> int:
    try:
        return os.stat(path).st_mode
    except OSError:
        return 0  # told where it is read


def huge_page_options(path: str = _HUGE_PAGES) -> dict[str, malloc_conf.Value]:
    """Options for a host that backs all memory with huge pages; none elsewhere.

    Format of the file: the kernel's transhuge document, "Global THP controls".
    """
    try:
        with open(path, encoding="ascii") as file:
            always = "[always]" in file.read()
    except OSError:  # a kernel without them
        return {}
    return {**preload.WITHOUT_HUGE_PAGES} if always else {}


def compose(
    unit: str,
    library: str,
    options: Mapping[str, malloc_conf.Value],
    own: Sequence[systemd.Assignment],
    manager: Mapping[str, str],
    sandbox: Sequence[str],
    directory: str,
    agent: AgentSettings | None = None,
    words: Mapping[str, Sequence[str]] | None = None,
    instead: Swap | OwnMalloc | None = None,
    defaults: Mapping[str, malloc_conf.Value] | None = None,
) -> Injection:
    """Compose the drop-in for ``unit``.

    Where ``library`` is the agent's, that alone is preloaded, and ``options`` and ``defaults`` mean nothing.
    ``own`` are the unit's assignments without ours, ``sandbox`` further lines of the ``[Service]`` section,
    ``directory`` where the drop-in will be, ``words`` what to add to variables of a language runtime, ``instead`` what
    there is instead of a profiler that is preloaded, ``defaults`` what the unit's own options change, as ``options``
    change those.

    Raises UnitError when a setting that systemd reads after ours would undo it.
    """
    effective = read_environment(own, manager, unit)
    late = {assignment.path for assignment in own if _is_read_after_ours(assignment.path)}
    overridden = {
        name
        for name, variable in effective.variables.items()
        if variable.setting == "EnvironmentFile" or variable.path in late
    }
    # The agent tells starts apart by itself. systemd can at least tell boots apart, but not in a file.
    conf = instead.variable if isinstance(instead, OwnMalloc) else preload.MALLOC_CONF
    boot = "" if agent or conf in overridden else systemd.expand("%b", unit)
    ours = _injected_variables(library, defaults or {}, options, effective, unit, agent, instead, boot)
    for name, added in (words or {}).items():
        theirs = effective.variables[name].value if name in effective.variables else ""
        ours[name] = aids.merge(theirs, added)
    in_file = {name: value for name, value in ours.items() if name in overridden}
    lines = [
        "Environment=" + _with_specifier(systemd.quote(f"{name}={value}").replace("%", "%%"), boot)
        for name, value in ours.items()
        if name not in in_file
    ]
    if in_file:
        lines.append(f"EnvironmentFile={directory}/{ENVIRONMENT_NAME}")
    if any(word.partition("=")[0] in ours for word in effective.unset):
        kept = [word for word in effective.unset if word.partition("=")[0] not in ours]
        lines.append("UnsetEnvironment=")
        lines += [f"UnsetEnvironment={systemd.quote(word)}" for word in kept]
    lines += sandbox
    _check_later_drop_ins(own, unit, ours, {line.partition("=")[0] for line in lines})
    environment_file = "".join(f'{name}="{_escape_for_file(value)}"\n' for name, value in in_file.items())
    return Injection(library, lines, environment_file or None, ours, frozenset(in_file))


def _with_specifier(line: str, boot: str) -> str:
    """The line with systemd's ``%b`` instead of the id of this boot."""
    return line.replace(boot, "%b") if boot else line


def _injected_variables(
    library: str,
    defaults: Mapping[str, malloc_conf.Value],
    options: Mapping[str, malloc_conf.Value],
    effective: Environment,
    unit: str,
    agent: AgentSettings | None,
    instead: Swap | OwnMalloc | None,
    boot: str,
) -> dict[str, str]:
    if isinstance(instead, Swap) and instead.arena_max:
        return {"MALLOC_ARENA_MAX": str(instead.arena_max), preload.UNIT: unit}
    name = instead.variable if isinstance(instead, OwnMalloc) else preload.MALLOC_CONF
    preloaded = [library, agent.library] if agent else [library]
    if "LD_PRELOAD" in effective.variables:
        # ld.so(8) splits the list at blanks and colons alike.
        theirs = effective.variables["LD_PRELOAD"].value.replace(":", " ").split()
        if not agent or library != agent.library:
            # Beside ours, another jemalloc would keep operator new, so that nobody saw what C++ allocates.
            theirs = [path for path in theirs if not os.path.basename(path).startswith("libjemalloc")]
        preloaded += [path for path in theirs if path not in preloaded]
    if agent and library == agent.library:
        ours = {"LD_PRELOAD": ":".join(dict.fromkeys(preloaded))}
        return {**ours, **({} if "LD_PRELOAD" in effective.variables else {preload.UNSET: "1"}), **agent.variables}
    try:
        before = malloc_conf.parse(effective.variables[name].value) if name in effective.variables else {}
        if isinstance(instead, Swap):
            conf = malloc_conf.render({**before, **options})
            return {"LD_PRELOAD": ":".join(preloaded), **({"MALLOC_CONF": conf} if conf else {}), preload.UNIT: unit}
        wanted = {**defaults, **before, **options}
        start = f".{boot}" if boot else ""
        merged = preload.options_of_profiler(wanted, places.spool_of(unit), agent is not None, start)
        if instead:
            return {name: malloc_conf.render(merged), preload.UNIT: unit}
        ours = {"LD_PRELOAD": ":".join(preloaded), name: malloc_conf.render(merged)}
        if agent and not {"LD_PRELOAD", name} & set(effective.variables):
            ours[preload.UNSET] = "1"  # nobody else's would be lost with them
        return {**ours, **(agent.variables if agent else {})}
    except malloc_conf.MallocConfError as error:
        if name in effective.variables and effective.variables[name].setting == "EnvironmentFile":
            # A quote that is not closed makes the rest of that file part of the value.
            raise UnitError(
                f"the {name} in an EnvironmentFile of {unit} is not of the form name:value,name:value. Correct it there"
            ) from None
        raise UnitError(str(error)) from error


def _is_read_after_ours(path: str) -> bool:
    """Drop-ins are read after the unit file itself, in the order of their names."""
    directory, name = os.path.split(path)
    return directory.endswith(".d") and name > NAME


def _check_later_drop_ins(
    own: Sequence[systemd.Assignment], unit: str, ours: Mapping[str, str], settings: set[str]
) -> None:
    """Refuse a drop-in read after ours that would override our variables or reset one of our settings."""
    for assignment in own:
        if not _is_read_after_ours(assignment.path):
            continue
        named: list[str] = []
        if assignment.key == "UnsetEnvironment":
            named = [word.partition("=")[0] for word in systemd.split_words(assignment.value)]
        elif assignment.key == "EnvironmentFile" and assignment.value:
            named = list(_read_environment_files(assignment.value, unit))
        if set(named) & set(ours) or (assignment.key in settings and not assignment.value):
            raise UnitError(
                f"{assignment.path} is read after {NAME} and its {assignment.key}= would undo the preload. Rename it so"
                " that it sorts before 90-, or move the setting to another file"
            )


def _escape_for_file(value: str) -> str:
    return "".join("\\" + char if char in '\\"`$' else char for char in value)


def read_record(path: str) -> dict[str, Any]:
    """What an earlier run recorded in the drop-in at ``path``; empty if it holds no record of ours."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            for line in file:
                if line.startswith(_RECORD):
                    record = json.loads(line[len(_RECORD) :])
                    return record if isinstance(record, dict) else {}
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UnitError(f"the record in {path} cannot be read: {error}") from error
    except ValueError:
        return {}  # edited by hand: a rollback must still work
    return {}
