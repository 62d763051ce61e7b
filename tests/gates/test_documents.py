# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The documents say what is there: each variable, each refusal, each link."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.offheap.profiler.tests.gates.files import ROOT, kept

#: what a playbook sets itself
SET = re.compile(r"register: (\w+)|^ {4,}(offheap_\w+):", re.MULTILINE)
VARIABLE = re.compile(r"(?<![\w.])(?:offheap_\w+|rollback_(?:purge|discard)|state)(?![\w.])")
#: names that Ansible warns of
RESERVED = {"hosts", "environment", "name", "tasks", "vars", "tags", "action"}
PAGES = [path for path in kept() if path.suffix == ".md" and path.parts[0] not in ("tests", "changelogs")]


def _page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def _of_playbooks() -> set[str]:
    found: set[str] = set()
    for path in [*(ROOT / "playbooks").glob("*.yml"), *(ROOT / "roles").glob("*/defaults/main.yml")]:
        text = path.read_text(encoding="utf-8")
        own = {name for names in SET.findall(text) for name in names}
        for template in re.findall(r"{{.*?}}|(?:when|that): .*", text, re.DOTALL):
            found |= set(VARIABLE.findall(re.sub(r"'[^']*'", "", template))) - own
    return found


def _of_roles() -> Iterator[str]:
    for path in (ROOT / "roles").glob("*/meta/argument_specs.yml"):
        for entry in yaml.safe_load(path.read_text(encoding="utf-8"))["argument_specs"].values():
            yield from entry.get("options") or ()


def _examples() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    for path in sorted((ROOT / "plugins" / "modules").glob("*.py")):
        text = re.search(r'^EXAMPLES = r"""(.*?)"""', path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
        assert text, path
        tasks = yaml.safe_load(text[1]) or []
        if tasks and "hosts" in tasks[0]:  # a play
            tasks = tasks[0]["tasks"]
        yield path.stem, tasks


@pytest.mark.parametrize(("module", "tasks"), list(_examples()))
def test_an_example_runs_as_it_is_pasted(module: str, tasks: list[dict[str, Any]]) -> None:
    """With the rights that it needs on a host, and without names that Ansible keeps for itself."""
    action = ROOT / "plugins" / "action" / f"{module}.py"
    on_hosts = not action.exists() or "_requires_connection = False" not in action.read_text(encoding="utf-8")
    own = [task for task in tasks if f"offheap.profiler.{module}" in task]
    assert own and all(task.get("become", False) is on_hosts for task in own)
    assert not {task.get("register") for task in tasks} & RESERVED


def test_each_variable_of_playbooks_and_roles_is_listed_and_no_other() -> None:
    rows = [line.split("|")[1] for line in _page("variables.md").splitlines() if line.startswith("| `")]
    listed = set(re.findall(r"`(\w+)`", " ".join(rows)))
    assert listed == _of_playbooks() | set(_of_roles())


def test_each_refusal_has_its_way_out() -> None:
    sources = [*(ROOT / "plugins" / "module_utils" / "unit").glob("*.py"), *(ROOT / "plugins" / "modules").glob("*.py")]
    code = "".join(path.read_text(encoding="utf-8") for path in sources)
    refusals = set(re.findall(r'Refusal\(\s*"([a-z-]+)"', code))
    assert len(refusals) > 20
    rows = [line.split("|")[1] for line in _page("troubleshooting.md").splitlines() if line.startswith("| `")]
    told = {word.rstrip(".") for word in re.findall(r"`([a-z.-]+)`", " ".join(rows))}
    assert refusals - told == set()


def test_each_test_of_the_page_of_platforms_is_there() -> None:
    named = re.findall(r"`(tests/[^` ]+)`", _page("platforms.md"))
    assert named and [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links_lead_somewhere(page: Path) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    assert [link for link in links if link and not (ROOT / page.parent / link).exists()] == []
