#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Where a process's memory is: sizes, classified memory map, allocator, JVM, traces of earlier crashes."""

from __future__ import annotations

DOCUMENTATION = r"""
module: native_memory_info
short_description: Show where the memory of units and processes is, by class of mapping, and what the JVM says
version_added: 0.1.0
description:
  - Reads the memory map of each process and assigns every mapping to one class, as an expert does with C(pmap -X).
    RV(samples[].processes[].classes) lists the classes. Their resident bytes add up to the resident set.
  - Also counts how much of glibc's heaps is in use, from the headers of their chunks.
  - Asks a HotSpot JVM over its attach socket, as its own user, for what C(jcmd) calls low impact. One that does not
    answer in time is left alone, and a process that is not a HotSpot JVM never gets a signal.
  - Changes nothing, stops nothing, and needs no restart.
  - Without the right to look into a process, returns what can be read, and names the rest in
    RV(samples[].processes[].not_readable).
  - P(offheap.profiler.triage#role) takes some such samples and says what kind of growth it is.
author:
  - Offheap contributors (@offheap)
extends_documentation_fragment:
  - offheap.profiler.attributes
  - offheap.profiler.attributes.action
attributes:
  action:
    support: full
    details: Keeps the samples on the controller.
  async:
    support: none
  check_mode:
    support: full
    details: Changes nothing on the host in any mode. O(keep) works in check mode too.
  diff_mode:
    support: none
  idempotent:
    support: full
  platform:
    support: full
    platforms: linux
options:
  units:
    description: Service units whose processes to look at. You may leave out C(.service).
    type: list
    elements: str
    default: []
  containers:
    description:
      - Containers whose processes to look at, as V(NAMESPACE/POD/CONTAINER) of Kubernetes, or as Docker or Podman calls
        them. C(*) and C(?) stand for any characters.
      - No engine is asked. They are told by their control groups, and by the names that the engines leave on the host.
    type: list
    elements: str
    default: []
    version_added: 1.1.0
  pids:
    description: Further processes to look at.
    type: list
    elements: int
    default: []
  keep:
    description:
      - Directory on the controller in which to keep the samples, for M(offheap.profiler.triage_report).
      - A relative path starts at the directory that C(ansible-playbook) was started in.
    type: str
  jvm_timeout:
    description: How many seconds a JVM may take to answer.
    type: int
    default: 5
seealso:
  - module: offheap.profiler.allocator_info
"""

EXAMPLES = r"""
- name: Show where the frontend's memory is
  offheap.profiler.native_memory_info:
    units: [frontend]
  become: true
  register: memory

- name: Keep samples, to see later what has grown
  offheap.profiler.native_memory_info:
    units: [frontend, worker]
    keep: offheap/triage
  become: true
"""

