# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""How a unit is profiled: options of the modules that write drop-ins."""

from __future__ import annotations


class ModuleDocFragment:
    """Used as ``extends_documentation_fragment: [offheap.profiler.injection]``."""

    DOCUMENTATION = r"""
options:
  mode:
    description:
      - V(profile) preloads jemalloc with its profiler. V(swap) only changes the malloc, to see whether RSS differs.
      - V(own) preloads nothing. It switches on the profiler of the jemalloc that the unit's program has linked in, such
        as tikv-jemallocator's with its feature C(profiling), by C(MALLOC_CONF) or the name that it has there
        (C(_RJEM_MALLOC_CONF)). Unless O(malloc_conf) says otherwise, it samples every 512 KiB and dumps each time a GiB
        was allocated.
      - With V(own) and V(swap) there is no agent and no runtime option; with V(swap) no directory for dumps either.
    type: str
    choices: [profile, own, swap]
    default: profile
  allocator:
    description:
      - With V(own), the service keeps the allocator that it has, whichever that is, and O(agent) alone is preloaded. It
        samples the calls of C(malloc) and its kin, every C(lg_prof_sample) of O(malloc_conf), which may name nothing
        else.
      - It sees no calls of an allocator that is linked into the program itself, for which it is refused.
      - Only for O(mode=profile).
    type: str
    choices: [jemalloc, own]
    default: jemalloc
  arena_max:
    description:
      - With O(mode=swap), how many arenas glibc's malloc may have (C(MALLOC_ARENA_MAX)). V(0) preloads O(library).
    type: int
    default: 0
  library:
    description:
      - Path of the jemalloc library on the target.
      - Required unless O(arena_max) limits glibc's arenas, O(mode=own) or O(allocator=own).
    type: path
  malloc_conf:
    description:
      - Options for jemalloc, by its own names, for example C(lg_prof_sample).
      - The module sets C(prof) and C(prof_prefix) itself.
      - On a host whose kernel gives huge pages always, it also sets C(thp:never) and C(metadata_thp:disabled), unless
        the unit's own C(MALLOC_CONF) or this says otherwise.
      - It checks the names against the options of the library's version.
    type: dict
    default: {}
  version:
    description:
      - Version of the library, to check O(malloc_conf) against while the library is not on the target yet, as in check
        mode.
      - By default the library itself is asked.
    type: str
  agent:
    description:
      - Path of the agent's library on the target. It is preloaded behind jemalloc or, with O(allocator=own), alone.
      - Sampling then begins some seconds after the start of the process, and M(offheap.profiler.heap_control) can
        switch it while the process runs.
    type: path
  agent_settings:
    description: What the agent does.
    type: dict
    suboptions:
      executable:
        description:
          - The program in which the agent acts. Other processes of the unit inherit the preload, but the agent does
            nothing in them.
          - V(auto) is the program of the unit's main process or, where another that is there to stay holds more than
            half of the unit's memory, that one. A shell is none.
          - A program that is profiled already remains it, as long as it holds a quarter of the unit's memory.
        type: path
        default: auto
      start:
        description: V(dormant) leaves sampling off until somebody switches it on.
        type: str
        choices: [sampling, dormant]
        default: sampling
      unwinder:
        description:
          - V(hybrid) follows frame pointers where unwind tables end, V(fp) uses only frame pointers, V(builtin) is
            jemalloc's own unwinder.
        type: str
        choices: [hybrid, fp, builtin]
        default: hybrid
      children:
        description:
          - Profile each child that runs the same program too, as a process of its own, such as prefork workers.
          - Children of root may run under one other user, whose spool it is then; that is seen in the running service.
            Of two other users one could not write, and the unit is rolled back.
          - By default, whether the unit has such children as it runs now, all of them under one such user.
        type: bool
      start_delay:
        description: Seconds from the start of the process until sampling begins.
        type: int
      dump_seconds:
        description: Seconds between two dumps. V(0) takes none.
        type: int
      dump_growth:
        description:
          - Take a dump as well each time resident memory (without files) exceeds by so many percent what it was at any
            earlier one, so that a profile exists from shortly before the kernel kills the process. V(0) takes none.
          - Together they take at most a twentieth of the time, so one that lasts long puts off the next.
        type: int
      dump_pressure:
        description:
          - Take a dump as well when the unit's control group reaches C(memory.high) or C(memory.max), or its tasks wait
            for memory a tenth of the time; every ten minutes at most. Needs control groups of version 2.
        type: bool
        default: false
      stats_seconds:
        description: Seconds between two records of memory statistics. V(0) writes none.
        type: int
      keep_files:
        description: How many dumps the spool may hold. The first, the newest and log-spaced ones between them stay.
        type: int
      keep_bytes:
        description: How many bytes of dumps the spool may hold.
        type: int
      minimum_free:
        description: How many bytes must stay free. A dump that would leave less is not written.
        type: int
  runtime:
    description:
      - The language runtime. It gets options that make its frames visible, for example a JVM gets
        C(-XX:+PreserveFramePointer) through C(JAVA_TOOL_OPTIONS). What the unit already sets stays.
      - V(auto) looks at the running process.
    type: str
    choices: [auto, jvm, python, node, dotnet, native]
    default: native
  runtime_without:
    description: Which of a runtime's options to leave out.
    type: list
    elements: str
    choices: [frame-pointers, interpreted-frames, memory-tracking, perf-map]
    default: []
  runtime_with:
    description:
      - What else a runtime is to do, since by itself it would not, for its cost.
      - With V(objects), Python allocates its objects with malloc (C(PYTHONMALLOC=malloc)). Otherwise those of up to 512
        bytes lie in arenas that it maps by itself, which no profile of malloc shows.
    type: list
    elements: str
    choices: [objects]
    default: []
  until_reboot:
    description: Write the drop-in below C(/run) instead of C(/etc), so that a reboot ends the profiling.
    type: bool
    default: false
  min_free_mib:
    description: Refuse if the file system of the dumps has less than this free, in MiB.
    type: int
    default: 512
  outliving:
    description:
      - Profile a running unit with C(KillMode=process) or C(KillMode=none) all the same. Processes of it may outlive
        each restart, and then go on under the profiler after a rollback until you end them.
    type: bool
    default: false
"""
