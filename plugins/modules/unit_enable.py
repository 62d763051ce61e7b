#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Bring the profiler into units of a host in one step, and put back each that does not bear it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: unit_enable
short_description: Preload a profiling jemalloc into units, restart them, and put back what does not stay healthy
version_added: 0.1.0
description:
  - For each unit, writes a drop-in as M(offheap.profiler.profiled_unit) does, restarts the unit if its processes differ
    from it, waits until they have the library, and watches the unit while the agent of each process writes a first
    dump.
  - The first unit that needs a restart is watched to the end before the next one is touched, and so are the next ones
    until one stays healthy. The others are restarted one after the other and watched together.
  - A unit that fails is rolled back, restarted and checked again. A unit that is refused is unchanged. Neither keeps
    the others from their turn.
  - Units of which systemd restarts one with another are restarted and watched as one, and put back as one.
  - What depends on a unit, or starts it, and ran before it was restarted, runs again afterwards. Otherwise the unit
    counts as failed.
  - Waits for another run that changes units of the host, for O(start_timeout) seconds at most.
  - The module succeeds all the same and tells in RV(problems) what is not done, why, and what to do, so that a playbook
    can print the whole list first.
author:
  - Offheap contributors (@offheap)
extends_documentation_fragment:
  - offheap.profiler.attributes
  - offheap.profiler.injection
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  idempotent:
    support: full
  platform:
    support: full
    platforms: linux
options:
  units:
    description:
      - Names of service units, or mappings with C(name) and any of the other options, which then hold for that unit.
        C(start), C(dump_seconds), C(dump_growth) and C(dump_pressure) stand for those of O(agent_settings).
      - What such a mapping has in C(agent_settings) is added to O(agent_settings).
    type: list
    elements: raw
    required: true
  leave_out:
    description: Names of O(units) to leave as they are, such as those that an earlier O(preflight=true) has refused.
    type: list
    elements: str
    default: []
  preflight:
    description: Only find out which units would be refused, and why. Changes nothing, and reports no changes.
    type: bool
    default: false
  healthy_seconds:
    description: How long a unit must stay up after its restart, in seconds.
    type: int
    default: 30
  start_timeout:
    description: How long a unit may take to come up, in seconds.
    type: int
    default: 120
  best_effort:
    description: Only warn if no dump can be had from a unit that runs well. Otherwise such a unit is rolled back.
    type: bool
    default: false
  health_command:
    description:
      - A command that must succeed too, without a shell, before a unit is touched and after its restart. It is tried
        five times. In check mode it is not run.
    type: str
    default: ""
  health_url:
    description: A URL that must answer 200 too, before a unit is touched and after its restart. It is tried five times.
    type: str
    default: ""
seealso:
  - module: offheap.profiler.profiled_unit
  - module: offheap.profiler.unit_health
  - module: offheap.profiler.unit_rollback
"""

EXAMPLES = r"""
- name: Profile two services
  offheap.profiler.unit_enable:
    library: /opt/offheap/jemalloc/5.3.0-4f2c8a1e/lib/libjemalloc.so.2
    agent: /opt/offheap/agent/0a1b2c3d4e5f/liboffheap.so
    units:
      - frontend
      - name: orders
        health_url: http://127.0.0.1:8080/health
  become: true
  register: enabled

- name: Fail if a unit is not profiled
  ansible.builtin.fail:
    msg: "{{ enabled.problems | join('\n') }}"
  when: enabled.problems | length > 0