RETURN = r"""
samples:
  description: One sample for each unit, container and pid.
  type: list
  elements: dict
  returned: success
  contains:
    name:
      description: The canonical name of the unit, or C(container NAME), or C(pid N).
      type: str
      sample: frontend.service
    time:
      description: When it was taken, in seconds since the epoch.
      type: float
    boot_id:
      description: The random id of the host's boot. Together with pid and start it identifies one process.
      type: str
    problem:
      description: Why there is nothing to look at. Null if there is something.
      type: str
    cgroup:
      description:
        - The unit's control group, with C(current), C(peak), C(limit), C(high) and C(swap) in bytes, C(oom_kills), and
          C(pressure), the percentage of the last minute that some or all processes waited for memory.
        - C(parts) are the bytes of C(current), with C(processes), C(files), C(shared-memory), C(kernel), C(sockets) and
          what nothing explains, C(rest).
        - Null means that the host does not say, or that there is no limit.
      type: dict
    files_in_memory:
      description:
        - The ten files in memory that take most (on a tmpfs, of memfd_create, System V's), from 1 MiB, of those that
          the processes have open, or that lie on a tmpfs of theirs alone, or that were written since they were started
          by a user that no other process has.
        - Each has its C(path), its C(size) in bytes, and C(files), their number, where it is a directory of many.
      type: list
      elements: dict
    host:
      description:
        - All of the host's memory in bytes, from C(/proc/meminfo), C(total) and C(available), and the parts that add up
          to the total, C(free), C(processes), C(files), C(shared-memory), C(slab-reclaimable), C(slab), C(page-tables),
          C(vmalloc), C(per-cpu), C(huge-pages), C(zswap), C(sockets), C(zram), and what the kernel accounts to nothing,
          C(rest).
        - Null means that the host does not say.
      type: dict
    crashes:
      description:
        - C(error_files) of HotSpot (C(path), C(time), C(reason), C(failed), C(physical), C(physical_free),
          C(resident)), C(core_dumps) (C(path), C(time), C(size)) and C(oom_kills) of the journal (C(time), C(pid),
          C(name), C(anon), C(file), C(shmem)). Sizes in bytes.
      type: dict
    processes:
      description: The processes, the largest first.
      type: list
      elements: dict
      contains:
        pid:
          description: The process.
          type: int
        start:
          description: When it started, in clock ticks since boot.
          type: int
        name:
          description: Its name, at most 15 characters.
          type: str
        age:
          description: For how many seconds it has been running.
          type: float
        threads:
          description: Number of threads.
          type: int
        fds:
          description: Number of open files.
          type: int
        rss:
          description: Resident bytes, added up from the memory map if that can be read.
          type: int
        rss_peak:
          description: The highest RSS so far (C(VmHWM)).
          type: int
        rss_anon:
          description: The anonymous part of the RSS. C(rss_file) and C(rss_shmem) are files and shared memory.
          type: int
        pss:
          description: Resident bytes with shared pages divided among those that share them.
          type: int
        swap:
          description: Bytes that are swapped out.
          type: int
        hugetlb:
          description: Bytes in reserved huge pages (hugetlbfs), which the RSS does not count.
          type: int
        huge_pages:
          description:
            - Bytes in transparent huge pages (C(held)), and how many of those were never written (C(unwritten), within
              C(error) in 19 of 20 looks), by some of them. Null if that cannot be read. Nothing is looked at below 32
              MiB.
          type: dict
        mappings:
          description: Number of mappings.
          type: int
        classes:
          description:
            - For each of C(java-heap), C(code-cache), C(metaspace), C(thread-stacks), C(malloc-heap), C(glibc-arenas),
              C(malloc-mmapped), C(other-malloc), C(mapped-files), C(shared-memory), C(jit) and C(unknown), the bytes
              C(reserved), C(resident) and C(swap) and the number of C(mappings). Null if the map cannot be read.
          type: dict
        largest:
          description: The ten mappings with the most resident memory.
          type: list
          elements: dict
        arenas:
          description: Number of heaps of glibc's arenas, each 64 MiB of reserved address space.
          type: int
        malloc:
          description:
            - For glibc's C(heap) and C(arenas), the bytes C(resident), C(used) and kept C(free), how many of these
              C(malloc_trim\(\)) would give back as they lie now (C(trim)), and how many bytes of chunks were C(seen) to
              find out. Null if that cannot be read.
          type: dict
        exe:
          description: The executable.
          type: str
        allocator:
          description: One of V(jemalloc), V(tcmalloc), V(mimalloc), V(libc), V(unknown); V(other) for any
            that is linked into the program.
          type: str
        library:
          description: The allocator's library, if it is a separate one.
          type: str
        preloaded:
          description: Whether the library was preloaded.
          type: bool
        libc_version:
          description: Version of the host's C library.
          type: list
          elements: int
        tunables:
          description: The variables that tune malloc, as the process was started with them.
          type: dict
        agents:
          description: Agents in the JVM, without their options. Each is a suspect.
          type: list
          elements: str
        profiled:
          description: Whether our agent is in it, preloaded or attached.
          type: bool
        jvm:
          description:
            - C(version), C(flags), C(heap_used), C(heap_committed), C(heap_after_collection), C(collections),
              C(metaspace), C(code_cache), C(threads), C(classes), C(nmt) and C(native_heap), sizes in bytes. Null if
              the process is not a HotSpot JVM, empty if the JVM did not answer.
            - C(nmt) is native memory tracking, with the bytes C(committed) in total and by C(categories), and how
              far RSS exceeds them. Null if the JVM was started without C(-XX:NativeMemoryTracking=summary).
            - C(native_heap) holds glibc's own numbers, from JDK 21 on.
          type: dict
        not_readable:
          description: What could not be read, and why.
          type: list
          elements: str
kept:
  description: The file with the samples on the controller.
  type: str
  returned: with O(keep)
"""

import fnmatch
import json
import time
from typing import Any, Callable, NoReturn

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.offheap.profiler.plugins.module_utils.formats import unit_name
from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
from ansible_collections.offheap.profiler.plugins.module_utils.host import (
    cgroup,
    containers,
    forked,
    host_memory,
    procfs,
    systemd,
)
from ansible_collections.offheap.profiler.plugins.module_utils.memory import crashes, files_in_memory, process

_LARGEST_ANSWER = 16 << 20
_PATIENCE = 10.0  # seconds
_SOME = 10  # containers that are named where the one that was meant is not there
_PROPERTIES = ("Id", "LoadState", "ActiveState", "ControlGroup")


def of_units(names: list[str], jvm_timeout: int) -> list[dict[str, Any]]:
    """One sample of each unit, of which systemd is asked once."""
    wanted = [unit_name.service(name) for name in names]
    log = crashes.kernel_log() if wanted else ""
    return [of_unit(unit, jvm_timeout, log) for unit in systemd.show_each(wanted, _PROPERTIES)]


def of_unit(unit: dict[str, str], jvm_timeout: int, kernel_log: str) -> dict[str, Any]:
    """One sample of a unit, by what systemd says of it."""
    name, group = unit["Id"], unit.get("ControlGroup", "")
    pids = systemd.processes(group)
    problem = None
    if unit["LoadState"] == "not-found":
        problem = f"there is no unit {name} on this host"
    elif not pids:
        problem = f"{name} has no process: it is {unit['ActiveState']}"
    return _of_group(name, group, pids, problem, jvm_timeout, kernel_log)


