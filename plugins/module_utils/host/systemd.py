# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Units as systemd sees them: properties, unit files, quoting, environment files, processes.

Sources: systemd.unit(5), systemd.exec(5), systemd.syntax(7).
"""

from __future__ import annotations

import glob
import os
import re
import subprocess
from typing import Iterable, NamedTuple, Sequence

from ansible_collections.offheap.profiler.plugins.module_utils.formats import command_line
from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
from ansible_collections.offheap.profiler.plugins.module_utils.host import procfs

CGROUP_ROOTS = ("/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified", "/sys/fs/cgroup")
# A journal of many files can take its time.
_JOURNAL_SECONDS = 30.0
_CONDITION_SECONDS = 10.0
# One that need not be met beside others begins with "|", one of what must not be with "!".
_UNMET = re.compile(r"(?m)^\S+: ((?:Condition|Assert)\w+=[^|!\n].*) failed\.$")
# What systemd treats as blank; Python's own definition is wider.
_BLANKS = " \t\n\r"
_VARIABLE = re.compile("[A-Za-z_][A-Za-z0-9_]*=[^\ud800-\udfff]*\\Z")
_ESCAPES = dict(zip("abfnrtv\\\"'s", "\a\b\f\n\r\t\v\\\"' "))
_NUMERIC_ESCAPE = re.compile("x([0-9A-Fa-f]{2})|([0-3][0-7]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})")
# Entries of an environment file. A value ends with its line, but a quoted part may span several.
_FILE_KEY = re.compile(r"[ \t\n\r]*(?:[#;](?:\\[\s\S]|[^\\\n\r])*|([^ \t\n\r][^=\n\r]*)(=?))")
_FILE_QUOTED = re.compile(r"""[ \t]*(?:'([^']*)'?|"((?:\\[\s\S]|[^"\\])*)\\?"?)""")
_FILE_PLAIN = re.compile(r"[ \t]*((?:\\[\s\S]|[^\\\n\r])*)\\?")


class SystemdError(OffheapError):
    """systemd refused, is missing, or a unit file cannot be read."""


class SystemdTimeout(SystemdError):
    """systemctl was not done in time. What it asked for goes on."""


class Assignment(NamedTuple):
    """One ``key=value`` line of a unit file, its continuation lines joined."""

    key: str
    value: str
    path: str


def systemctl(*arguments: str, timeout: float | None = None) -> str:
    """Run systemctl and give its output.

    Raises SystemdError with systemctl's own words when it fails, SystemdTimeout after ``timeout`` seconds.
    """
    command = ["systemctl", "--no-pager", *arguments]
    try:
        done = _run(command, timeout)
    except subprocess.TimeoutExpired as error:
        raise SystemdTimeout(f"{' '.join(command)} was not done after {error.timeout:g} s") from error
    except OSError as error:
        raise SystemdError(f"systemctl cannot be run: {error.strerror}. Is this a systemd host?") from error
    if done.returncode:
        reason = (done.stderr or done.stdout).strip()
        if "not been booted with systemd" in reason:
            raise SystemdError("this host does not run systemd (is it a container?), so it has no units to look at")
        what = " ".join(dict.fromkeys((arguments[0], arguments[-1])))
        raise SystemdError(f"systemctl {what} failed: {reason}")
    return done.stdout


def start_timer(name: str, description: str, command: Sequence[str], every: int) -> None:
    """Have a command run for the first time in ``every`` seconds, and again so long after each end, until a reboot.

    ``name`` is that of the transient timer without its suffix. Raises SystemdError.
    """
    properties = ("Type=oneshot", "TimeoutStartSec=5min", "MemoryMax=1G", "NoNewPrivileges=yes", "Nice=10")
    run = ["systemd-run", "--quiet", f"--unit={name}", f"--description={description}"]
    run += [f"--on-active={every}s", f"--on-unit-inactive={every}s", "--timer-property=AccuracySec=1s"]
    run += [f"--property={one}" for one in properties]
    try:
        done = _run([*run, "--", *command], None)
    except OSError as error:
        raise SystemdError(f"systemd-run cannot be run: {error.strerror}") from error
    if done.returncode:
        raise SystemdError(f"systemd-run could not start the timer {name}: {(done.stderr or done.stdout).strip()}")