"""

RETURN = r"""
units:
  description: What was done, by unit.
  type: list
  elements: dict
  returned: success
  contains:
    unit:
      description: The canonical name of the unit.
      type: str
    drop_in:
      description: Path of the drop-in.
      type: str
    environment:
      description: The variables that the unit is started with, without those that may be secret.
      type: dict
    spool:
      description: Directory of the dumps.
      type: str
    active:
      description: Whether the unit was running.
      type: bool
    dependents:
      description: The running units that a restart of this one takes along, and those that start it.
      type: list
      elements: str
    restarted:
      description: Whether its restart was begun.
      type: bool
    dumps:
      description: Paths of the dumps that were written while it was watched.
      type: list
      elements: str
    unseen:
      description: Why no dump could be had (O(best_effort)), or none of some of its processes.
      type: str
    programs:
      description:
        - The programs that its processes run, the one with most memory first, before a restart or once it had stayed
          up.
        - Sizes are of memory without files, in bytes. C(processes_with_agent) and C(rss_with_agent) are those of which
          there are dumps, or will be.
      type: list
      elements: dict
    sees:
      description: In one sentence, what is profiled of the unit. Empty if it does not run.
      type: str
    rss_before:
      description: Resident memory of its processes before the restart, in bytes.
      type: int
    rss_after:
      description: The same once it had stayed up.
      type: int
    refusal:
      description: Short name of the reason if the unit is refused.
      type: str
    problem:
      description: What is not done, why, and what to do. Empty if all is done.
      type: str
refused:
  description: Names of units as given that are refused.
  type: list
  elements: str
  returned: success
refusals:
  description: Why, in one sentence each.
  type: list
  elements: str
  returned: success
problems:
  description: What is not done with the other units.
  type: list
  elements: str
  returned: success
"""

import contextlib
import select
import time
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any, NoReturn

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.module_utils.urls import open_url

from ansible_collections.offheap.profiler.plugins.module_utils.agent import first_dump
from ansible_collections.offheap.profiler.plugins.module_utils.unit import at_work, enabling, health, rollout
from ansible_collections.offheap.profiler.plugins.module_utils.unit.changes import Changes

_TRIES = 5
_PAUSE = 3.0
_URL_SECONDS = 30
_OUTPUT = 1  # our standard output, as a file descriptor

# What holds for all units, and may be given for one.
_OPTIONS: dict[str, dict[str, Any]] = {
    **enabling.OPTIONS,
    "healthy_seconds": {"type": "int", "default": 30},
    "start_timeout": {"type": "int", "default": 120},
    "best_effort": {"type": "bool", "default": False},
    "health_command": {"type": "str", "default": ""},
    "health_url": {"type": "str", "default": ""},
}
# Options of the agent that a unit's mapping may have among its own.
_OF_THE_AGENT = ("start", "dump_seconds", "dump_growth", "dump_pressure")


def without_defaults(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The same options, none of which has a value unless it is given."""
    bare = {}
    for name, option in spec.items():
        bare[name] = {key: value for key, value in option.items() if key != "default"}
        if "options" in option:
            bare[name]["options"] = without_defaults(option["options"])
    return bare


def given_for(item: object) -> dict[str, Any]:
    """The options that one of O(units) has itself, its name among them. Raises ValueError with what is wrong."""
    settings = enabling.OPTIONS["agent_settings"]["options"]
    options = {**_OPTIONS, **{name: settings[name] for name in _OF_THE_AGENT}}
    validator = ArgumentSpecValidator({"name": {"type": "str", "required": True}, **without_defaults(options)})
    if not isinstance(item, Mapping):
        item = {"name": item}
    result = validator.validate(dict(item))
    if result.error_messages:
        raise ValueError("; ".join(result.error_messages))
    return {name: value for name, value in result.validated_parameters.items() if value is not None}


def parameters_of(given: dict[str, Any], for_all: dict[str, Any]) -> dict[str, Any]:
    """What holds for a unit: its own options before those for all."""
    merged = {**{name: for_all[name] for name in _OPTIONS}, **given}
    merged["agent_settings"] = dict(for_all["agent_settings"] or {})
    for own in ({name: given.get(name) for name in _OF_THE_AGENT}, given.get("agent_settings", {})):
        merged["agent_settings"].update({name: value for name, value in own.items() if value is not None})
    return merged


def check(module: AnsibleModule, parameters: dict[str, Any]) -> None:
    """Run the health command and request the health URL. Raises Unhealthy with the last thing that went wrong."""
    for obstacle in (command_fails, url_fails):
        for left in reversed(range(_TRIES)):
            problem = obstacle(module, parameters)
            if not problem:
                break
            if not left:
                raise health.Unhealthy(problem)
            time.sleep(_PAUSE)