def of_containers(patterns: list[str], jvm_timeout: int) -> list[dict[str, Any]]:
    """One sample of each container that one of these names."""
    groups = containers.running()
    log = crashes.kernel_log() if patterns else ""
    samples = []
    for pattern in patterns:
        if not fnmatch.filter(groups, pattern):
            some = ", ".join(list(groups)[:_SOME]) or "none"
            problem = f"no container of that name runs on this host; {len(groups)} run here: {some}"
            samples.append(sample(f"container {pattern}", [], "", problem, jvm_timeout))
    for name, group in groups.items():
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
            samples.append(_of_group(f"container {name}", group, systemd.processes(group), None, jvm_timeout, log))
    return samples


def _of_group(
    name: str, group: str, pids: list[int], problem: str | None, jvm_timeout: int, kernel_log: str
) -> dict[str, Any]:
    found = sample(name, pids, group, problem, jvm_timeout)
    names = {one["name"] for one in found["processes"]}
    found["crashes"]["oom_kills"] = crashes.oom_kills(kernel_log, group, names)
    return found


def of_pid(pid: int, jvm_timeout: int) -> dict[str, Any]:
    """One sample of a process."""
    return sample(f"pid {pid}", [pid], "", None, jvm_timeout)


def sample(name: str, pids: list[int], control_group: str, problem: str | None, jvm_timeout: int) -> dict[str, Any]:
    """One look at these processes. Those that end meanwhile are left out."""
    now = time.time()
    processes = []
    for pid in pids:
        try:
            processes.append(process.look(pid, jvm_timeout))
        except procfs.ProcessGone as gone:
            problem = problem or (str(gone) if len(pids) == 1 else None)
    processes.sort(key=lambda one: one["rss"] or 0, reverse=True)
    return {
        "name": name,
        "time": now,
        "problem": problem,
        "cgroup": cgroup.read(control_group),
        "files_in_memory": [],
        "crashes": {"error_files": [], "core_dumps": [], "oom_kills": []},
        "processes": processes,
    }


def add_host(samples: list[dict[str, Any]]) -> None:
    """What is the same for all."""
    same = {"boot_id": procfs.boot_id(), "host": host_memory.read()}
    for one in samples:
        one.update(same)


def add_files(samples: list[dict[str, Any]], warn: Callable[[str], Any]) -> None:
    """What lies in the services' own file systems, which may hang whoever looks (fuse(4)): of the first that does, and
    of those after it, nothing is known."""
    parts: list[bytes] = []

    def work(write: forked.Write) -> None:
        found = files_in_memory.FilesInMemory()
        for one in samples:
            write(json.dumps(_files(one["processes"], found)).encode() + b"\n")

    try:
        forked.run("the look into the services' files", work, parts.append, _LARGEST_ANSWER, _PATIENCE)
    except forked.ForkedError as exc:
        left = ", ".join(one["name"] for one in samples[b"".join(parts).count(b"\n") :])
        warn(f"{exc}; so files in memory, error files and core dumps of {left} are not known")
    for one, line in zip(samples, b"".join(parts).split(b"\n")[:-1]):
        told = json.loads(line)
        one["files_in_memory"] = told.pop("files_in_memory")
        one["crashes"].update(told)


def _files(processes: list[dict[str, Any]], found: files_in_memory.FilesInMemory) -> dict[str, Any]:
    largest = processes[0] if processes else None
    return {
        "files_in_memory": found.of([one["pid"] for one in processes]),
        # No other program writes such.
        "error_files": crashes.error_files(largest["pid"]) if largest and largest["jvm"] is not None else [],
        "core_dumps": crashes.core_dumps(largest["pid"], largest["name"]) if largest else [],
    }


def hidden(samples: list[dict[str, Any]]) -> list[int]:
    """The processes whose memory map could not be read."""
    return [process["pid"] for sample in samples for process in sample["processes"] if process["classes"] is None]


def main() -> NoReturn:
    """Module entry point."""
    module = AnsibleModule(
        argument_spec={
            "units": {"type": "list", "elements": "str", "default": []},
            "containers": {"type": "list", "elements": "str", "default": []},
            "pids": {"type": "list", "elements": "int", "default": []},
            "keep": {"type": "str"},
            "jvm_timeout": {"type": "int", "default": 5},
        },
        supports_check_mode=True,
    )
    wanted = module.params
    if not wanted["units"] and not wanted["containers"] and not wanted["pids"]:
        module.fail_json(msg="nothing to look at: name units, containers or pids")
    try:
        samples = of_units(wanted["units"], wanted["jvm_timeout"])
        samples += of_containers(wanted["containers"], wanted["jvm_timeout"])
        samples += [of_pid(pid, wanted["jvm_timeout"]) for pid in wanted["pids"]]
    except OffheapError as error:
        module.fail_json(msg=str(error))
    add_host(samples)
    add_files(samples, module.warn)
    for pid in hidden(samples):
        module.warn(f"process {pid} lets this user read only its RSS: run the task with become: true")
    module.exit_json(changed=False, samples=samples)


if __name__ == "__main__":
    main()