def run_aside(properties: Sequence[str], command: Sequence[str], seconds: float) -> list[str]:
    """The lines that a command prints as a transient unit with these properties.

    Empty where that cannot be had, such as on a host that does not know one of them, or after so many seconds.
    """
    run = ["systemd-run", "--quiet", "--pipe", "--wait", "--collect", f"--property=RuntimeMaxSec={seconds:g}"]
    try:
        done = _run([*run, *(f"--property={one}" for one in properties), "--", *command], 2 * seconds)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.splitlines()


def unmet_condition(unit: str) -> str:
    """A condition or assertion of the unit without which systemd would not start it now; empty if there is none.

    Those of what must not be there are left out: the service may have put it there, and take it away when it ends.
    Empty also before systemd 250, which does not tell.
    """
    try:
        done = _run(["systemd-analyze", "condition", f"--unit={unit}"], _CONDITION_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = _UNMET.search(done.stdout + done.stderr) if done.returncode else None
    return f"its {found[1]} does not hold" if found else ""


def journal(*which: str) -> list[str]:
    """Lines of the journal, without secrets; none if it cannot be read."""
    try:
        output = _run(["journalctl", "--no-pager", "--output=short-iso", *which], _JOURNAL_SECONDS).stdout
    except (OSError, subprocess.TimeoutExpired):
        return []
    # A JVM says what its variables set, which may be secret.
    return re.sub(r"(Picked up \w+: ).*", rf"\1{command_line.HIDDEN}", output).splitlines()


def _run(command: list[str], timeout: float | None) -> subprocess.CompletedProcess[str]:
    # Not AnsibleModule.run_command: this also runs, and is tested, without a module.
    return subprocess.run(  # pylint: disable=ansible-bad-function
        command,
        env={**os.environ, "LC_ALL": "C.UTF-8", "SYSTEMD_COLORS": "0"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="surrogateescape",
        timeout=timeout,
        check=False,
    )


def show(unit: str, properties: Iterable[str]) -> dict[str, list[str]]:
    """Properties of a unit. A property that systemd prints on several lines has several values."""
    values: dict[str, list[str]] = {}
    lines = iter(systemctl("show", "--property", ",".join(properties), "--", unit).split("\n"))
    for line in lines:
        key, equals, value = line.partition("=")
        # A command keeps its own line breaks.
        while value.startswith("{ ") and not value.endswith(" }"):
            value += "\n" + next(lines, " }")
        if equals:
            values.setdefault(key, []).append(value)
    return values


def name_of(unit: str) -> str:
    """The name that systemd has for a unit, which may have been named by an alias; the same where it knows no other."""
    try:
        return show(unit, ["Id"]).get("Id", [""])[0] or unit
    except SystemdError:
        return unit


def show_each(units: Sequence[str], properties: Iterable[str]) -> list[dict[str, str]]:
    """Properties of several units, each with one value on one line."""
    if not units:
        return []
    shown = systemctl("show", "--property", ",".join(properties), "--", *units)
    return [dict(line.partition("=")[::2] for line in part.split("\n")) for part in shown.strip().split("\n\n")]


def manager_environment() -> dict[str, str]:
    """What the manager hands to every service (``DefaultEnvironment=``, ``systemctl set-environment``).

    systemctl writes a value that a shell would have to quote as ``$'...'``.
    """
    variables = {}
    for line in systemctl("show-environment").split("\n"):
        key, equals, value = line.partition("=")
        if equals:
            variables[key] = "".join(split_words(value[1:])) if value.startswith("$'") else value
    return variables


def read_assignments(paths: Sequence[str], section: str = "Service") -> list[Assignment]:
    """Every assignment in one section of unit files, in the order in which systemd applies them."""
    assignments: list[Assignment] = []
    for path in paths:
        try:
            with open(path, encoding="utf-8-sig", errors="surrogateescape") as file:
                lines = _join_continuations(file.read())
        except OSError as error:
            raise SystemdError(f"the unit file {path} cannot be read: {error.strerror}") from error
        current = ""
        for line in lines:
            if line.startswith("[") and line.endswith("]"):
                current = line[1:-1]
            elif current == section and "=" in line:
                key, _equals, value = line.partition("=")
                assignments.append(Assignment(key.strip(_BLANKS), value.strip(_BLANKS), path))
    return assignments


def _join_continuations(text: str) -> list[str]:
    """Lines with ``\\`` continuations joined; comments between the parts are dropped, as systemd does."""
    lines: list[str] = []
    pending = ""
    for raw in text.split("\n"):
        if raw.lstrip(_BLANKS).startswith(("#", ";")):
            continue
        line = pending + raw
        pending = ""
        if (len(line) - len(line.rstrip("\\"))) % 2:
            pending = line[:-1] + " "
        else:
            lines.append(line.strip(_BLANKS))
    return [line for line in [*lines, pending.strip(_BLANKS)] if line]


def split_words(value: str) -> list[str]:
    """Split a value at blanks, resolving quotes and C escapes (systemd.syntax(7), "Quoting").

    At a malformed word (an open quote, an unknown escape) systemd warns and ignores the rest; this ignores it too.
    """
    words: list[str] = []
    word: list[str] | None = None
    quote = ""
    position = 0
    while position < len(value):
        char = value[position]
        position += 1
        if not quote and char in _BLANKS:
            if word is not None:
                words.append(_text(word))
            word = None
            continue
        word = [] if word is None else word
        if char == "\\":
            decoded, position = _unescape(value, position)
            if decoded is None:
                return words
            word.append(decoded)
        elif char == quote:
            quote = ""
        elif not quote and char in "\"'":
            quote = char
        else:
            word.append(char)
    if word is not None and not quote:
        words.append(_text(word))
    return words


def _text(parts: list[str]) -> str:
    """Join characters and single bytes (as surrogates): several bytes may form one UTF-8 character."""
    return "".join(parts).encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")


def _unescape(value: str, position: int) -> tuple[str | None, int]:
    """The value of the escape at ``position`` (after its backslash), None if it is invalid, and where it ends."""
    number = _NUMERIC_ESCAPE.match(value, position)
    if not number:
        return _ESCAPES.get(value[position : position + 1]), position + 1
    byte, octal, short, long = number.groups()
    code = int(octal, 8) if octal else int(byte or short or long, 16)
    if not code or code > 0x10FFFF or 0xD800 <= code < 0xE000:
        return None, number.end()
    is_byte = (byte or octal) and code > 0x7F
    return chr(0xDC00 + code if is_byte else code), number.end()


def quote(word: str) -> str:
    """One word as a double-quoted item of a unit file. Specifiers (``%``) are left to the caller."""
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def expand(value: str, unit: str) -> str:
    """Resolve the specifiers (``%``) of systemd.unit(5) that depend only on the unit's name or on the host.

    Raises SystemdError for one that only systemd itself can resolve.
    """
    name = unit.rpartition(".")[0]
    prefix, _at, instance = name.partition("@")
    last = prefix.rpartition("-")[2]
    known = {"%": "%", "n": unit, "N": name, "p": prefix, "i": instance, "j": last}
    known.update(P=_unescape_name(prefix), I=_unescape_name(instance), J=_unescape_name(last))
    known.update(t="/run", S="/var/lib", C="/var/cache", L="/var/log", E="/etc", T="/tmp", V="/var/tmp")
    known.update(h="/root", u="root", U="0", H=os.uname().nodename, v=os.uname().release)
    known.update(b=procfs.boot_id().replace("-", ""))

    def resolve(match: re.Match[str]) -> str:
        if match.group(1) not in known:
            shown = command_line.without_secret(value)
            raise SystemdError(f"only systemd can resolve {match.group(0)} in {shown!r}; write it out instead")
        return known[match.group(1)]

    return re.sub("%([A-Za-z%])", resolve, value)


def _unescape_name(name: str) -> str:
    """The reverse of systemd-escape(1)."""
    parts = re.split(r"\\x([0-9a-f]{2})", name.replace("-", "/"))
    return _text([chr(int(part, 16)) if index % 2 else part for index, part in enumerate(parts)])


def variable(word: str) -> tuple[str, str] | None:
    """Name and value of ``NAME=VALUE``; None for what systemd would not put into an environment."""
    key, _equals, value = word.partition("=")
    return (key, value) if _VARIABLE.match(word) else None


def parse_environment_file(text: str) -> dict[str, str]:
    """Variables of an ``EnvironmentFile=`` (systemd.exec(5)): shell-like quotes, no expansion.

    After a ``\\`` a comment continues on the next line, as it did before systemd 254.

    Raises SystemdError when an entry is not UTF-8; systemd then ignores the whole file.
    """
    variables: dict[str, str] = {}
    position = 0
    while True:
        entry = _FILE_KEY.match(text, position)
        if not entry:
            return variables
        position = entry.end()
        if not entry.group(2):
            continue  # a comment, or a line without an equals sign
        value, position = _file_value(text, position)
        word = entry.group(1).rstrip(_BLANKS) + "=" + value
        if re.search("[\ud800-\udfff]", word):
            # Its value may be a secret.
            raise SystemdError(f"the entry {word.partition('=')[0]!a} is not UTF-8")
        accepted = variable(word)
        if accepted:
            variables[accepted[0]] = accepted[1]


def _file_value(text: str, position: int) -> tuple[str, int]:
    """The value that begins at ``position``: quoted parts, then any plain rest of the line."""
    parts: list[str] = []
    quoted = _FILE_QUOTED.match(text, position)
    while quoted:
        single, double = quoted.groups()
        # Within double quotes only these lose their backslash, as in a shell; an escaped line break disappears.
        parts.append(single if double is None else re.sub(r'\\(?:(["\\`$])|\n)', r"\1", double))
        position = quoted.end()
        quoted = _FILE_QUOTED.match(text, position)
    plain = _FILE_PLAIN.match(text, position)
    if plain:
        position = plain.end()
        characters = re.findall(r"\\[\s\S]|[^\\]", plain.group(1))
        while characters and characters[-1] in (" ", "\t"):
            characters.pop()
        parts += [char[-1] for char in characters if char not in ("\\\n", "\\\r")]
    return "".join(parts), position


def users_with(unit: str) -> list[str]:
    """Ids of the users whose own systemd runs a unit of that name (systemd.special(7), user.slice)."""
    pattern = os.path.join("user.slice", "user-*.slice", "user@*.service", "**", glob.escape(unit))
    found = [path for root in CGROUP_ROOTS for path in glob.glob(os.path.join(root, pattern), recursive=True)]
    return sorted({path.partition("/user@")[2].partition(".service/")[0] for path in found})


def processes(control_group: str) -> list[int]:
    """Process ids in a unit's control group and below, lowest first. Empty when it has none."""
    if not control_group.startswith("/") or ".." in control_group.split("/"):
        return []
    found: set[int] = set()
    for root in CGROUP_ROOTS:
        top = root + control_group
        for directory, _subdirectories, files in os.walk(top):
            if "cgroup.procs" not in files:
                continue
            try:
                with open(os.path.join(directory, "cgroup.procs"), encoding="ascii") as file:
                    found.update(int(line) for line in file if line.strip() != "0")
            except OSError:
                continue  # the group is gone, or is a threaded one whose processes its parent lists
        if found:
            break
    return sorted(found)
