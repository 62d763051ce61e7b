# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What a target does while its dumps are fetched: find them, pack them, mark them as collected.

The controller decides between the steps. It trusts nothing that a target says, and a target trusts nothing in a spool.

This module is private to the collection.
"""

from __future__ import annotations

import contextlib
import functools
import os
from typing import IO, Any, Callable, Iterable

from ansible_collections.offheap.profiler.plugins.module_utils.formats import (
    dump_name,
    elf_headers,
    limits,
    perf_map_line,
)
from ansible_collections.offheap.profiler.plugins.module_utils.formats.jvm_memory import JvmMemoryError
from ansible_collections.offheap.profiler.plugins.module_utils.formats.pack_request import (
    Identity,
    ImageMember,
    MapMember,
    PackRequest,
    SpooledDump,
)
from ansible_collections.offheap.profiler.plugins.module_utils.host import places
from ansible_collections.offheap.profiler.plugins.module_utils.spool import directory, dump, listing, pack, provenance


def find(options: dict[str, Any]) -> listing.Listing:
    """What there is to fetch. The options are ``units``, ``max_dump`` and ``max_captures`` of the module heap_fetch.

    Raises SpoolError, UnitNameError.
    """
    return listing.find(
        places.SPOOLS, options["units"], options["max_dump"], options["max_captures"], provenance.Examiner()
    )


def ask_jvms(found: listing.Listing) -> None:
    """Record what each running JVM holds outside malloc with its newest dump in ``found``."""
    newest = {capture.process: capture for capture in found.captures if capture.jit}
    if not newest:
        return
    # The code about runtimes is a third of all there is to load, and most hosts have nothing new from one.
    from ansible_collections.offheap.profiler.plugins.module_utils.runtimes import jvm_heap

    for number, capture in newest.items():
        process = found.processes[number]
        if process.start_time is None:  # it has ended
            continue
        with contextlib.suppress(JvmMemoryError):  # another runtime, or a busy JVM: the dump is just as good without
            capture.jvm = jvm_heap.ask(process.pid, process.key)


def pack_captures(request: PackRequest, staging: str) -> dict[str, Any]:
    """Put the wanted dumps, images and maps into one file for the login user. Raises SpoolError, StagingError."""
    with directory.Root(places.SPOOLS) as root:

        def live_map(wanted: MapMember) -> int:
            fd = _open_live_map(root, request.dumps, wanted, staging)
            try:
                pack.check_free(staging, request.size + os.fstat(fd).st_size)
            except pack.StagingError as exc:
                os.close(fd)
                raise pack.Skip(str(exc)) from exc
            return fd

        return pack.pack(staging, _items(root, request, live_map), request.size)


def stream_captures(request: PackRequest, target: pack.Target) -> dict[str, Any]:
    """The same, streamed to ``target`` without touching a disk. Raises SpoolError."""
    with directory.Root(places.SPOOLS) as root:
        live_map = functools.partial(_open_live_map, root, request.dumps, staging=None)
        return pack.stream(target, _items(root, request, live_map))


def _items(root: directory.Root, request: PackRequest, live_map: Callable[[MapMember], int]) -> list[pack.Item]:
    items = [pack.Item(wanted.member, functools.partial(_open_dump, root, wanted)) for wanted in request.dumps]
    items += [pack.Item(image.member, functools.partial(_open_image, image)) for image in request.images]
    for wanted in request.maps:
        opener = functools.partial(live_map, wanted)
        if wanted.identity is not None:
            beside = SpooledDump(wanted.unit, wanted.name, wanted.identity)
            opener = functools.partial(_open_beside, root, beside, dump_name.PERF_MAP)
        items.append(pack.Item(wanted.member, opener))
    for kind, suffix in ((request.lives, dump_name.LIVES), (request.holders, dump_name.HOLDERS)):
        items += [pack.Item(one.member, functools.partial(_open_beside, root, one, suffix)) for one in kind]
    return items


def _open_dump(root: directory.Root, wanted: SpooledDump) -> int:
    try:
        spooled = root.spool(wanted.unit)
        if spooled is None:
            raise pack.Skip("its spool is gone")
        with spooled:
            fd = spooled.open(wanted.name)
    except directory.SpoolError as exc:
        raise pack.Skip(str(exc)) from exc
    return _unchanged(fd, wanted.identity)


def _unchanged(fd: int, identity: Identity) -> int:
    """The descriptor, if its file is still the one that was listed."""
    if Identity.of(os.fstat(fd)) != identity:
        os.close(fd)
        raise pack.Skip("it changed after it was listed")
    return fd


def _open_image(wanted: ImageMember) -> int:
    """Any source that still holds the build will do: the id decides, not the path."""
    reason = "it is gone"
    for source in wanted.sources:
        try:
            fd = provenance.open_regular(source)
        except OSError as exc:
            reason = str(exc)
            continue
        try:
            right = elf_headers.read(fd).build_id() == wanted.build_id and os.fstat(fd).st_size == wanted.size
            reason = "it was replaced by another build"
        except elf_headers.ElfError as exc:
            right = False
            reason = str(exc)
        if right:
            return fd
        os.close(fd)
    raise pack.Skip(reason)


def _open_beside(root: directory.Root, wanted: SpooledDump, suffix: str) -> int:
    """The file beside a dump, if it still has the identity."""
    try:
        spooled = root.spool(wanted.unit)
        if spooled is None:
            raise pack.Skip("its spool is gone")
        with spooled:
            fd = spooled.open_companion(wanted.name, suffix)
    except directory.SpoolError as exc:
        raise pack.Skip(str(exc)) from exc
    if fd is None:
        raise pack.Skip("it is gone")
    return _unchanged(fd, wanted.identity)


def _addresses(root: directory.Root, dumps: Iterable[SpooledDump], wanted: MapMember) -> set[int]:
    """The addresses in the dumps that are of the same process."""
    found: set[int] = set()
    own = dump_name.parse(wanted.name)
    for other in dumps:
        name = dump_name.parse(other.name)
        if own is None or name is None or (other.unit, name.pid, name.start) != (wanted.unit, own.pid, own.start):
            continue
        try:
            fd = _open_dump(root, other)
        except pack.Skip:
            continue  # reported where the dump itself is packed
        try:
            found |= dump.addresses(fd, os.fstat(fd).st_size)
        finally:
            os.close(fd)
    return found


def _open_live_map(root: directory.Root, dumps: Iterable[SpooledDump], wanted: MapMember, staging: str | None) -> int:
    """The current map of a process's code, in a nameless file in the directory ``staging`` or in memory."""
    from ansible_collections.offheap.profiler.plugins.module_utils.runtimes import live_perf_map

    with _nameless(staging) as file:
        try:
            size = live_perf_map.write(wanted.pid, wanted.key, file, addresses=_addresses(root, dumps, wanted))
        except live_perf_map.NoMap as exc:
            raise pack.Skip(str(exc)) from exc
        file.flush()
        if not size:
            raise pack.Skip(perf_map_line.NONE)
        return os.dup(file.fileno())


def _nameless(staging: str | None) -> IO[bytes]:
    if staging is None:
        return open(os.memfd_create("perf.map"), "w+b")
    import tempfile  # here, so that a session, which has no use for it, does not wait for it

    return tempfile.TemporaryFile(dir=staging)


def mark(dumps: Iterable[SpooledDump], delete: bool) -> dict[str, Any]:
    """Move away the dumps that are now safe on the controller. Raises SpoolError if the spools cannot be entered."""
    by_unit: dict[str, list[tuple[str, Identity]]] = {}
    for done in dumps:
        by_unit.setdefault(done.unit, []).append((done.name, done.identity))
    collected: list[list[str]] = []
    problems: list[str] = []
    with directory.Root(places.SPOOLS) as root:
        for unit, wanted in by_unit.items():
            try:
                spooled = root.spool(unit)
                if spooled is not None:
                    with spooled:
                        collected += [[unit, name] for name in spooled.collect(wanted, delete)]
                        spooled.thin_collected(limits.LARGEST_SPOOL)
            except directory.SpoolError as exc:
                problems.append(str(exc))
    return {"collected": len(collected), "problems": problems, "changed": bool(collected)}