def command_fails(module: AnsibleModule, parameters: dict[str, Any]) -> str:
    """Why the health command did not succeed; empty if it did, or was not to be run."""
    command = parameters["health_command"]
    if not command or module.check_mode:
        return ""
    status, output, errors = module.run_command(command, handle_exceptions=True, errors="replace")
    said = (errors or output).strip().splitlines()
    return (
        f"the health command '{command}' ended with {status}: {said[-1] if said else 'it said nothing'}"
        if status
        else ""
    )


def url_fails(_module: AnsibleModule, parameters: dict[str, Any]) -> str:
    """Why the health URL did not answer 200; empty if it did."""
    url = parameters["health_url"]
    if not url:
        return ""
    try:
        status = open_url(url, timeout=_URL_SECONDS).status
    except (OSError, HTTPException) as error:
        return f"the health URL {url} did not answer: {error}"
    return "" if status == 200 else f"the health URL {url} answered {status}"


def somebody_waits() -> bool:
    """Whether the other end of our output is still open. It closes with the connection, when the controller dies."""
    poll = select.poll()
    poll.register(_OUTPUT, 0)
    return not poll.poll(0)


def main() -> NoReturn:
    """Module entry point."""
    module = AnsibleModule(
        argument_spec={
            "units": {"type": "list", "elements": "raw", "required": True},
            "leave_out": {"type": "list", "elements": "str", "default": []},
            "preflight": {"type": "bool", "default": False},
            **_OPTIONS,
        },
        supports_check_mode=True,
    )
    if not module.params["units"]:
        module.fail_json(msg="No unit is named: give units (profiled_service_units) the name of a service.")
    only_look = module.check_mode or module.params["preflight"]
    wanted, names = [], []
    for number, item in enumerate(module.params["units"], 1):
        try:
            given = given_for(item)
        except ValueError as error:
            module.fail_json(msg=f"Entry {number} of units is wrong: {error}")
        name = given.pop("name")
        parameters = parameters_of(given, module.params)
        try:
            enabling.preloaded(parameters)
        except ValueError as error:
            module.fail_json(msg=f"{name}: {error}.")
        if name not in module.params["leave_out"]:
            names.append(name)
            wanted.append(rollout.Enabled(name, parameters, Changes(only_look)))
    watchers = rollout.Watchers(
        first_dump.see, first_dump.sentence, lambda parameters: check(module, parameters), somebody_waits
    )
    try:
        with contextlib.nullcontext() if only_look else at_work.alone(module.params["start_timeout"]):
            rollout.enable(wanted, watchers, only_look)
    except at_work.SomebodyAtWork as error:
        module.fail_json(msg=str(error))
    for warning in [warning for one in wanted for warning in one.warnings]:
        module.warn(warning)
    touched = [] if module.params["preflight"] else wanted
    module.exit_json(
        changed=any(one.changes.any for one in touched),
        diff=[part for one in touched for part in one.changes.diff()],
        units=[
            {
                "unit": one.unit,
                "drop_in": one.wanted.drop_in if one.wanted else "",
                "environment": one.wanted.injection.shown() if one.wanted else {},
                "spool": one.wanted.spool if one.wanted else "",
                "active": one.active,
                "dependents": one.dependents,
                "restarted": one.restarted,
                "dumps": one.dumps,
                "unseen": one.unseen,
                "programs": one.programs,
                "sees": one.sees,
                "rss_before": one.rss_before,
                "rss_after": one.rss_after,
                "refusal": one.refusal,
                "problem": one.problem,
            }
            for one in wanted
        ],
        refused=[name for name, one in zip(names, wanted) if one.refusal],
        refusals=[one.problem for one in wanted if one.refusal],
        problems=[one.problem for one in wanted if one.problem and not one.refusal],
    )


if __name__ == "__main__":
    main()
