#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Trace what a running unit allocates and does not free, without a restart."""

from __future__ import annotations

DOCUMENTATION = r"""
module: trace_live
short_description: Trace what a running process allocates and does not free, without a restart
version_added: 0.1.0
description:
  - Traces one process of a unit, in O(windows) that each end in a dump in the unit's spool;
    M(offheap.profiler.heap_fetch) collects them, and M(offheap.profiler.leak_report) judges them like those of a
    profiled service. Nothing is restarted.
  - V(jvm) has a JVM load async-profiler, which records every allocation that crosses O(interval) and every free. The
    library stays mapped in the JVM until it ends; its hooks do nothing after the trace. JDK 21 and later say in the
    service's log that an agent was loaded. The recording lies in memory, and what is not read yet counts as the
    service's. Where the unit's memory limit leaves no room for it, nothing is traced. If the module is killed, a child
    process of it stops the profiler, which also stops by itself half a minute after the last window.
  - V(attach) opens the agent in the process, whatever its allocator, and lets it sample every O(interval) bytes. One
    thread that waits is held for it, for some milliseconds; all others run on. The agent
    writes its dumps itself, with the lives of what was sampled, and is told to detach after the last window; then the
    module looks from outside whether anything still leads to it, and fails if so. The library stays mapped, and does
    nothing. If the module is killed, a child process of it has the agent detach, which also detaches by itself a
    minute after the last window.
  - V(memleak) has bcc's memleak watch every allocation and every free of a process. Each of them then takes some
    microseconds, so only a service that allocates seldom bears it; O(max_cost) ends it for others. Stacks are walked by
    frame pointers. If the module is killed, memleak is too, and the kernel removes its probes.
  - V(perf) counts the pages that the process touches for the first time, by stack. That is growth, never what is live,
    so there is no verdict. One page in 16 is recorded, or fewer, so that it costs little. Stacks are walked by what the
    files say of their frames. If the module is killed, perf is too.
  - With V(jvm), V(attach) and V(memleak), all windows begin with the trace. Each dump says what was allocated
    since then and is still live.
author:
  - Offheap contributors (@offheap)
extends_documentation_fragment:
  - offheap.profiler.attributes
attributes:
  check_mode:
    support: full
    details: Finds out whether the unit can be traced.
  diff_mode:
    support: none
  idempotent:
    support: none
  platform:
    support: full
    platforms: linux
options:
  unit:
    description: The service unit. You may leave out C(.service).
    type: str
    required: true
  source:
    description:
      - What traces. V(auto) takes V(jvm) for a unit with a JVM, else V(attach) where the host has the agent and the
        process can be attached to, else V(memleak) or V(perf), whichever the host has.
      - V(attach) is for programs that use glibc, on x86_64 and aarch64. Static programs and musl are refused.
      - V(memleak) is C(memleak-bpfcc) of Debian's C(bpfcc-tools), or C(memleak) of C(bcc-tools) or C(libbpf-tools).
        Nothing is installed unasked.
    type: str
    choices: [auto, jvm, attach, memleak, perf]
    default: auto
  library:
    description:
      - For V(jvm), async-profiler's library (C(libasyncProfiler.so), 4.5 or later) on the host. By default, the newest
        below C(/opt/offheap/async-profiler), where the playbook C(offheap.profiler.trace_live) puts it.
      - For V(attach), the agent (C(liboffheap.so)). By default, the newest below C(/opt/offheap/agent), where the role
        C(jemalloc) puts it. V(auto) takes no other.
      - Only root may be able to write to it or to the directories above it.
    type: path
  window:
    description: Seconds between two dumps.
    type: int
    default: 300
  windows:
    description: How many dumps. A verdict needs three or more, over a minute or more.
    type: int
    default: 6
  interval:
    description:
      - Bytes between two allocations that V(jvm) or V(attach) records; for V(attach), rounded down to a power of two.
        A leak shows from some twenty times this on. Smaller ones
        cost more.
    type: str
    default: 1M
  max_recording:
    description:
      - The trace ends early when what is kept of its recording is larger.
      - Of a JVM, that is what was allocated and when it was freed, some 45 bytes for each O(interval) of it. Every
        other free is recorded too, at about 20 bytes, but read and dropped as the recording grows. The trace also ends
        once a quarter of this, or 8 MiB, is unread.
    type: str
    default: 32M
  max_cost:
    description:
      - Percent of CPU time that V(memleak), V(jvm) or V(attach) may add to what the process needs for the same work. By
        default, 5 for V(memleak), and 2.5 for V(jvm) and V(attach).
      - With V(memleak), the process is watched for five seconds before it is traced, and the trace ends when it surely
        costs more.
      - With V(jvm), frees are counted, and the trace ends when those of five seconds or more cost more, unless it is
        less than a hundredth of one processor.
      - With V(attach), the agent measures what it does for what is sampled. Where that costs more in five seconds, and
        more than a hundredth of one processor, it leaves a dump and detaches by itself.
    type: float
  pid:
    description: Trace this process of the unit. By default, the one that holds most memory.
    type: int
"""

