# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The harness tells the truth about a playbook, and the collection is installed as users get it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from ansible_collections.offheap.profiler.tests.integration.playbooks import PlaybookResult, Stats

RunPlaybook = Callable[..., PlaybookResult]

PLAYBOOK = """\
- name: Probe
  hosts: fleet
  gather_facts: false
  become: true
  tasks:
    - name: Write
      ansible.builtin.copy:
        content: "{{ word }}\\n"
        dest: /run/probe
        mode: "0600"
    - name: Fail on one host
      ansible.builtin.fail:
        msg: this one
      when: inventory_hostname == 'app2'
"""


def test_results_per_host_and_task(playbook: RunPlaybook, tmp_path: Path) -> None:
    probe = tmp_path / "probe.yml"
    probe.write_text(PLAYBOOK)
    told = playbook(probe, limit="app1,app2", extra_vars={"word": "one two"}, check=True, diff=True)
    assert told.rc == 2
    assert told.failures() == "app2: Fail on one host: this one"
    assert told.stats == {"app1": Stats(ok=1, changed=1, skipped=1), "app2": Stats(ok=1, changed=1, failed=1)}
    assert [task.task for task in told.changes("app1")] == ["Write"]
    assert told.changes("app1")[0].diffs[0]["after"] == "one two\n"
    done = playbook(probe, limit="app1", extra_vars={"word": "one"}).check()
    assert [(task.task, task.status, task.changed) for task in done.of("app1")] == [
        ("Write", "ok", True),
        ("Fail on one host", "skipped", False),
    ]
    assert done.log.read_text().startswith("$ ansible-playbook ")


def test_installed_collection_has_every_playbook_under_both_names(collection: Path) -> None:
    playbooks = collection / "playbooks"
    names = [path.name for path in playbooks.glob("*_*.yml")]
    assert names
    for name in names:
        link = playbooks / name.replace("_", "-")
        assert link.is_symlink()
        assert os.readlink(link) == name
    assert [path.name for path in (collection / "tests").iterdir()] == ["config.yml"]
