# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What a target is asked for on the way of its dumps to the controller: find them, pack them, mark them as collected.

Between the steps the controller decides. It never believes what it is told here, and here nothing is believed that
lies in a spool.

This module is private to the collection.
"""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
from typing import IO, Any, Callable

from ansible_collections.offheap.profiler.plugins.module_utils.formats import dump_name, elf, perf_map_line
from ansible_collections.offheap.profiler.plugins.module_utils.formats.jvm_memory import JvmMemoryError
from ansible_collections.offheap.profiler.plugins.module_utils.spool import directory as spool
from ansible_collections.offheap.profiler.plugins.module_utils.spool import dump, listing, provenance
from ansible_collections.offheap.profiler.plugins.module_utils.spool import pack as staging


def find(options: dict[str, Any]) -> dict[str, Any]:
    """What is there to be brought. The options are C(units), C(max_dump) and C(max_captures) of the module heap_fetch.

    Raises SpoolError.
    """
    return listing.find(
        spool.ROOT, options["units"], options["max_dump"], options["max_captures"], provenance.Examiner()
    )


def ask_jvms(found: dict[str, Any]) -> None:
    """Put what each living JVM holds outside of malloc beside its newest dump in C(found)."""
    newest = {entry["process"]: entry for entry in found["captures"] if entry["jit"]}
    if not newest:
        return
    # What is about runtimes is a third of what there is to load, and most hosts have nothing new of one.
    from ansible_collections.offheap.profiler.plugins.module_utils.runtimes import jvm_heap

    for number, entry in newest.items():
        process = found["processes"][number]
        if process["start_time"] is None:  # it has ended
            continue
        with contextlib.suppress(JvmMemoryError):  # another runtime, or busy: the dump is as good without
            entry["jvm"] = jvm_heap.ask(process["pid"], process["key"]).to_json()


def pack(request: dict[str, Any], directory: str) -> dict[str, Any]:
    """Put the wanted dumps, images and maps into one file for the login user. Raises SpoolError, StagingError."""
    needed = sum(wanted["size"] for wanted in request["images"])
    needed += sum(spool.Identity(*wanted["identity"]).size for wanted in request["dumps"])
    needed += sum(spool.Identity(*wanted["identity"]).size for wanted in request["maps"] if wanted["identity"])
    with spool.Root() as root:

        def live_map(wanted: dict[str, Any]) -> int:
            fd = _open_live_map(root, request["dumps"], wanted, directory)
            try:
                staging.check_free(directory, needed + os.fstat(fd).st_size)
            except staging.StagingError as exc:
                os.close(fd)
                raise staging.Skip(str(exc)) from exc
            return fd

        return staging.pack(directory, _items(root, request, live_map), needed)


def stream(request: dict[str, Any], target: staging.Target) -> dict[str, Any]:
    """The same, written to C(target) as it is read; nothing of it is written to a disk. Raises SpoolError."""
    with spool.Root() as root:
        live_map = functools.partial(_open_live_map, root, request["dumps"], directory=None)
        return staging.stream(target, _items(root, request, live_map))


def _items(root: spool.Root, request: dict[str, Any], live_map: Callable[[dict[str, Any]], int]) -> list[staging.Item]:
    items = [staging.Item(wanted["member"], functools.partial(_open_dump, root, wanted)) for wanted in request["dumps"]]
    items += [staging.Item(image["member"], functools.partial(_open_image, image)) for image in request["images"]]
    for wanted in request["maps"]:
        opener = functools.partial(live_map, wanted)
        if wanted["identity"] is not None:
            opener = functools.partial(_open_map_beside, root, wanted)
        items.append(staging.Item(wanted["member"], opener))
    return items


def _open_dump(root: spool.Root, wanted: dict[str, Any]) -> int:
    try:
        spooled = root.spool(wanted["unit"])
        if spooled is None:
            raise staging.Skip("its spool is gone")
        with spooled:
            fd = spooled.open(wanted["name"])
    except spool.SpoolError as exc:
        raise staging.Skip(str(exc)) from exc
    if spool.Identity.of(os.fstat(fd)) != spool.Identity(*wanted["identity"]):
        os.close(fd)
        raise staging.Skip("it changed after it was listed")
    return fd


def _open_image(wanted: dict[str, Any]) -> int:
    """Any of the sources will do that still holds the build: the id decides, not the path."""
    reason = "it is gone"
    for source in wanted["sources"]:
        try:
            fd = provenance.open_regular(source)
        except OSError as exc:
            reason = str(exc)
            continue
        try:
            right = elf.read(fd).build_id == wanted["build_id"] and os.fstat(fd).st_size == wanted["size"]
        except elf.ElfError as exc:
            right = False
            reason = str(exc)
        if right:
            return fd
        os.close(fd)
        reason = "it was replaced by another build"
    raise staging.Skip(reason)


def _open_map_beside(root: spool.Root, wanted: dict[str, Any]) -> int:
    try:
        spooled = root.spool(wanted["unit"])
        if spooled is None:
            raise staging.Skip("its spool is gone")
        with spooled:
            fd = spooled.open_companion(wanted["name"], dump_name.PERF_MAP)
    except spool.SpoolError as exc:
        raise staging.Skip(str(exc)) from exc
    if fd is None:
        raise staging.Skip("it is gone")
    if spool.Identity.of(os.fstat(fd)) != spool.Identity(*wanted["identity"]):
        os.close(fd)
        raise staging.Skip("it changed after it was listed")
    return fd


def _addresses(root: spool.Root, dumps: list[dict[str, Any]], wanted: dict[str, Any]) -> set[int]:
    """The addresses in those of the dumps that are of the same process."""
    found: set[int] = set()
    own = dump_name.parse(wanted["name"])
    for other in dumps:
        name = dump_name.parse(other["name"])
        if own is None or name is None or (other["unit"], name.pid) != (wanted["unit"], own.pid):
            continue
        try:
            fd = _open_dump(root, other)
        except staging.Skip:
            continue  # it is told where the dump itself is packed
        try:
            found |= dump.addresses(fd, os.fstat(fd).st_size)
        finally:
            os.close(fd)
    return found


def _open_live_map(root: spool.Root, dumps: list[dict[str, Any]], wanted: dict[str, Any], directory: str | None) -> int:
    """Where the code of a process lies now, in a file without a name: in the directory, or in memory."""
    from ansible_collections.offheap.profiler.plugins.module_utils.runtimes import live_perf_map

    with _nameless(directory) as file:
        try:
            size = live_perf_map.write(wanted["pid"], wanted["key"], file, addresses=_addresses(root, dumps, wanted))
        except live_perf_map.NoMap as exc:
            raise staging.Skip(str(exc)) from exc
        file.flush()
        if not size:
            raise staging.Skip(perf_map_line.NONE)
        return os.dup(file.fileno())


def _nameless(directory: str | None) -> IO[bytes]:
    if directory is None:
        return open(os.memfd_create("perf.map"), "w+b")
    return tempfile.TemporaryFile(dir=directory)


def mark(dumps: list[dict[str, Any]], delete: bool) -> dict[str, Any]:
    """Take the dumps that are safe now out of the way. Raises SpoolError when the spools cannot be entered."""
    by_unit: dict[str, list[tuple[str, spool.Identity]]] = {}
    for done in dumps:
        by_unit.setdefault(done["unit"], []).append((done["name"], spool.Identity(*done["identity"])))
    collected: list[list[str]] = []
    problems: list[str] = []
    with spool.Root() as root:
        for unit, wanted in by_unit.items():
            try:
                spooled = root.spool(unit)
                if spooled is not None:
                    with spooled:
                        collected += [[unit, name] for name in spooled.collect(wanted, delete)]
            except spool.SpoolError as exc:
                problems.append(str(exc))
    return {"collected": len(collected), "problems": problems, "changed": bool(collected)}
