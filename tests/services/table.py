# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The page on packaged services, from what was seen of them."""

from __future__ import annotations

from collections.abc import Sequence

from ansible_collections.offheap.profiler.tests.services.attached import Attachment
from ansible_collections.offheap.profiler.tests.services.catalog import LOTS
from ansible_collections.offheap.profiler.tests.services.packaged import SUITES
from ansible_collections.offheap.profiler.tests.services.trial import Outcome

_HEAD = """<!--
SPDX-License-Identifier: GPL-3.0-or-later
SPDX-FileCopyrightText: Offheap contributors
-->
<!-- Written by `make services`; edit tests/services/table.py. -->

# Packaged services

What happens to services of Debian 12 (bookworm) and 13 (trixie) when they are profiled. `make services` installs
some of them at a time, as packaged, on a host that has just booted, drives each with a client of its own, enables the
profiler with the playbook `enable_profiling` and a sample each 4 KiB from the start (`start_delay: 0`), reloads and
restarts each under load, collects,
rolls back with `rollback_purge`, and compares. A file that differs counts against all services of that host.

- **seen**: on which day.
- **enabled**: yes; refused before it was restarted; or put back after a restart, by itself.
- **samples**: objects in the dump that has the most of them.
- **named**: the share of that dump's frames that have a function's name. No debug information was installed: the names
  are those that a package's own files export.
- **reload**, **restart**: whether the client got its answer soon after each, in twenty tries at most; - where a service
  has no reload.
- **as before**: after rollback no file of `/etc`, `/opt`, `/usr` or `/run/systemd` differs by a byte, nothing is left
  in `/var/lib` (but for the service's own data), all units that were active are active, and the client gets its
  answers.
- **attached**: while it ran as packaged, under its client, `trace_live` attached the agent to one of its processes (of
  nginx, Apache, PHP-FPM, PostgreSQL to a worker) for sixteen seconds, with a sample each 4 KiB: how
  many objects were sampled, and for how long one thread was held (on hosts that share a busy machine). `yes`: no answer
  of the client failed before, while or after, nothing was restarted, no process of the unit was killed by a signal, and
  no entry in the process led to the agent afterwards. 0 samples: it took nothing by `malloc` in that time, or has an
  allocator of its own that maps memory (Erlang, Go). HAProxy forbids itself threads; root lifts that for the agent's on
  a host, but may not in this lab (CAP_SYS_RESOURCE).
"""


_COLUMNS = ["unit", "Debian", "version", "seen", "enabled", "samples", "named", "reload", "restart"]
_COLUMNS += ["as before", "attached", "what it needed"]


def row(outcome: Outcome, attached: Attachment | None) -> str:
    """A service's line of the table."""
    cells = [outcome.unit, outcome.suite, outcome.version, outcome.seen]
    if outcome.untried:
        return _line([*cells, "not tried", "", "", "", "", "", _attached(attached), outcome.untried])
    numbers = ["", ""]
    if outcome.enabled == "yes":
        numbers = [str(outcome.samples), f"{outcome.named:.0%}" if outcome.samples else "-"]
    told = "; ".join(filter(None, [", ".join(outcome.needed), outcome.problem]))
    same = "yes" if outcome.rolled_back else f"no: {' '.join([*outcome.down, *outcome.changed][:3])}"
    return _line(
        [
            *cells,
            outcome.enabled,
            *numbers,
            outcome.reload or "-",
            outcome.restart or "-",
            same,
            _attached(attached),
            told,
        ]
    )


def _attached(outcome: Attachment | None) -> str:
    if outcome is None or outcome.untried:
        return ""
    if outcome.enabled != "yes":
        return outcome.enabled
    if not outcome.rolled_back:
        return f"no: {outcome.problem}"
    return f"yes: {outcome.samples}, {1000 * outcome.held:.0f} ms"


def page(outcomes: Sequence[Outcome], attached: Sequence[Attachment]) -> str:
    """The whole page. What did not run before we came is no row of it."""
    tried = [outcome for outcome in outcomes if not outcome.untried]
    good = [outcome for outcome in tried if is_good(outcome)]
    beside = {(one.suite, one.name): one for one in attached}
    reasons = [(one, one.enabled) for one in tried if one.reason]
    reasons += [(one, f"{one.enabled} when attached to") for one in attached if one.reason and not one.untried]
    parts = [
        _HEAD,
        f"{len(good)} of {len(tried)} are profiled, or refused before they are touched, and as before afterwards. Of"
        f" {sum(one.enabled == 'yes' and not one.samples for one in good)}, dumps came in which nothing was sampled:"
        f" they allocate too little, or not by malloc (Go). They are {_services(tried)} services, some in both releases"
        " or in two ways.\n",
        _line(_COLUMNS),
        "|" + "---|" * len(_COLUMNS),
        *(row(outcome, beside.get((outcome.suite, outcome.name))) for outcome in tried),
    ]
    if reasons:
        parts += [
            "\n## Why not\n",
            *(
                f"- {one.unit} ({one.suite}), {what}: {_plain(one.reason.partition(' Its journal')[0])}"
                for one, what in reasons
            ),
        ]
    return "\n".join(parts) + "\n"


def _services(tried: Sequence[Outcome]) -> int:
    """How many, whatever a release calls them and in however many ways they were tried."""
    names = {(outcome.suite, outcome.name) for outcome in tried}
    every = (service for lot in LOTS for service in lot)
    return len({one.unit for one in every if any((suite, one.of(suite).name) in names for suite in SUITES)})


def is_good(outcome: Outcome) -> bool:
    """Profiled, with dumps that came, or refused before it was touched; and as it was."""
    profiled = outcome.enabled == "yes" and outcome.processes > 0
    return outcome.rolled_back and (profiled or outcome.enabled == "refused")


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(map(_plain, cells)) + " |"


def _plain(text: str) -> str:
    """On one line, without what Markdown would take for markup."""
    return " ".join(text.replace("|", "/").replace("<", "&lt;").split())