EXAMPLES = r"""
- name: See for half an hour what the frontend keeps
  offheap.profiler.trace_live:
    unit: frontend
    library: /opt/offheap/async-profiler/0d2c6b1f3a49/libasyncProfiler.so
  become: true

- name: See what the router keeps, which is no JVM
  offheap.profiler.trace_live:
    unit: router
    source: attach
    window: 30
  become: true
"""

RETURN = r"""
unit:
  description: The unit's full name.
  returned: always
  type: str
  sample: frontend.service
pid:
  description: The process that was traced.
  returned: success
  type: int
release:
  description: Its JDK's feature release; 0 if it is no JVM.
  returned: success
  type: int
  sample: 17
source:
  description: What has traced it.
  returned: success
  type: str
  sample: jvm
held:
  description: For how many seconds one of its threads was held (V(attach)); 0 where none was.
  returned: success
  type: float
  sample: 0.004
dumps:
  description: The dumps in the unit's spool, by name.
  returned: success
  type: list
  elements: str
ended:
  description: Why the trace ended before its time; empty if it did not.
  returned: success
  type: str
"""

from typing import Any, NoReturn

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
from ansible_collections.offheap.profiler.plugins.module_utils.tracing import windows
from ansible_collections.offheap.profiler.plugins.module_utils.tracing.running_trace import TraceError, Wanted


def wanted(module: AnsibleModule) -> Wanted:
    """What the task asks for. Raises TraceError."""
    given = module.params
    sizes = {name: _bytes(module, name) for name in ("interval", "max_recording")}
    return Wanted(
        given["unit"],
        given["library"] or "",
        given["window"],
        given["windows"],
        sizes["interval"],
        sizes["max_recording"],
        given["pid"],
        given["source"],
        given["max_cost"],
    )


def _bytes(module: AnsibleModule, name: str) -> int:
    from ansible.module_utils.common.text.formatters import human_to_bytes

    try:
        return int(human_to_bytes(module.params[name]))
    except ValueError as exc:
        raise TraceError(f"{name} is no size: {exc}") from exc


def main() -> NoReturn:
    """Module entry point."""
    module = AnsibleModule(
        argument_spec={
            "unit": {"type": "str", "required": True},
            "source": {"type": "str", "default": "auto", "choices": ["auto", "jvm", "attach", "memleak", "perf"]},
            "library": {"type": "path"},
            "window": {"type": "int", "default": 300},
            "windows": {"type": "int", "default": 6},
            "interval": {"type": "str", "default": "1M"},
            "max_recording": {"type": "str", "default": "32M"},
            "max_cost": {"type": "float"},
            "pid": {"type": "int"},
        },
        supports_check_mode=True,
    )
    result: dict[str, Any] = {"unit": module.params["unit"]}
    try:
        result = windows.trace(wanted(module), module.check_mode).to_json()
    except (OffheapError, OSError) as error:
        module.fail_json(msg=str(error), **result)
    if result["ended"]:
        module.warn(f"the trace of {result['unit']} ended early: {result['ended']}")
    elif not result["dumps"] and not module.check_mode:
        module.warn(f"process {result['pid']} of {result['unit']} has touched no new memory in all that time")
    module.exit_json(changed=True, **result)


if __name__ == "__main__":
    main()
