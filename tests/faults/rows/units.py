# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What became of a unit since it was enabled, or before."""

from __future__ import annotations

from ansible_collections.offheap.profiler.tests.faults.fault import Fault

NEVER_READY = (
    "[Service]\nType=notify\nUser=app\nTimeoutStartSec=infinity\n"
    "ExecStart=/bin/sh -c '[ -z \"$MALLOC_CONF\" ] || exec sleep 1000; exec /usr/local/bin/ticker'\n"
)
RELOAD = "systemctl daemon-reload"
GONE = f"mv {{file}} /root/{{unit}}; {RELOAD}"
BACK = f"mv /root/{{unit}} {{file}}; {RELOAD}"
BROKEN = f"echo ExecStartPre=/bin/false >> {{file}}; {RELOAD}"
MENDED = f"sed -i /ExecStartPre/d {{file}}; {RELOAD}"
MISSING = f"sed -i s/ticker/no-such-ticker/ {{file}}; {RELOAD}"
THERE = f"sed -i s/no-such-ticker/ticker/ {{file}}; {RELOAD}"
KILLED = "systemctl kill -s KILL {unit}"


def row(name: str, do: str, inject: str, says: str = "", repair: str = "", **more: object) -> Fault:
    return Fault(name, "unit", do, says, inject=inject, repair=repair, **more)  # type: ignore[arg-type]


ROWS = [
    row(
        "never ready under the preload, TimeoutStartSec=infinity",
        "enable",
        "",
        "has not come up 5 s after its restart",
        fails=True,
        service=NEVER_READY,
        start_timeout=5,
        stops=True,
    ),
    row(
        "its unit file was deleted while it runs",
        "rollback",
        GONE,
        "its unit file is not-found",
        BACK,
        fails=True,
        everyday=True,
    ),
    row("it cannot start any more", "rollback", BROKEN, "did not start", MENDED, fails=True, everyday=True),
    row("its program is gone", "rollback", MISSING, "is missing or not executable", THERE, fails=True),
    row("it was stopped", "rollback", "systemctl stop {unit}", "needed no restart", "systemctl start {unit}"),
    row("it was killed", "rollback", KILLED + "; systemctl start {unit}", "rolled back"),
    row("it was restarted", "rollback", "systemctl restart {unit}", "rolled back"),
    row(
        "it was masked",
        "rollback",
        "mv {file} /root/{unit}; systemctl mask {unit}",
        "its unit file is masked",
        f"systemctl unmask {{unit}}; {BACK}",
        fails=True,
    ),
    row("its file was upgraded, with daemon-reload", "rollback", f"echo Nice=1 >> {{file}}; {RELOAD}", "rolled back"),
    row("its file was upgraded, without", "rollback", "echo Nice=1 >> {file}", "rolled back"),
    row(
        "another drop-in came",
        "rollback",
        f"printf '[Service]\\nNice=2\\n' > {{d}}/50-own.conf; {RELOAD}",
        "rolled back",
        "rm {d}/50-own.conf; rmdir --ignore-fail-on-non-empty {d}",
    ),
    row("it is stopped by SIGSTOP", "rollback", "systemctl kill -s STOP {unit}", "rolled back"),
    row(
        "it failed",
        "rollback",
        f"{BROKEN}; systemctl restart {{unit}}; true",
        "",
        f"{MENDED}; systemctl restart {{unit}}",
    ),
    row("it was stopped", "collect", "systemctl stop {unit}", repair="systemctl start {unit}"),
    row("it was killed while it wrote", "collect", KILLED + "; systemctl start {unit}"),
    row(
        "it was restarted ten times",
        "collect",
        "for i in 1 2 3 4 5 6 7 8 9 10; do systemctl reset-failed {unit}; systemctl restart {unit}; done",
    ),
    row("its file was deleted while it runs", "collect", GONE, repair=BACK),
    row("it was stopped", "switch", "systemctl stop {unit}", "no process", "systemctl start {unit}", fails=True),
    row("it is stopped by SIGSTOP", "purge", "systemctl kill -s STOP {unit}", "rolled back"),
    row("it was stopped", "purge", "systemctl stop {unit}", "needed no restart", "systemctl start {unit}"),
    row("it was restarted", "purge", "systemctl restart {unit}", "rolled back"),
]
