# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What fab does before it runs a command: it takes --limit, and says what is wrong with a command line in our words."""

from __future__ import annotations

import difflib
import io
import json
import os
import platform
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

from fabric import main as fabric_main
from invoke.exceptions import Exit, ParseError
from invoke.parser.argument import Argument

from .target import TargetError, from_word

LIMIT = "limit"
LIMIT_HELP = "pattern of hosts, as ansible-playbook --limit has it"
_WAY_OUT = "`fab -l` lists the commands, `fab --help COMMAND` the options of one"
# Invoke shows its own objects: Flag <Argument: unit (u)> needed value and was not given one!
_FLAG = re.compile(r"Flag <Argument: ([\w-]+).*?> needed value")
_UNKNOWN = re.compile(r"No idea what (.+) is!", re.DOTALL)


def adapt() -> None:
    """Adapt the program that loads us, if that is Fabric."""
    if hasattr(fabric_main.program, "core"):
        _write_to_who_listens()
        _take_limit_before_tasks()
        _take_list_of_a_pattern_for_limit()
        _refuse_in_our_words()


def at_least(least: int, **options: float) -> None:
    """Raises TargetError for an option with a smaller value."""
    for name, value in options.items():
        if value < least:
            raise TargetError(f"--{name.replace('_', '-')} is {value}; give {least} or more")


def versions(root: Path) -> list[str]:
    """The versions of the collection in that directory and of what it runs with. ``fab --version`` is Fabric's own and
    ends before we are loaded."""
    installed = root / "MANIFEST.json"  # in its place, a clone has galaxy.yml
    if installed.is_file():
        ours = json.loads(installed.read_text(encoding="utf-8"))["collection_info"]["version"]
    else:
        found = re.search(r"^version: (\S+)$", (root / "galaxy.yml").read_text(encoding="utf-8"), re.MULTILINE)
        ours = found[1] if found else "unknown"
    packages = [f"{name} {metadata.version(name)}" for name in ("ansible-core", "fabric")]
    python = f"Python {platform.python_version()} ({sys.executable})"
    return [f"offheap.profiler {ours} ({root})", *packages, python]


class _Output(io.TextIOWrapper):
    """Standard output. If it takes no more, the command ends with the reason instead of a traceback."""

    def write(self, text: str) -> int:
        with self._taken():
            return super().write(text)

    def flush(self) -> None:
        with self._taken():
            super().flush()

    @contextmanager
    def _taken(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())  # or the rest would fail again at the end
            # Who reads only the first lines, as head does, knows why.
            told = "" if isinstance(error, BrokenPipeError) else f"standard output cannot be written: {error.strerror}"
            raise Exit(told, 1) from None


def _write_to_who_listens() -> None:
    if sys.stdout is not None:
        own = io.FileIO(sys.stdout.fileno(), "w", closefd=False)
        sys.stdout = _Output(io.BufferedWriter(own), sys.stdout.encoding, sys.stdout.errors, line_buffering=True)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by who starts us
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  # as long as we run


def _take_limit_before_tasks() -> None:
    """Accept ``fab -i inventory --limit web status``, as ansible-playbook does.

    Fabric loads us after reading its own options, and reads unknown ones afterwards, with the tasks.
    """
    program = fabric_main.program
    own = program.core_args
    program.core_args = lambda: [*own(), Argument(name=LIMIT, help=LIMIT_HELP)]
    program.core[0].add_arg(Argument(name=LIMIT))


def _take_list_of_a_pattern_for_limit() -> None:
    """``-l web`` is --limit, as ansible-playbook has it: we have no groups of commands that Fabric could list."""
    core = fabric_main.program.core[0].args
    if isinstance(core.list.value, str):
        core[LIMIT].set_value(core.list.value)
        core.list.set_value(False, cast=False)


def _refuse_in_our_words() -> None:
    program = fabric_main.program
    own = program.parse_tasks

    def parse_tasks() -> None:
        try:
            own()
        except ParseError as error:
            raise Exit(f"{_told(str(error), program.collection.task_names)}; {_WAY_OUT}", 2) from error
        except ValueError as error:  # from int()
            word = str(error).rpartition(": ")[2]
            raise Exit(f"{word} is not a whole number; {_WAY_OUT}", 2) from error
        try:  # before Fabric connects to them in its own way
            for word in hosts.split(",") if (hosts := program.core[0].args.hosts.value) else ():
                from_word(word.strip())
        except TargetError as error:
            raise Exit(str(error), 2) from None

    program.parse_tasks = parse_tasks


def _told(error: str, commands: Iterable[str]) -> str:
    if found := _FLAG.match(error):
        return f"--{found[1]} needs a value"
    if found := _UNKNOWN.match(error):
        meant = difflib.get_close_matches(found[1].strip("'"), list(commands), 1)
        perhaps = f" (did you mean {meant[0]}?)" if meant else ""
        return f"{found[1]} is neither a command nor an option that fits here{perhaps}"
    return error.replace(" did not receive required positional arguments: ", " needs ")
