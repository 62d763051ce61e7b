# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Names of Java methods that HotSpot's perf map lacks: interpreted methods, and those inlined into their callers.

Both are read from the JVM's memory (hotspot_structs.py). For an interpreted frame, the agent records the address of
the method plus one (hotspot.c). For a compiled one there is a return address. HotSpot knows which calls each of those
stands for, since it must be able to go back to the interpreter there (nmethod.hpp, pcDesc.hpp, scopeDesc.cpp).

The results become lines of a perf map, one byte long (perf_map_line.py). Only names that can be proven count: a method
must be among those of its class, and the outermost inlined call must be of the method that the code belongs to.

This module is private to the collection.
"""

from __future__ import annotations

import struct
import time
from typing import Iterable, Iterator, NamedTuple

from ansible_collections.offheap.profiler.plugins.module_utils.formats import perf_map_line
from ansible_collections.offheap.profiler.plugins.module_utils.runtimes.hotspot_structs import (
    LayoutError,
    Memory,
    VmError,
    VmStructs,
)

_PRIMITIVES = dict(zip("BCDFIJSVZ", ("byte", "char", "double", "float", "int", "long", "short", "void", "boolean")))
_MOST_METHODS = 65535  # of a class (JVMS 4.1)
_MOST_DESCRIPTORS = 1 << 20
_FREE = 0xFF


class _Methods:
    """Names of methods by the address of their ``Method``."""

    def __init__(self, vm: VmStructs) -> None:
        self._vm = vm
        self._pool_size = vm.size("ConstantPool")
        self._names: dict[int, str | None] = {}

    def name(self, method: int) -> str | None:
        """Like ``Method::external_name``: ``int java.util.zip.Inflater.inflate(byte[], int)``. None if not a method."""
        if method not in self._names:
            try:
                self._names[method] = self._read(method)
            except LayoutError:
                raise
            except VmError:
                self._names[method] = None
        return self._names[method]

    def _read(self, method: int) -> str | None:
        vm = self._vm
        code = vm.get(method, "Method", "_constMethod")
        pool = vm.get(code, "ConstMethod", "_constants")
        holder = vm.get(pool, "ConstantPool", "_pool_holder")
        methods = vm.get(holder, "InstanceKlass", "_methods")
        count = min(vm.get(methods, "Array<int>", "_length", 4), _MOST_METHODS)
        found = vm.memory.read(methods + vm.offset("Array<Method*>", "_data"), count * 8)
        if (method,) not in struct.iter_unpack("<Q", found):
            return None
        length = vm.get(pool, "ConstantPool", "_length", 4)
        name, descriptor = (
            self._constant(pool, vm.get(code, "ConstMethod", field, 2), length)
            for field in ("_name_index", "_signature_index")
        )
        owner = self._symbol(vm.get(holder, "Klass", "_name")).replace("/", ".")
        owner = "/".join(owner.rsplit("+", 1))  # a hidden class
        returned, parameters = _types(descriptor)
        return f"{returned} {owner}.{name}({', '.join(parameters)})"

    def _constant(self, pool: int, index: int, length: int) -> str:
        if index >= length:
            raise VmError("a constant is not in the pool")
        return self._symbol(self._vm.memory.number(pool + self._pool_size + index * 8))

    def _symbol(self, symbol: int) -> str:
        body = symbol + self._vm.offset("Symbol", "_body")
        text = self._vm.memory.read(body, self._vm.get(symbol, "Symbol", "_length", 2))
        return "".join(character if character.isprintable() else "?" for character in text.decode("utf-8", "replace"))


def _types(descriptor: str) -> tuple[str, list[str]]:
    """Return type and parameters of a method descriptor (JVMS 4.3.3), as Java writes them. Raises VmError."""
    found: list[str] = []
    arrays, position = 0, 1
    while position < len(descriptor):
        letter = descriptor[position]
        end = position
        if letter == "[":
            arrays += 1
        elif letter != ")":
            if letter == "L":
                end = descriptor.find(";", position)
            name = descriptor[position + 1 : end].replace("/", ".") if letter == "L" else _PRIMITIVES.get(letter)
            if not name or end < 0:
                break
            found.append(name + "[]" * arrays)
            arrays = 0
        position = end + 1
    if not descriptor.startswith("(") or position < len(descriptor) or not found:
        raise VmError(f"not a method descriptor: {descriptor[:100]!r}")
    return found[-1], found[:-1]


class _Described(NamedTuple):
    """A piece of compiled code: its method, where it and its description are, and the scope of each return address."""

    method: int
    code: int
    scopes: int
    metadata: int
    scopes_of: dict[int, int]


class _CompiledCode:
    """The code cache: which calls a return address stands for."""

    def __init__(self, vm: VmStructs, methods: _Methods, release: int) -> None:
        self._vm, self._methods = vm, methods
        # UNSIGNED5 (compressedStream.hpp, unsigned5.hpp): since JDK 20 no byte is zero.
        self._excluded = 1 if release >= 20 else 0
        self._described: dict[int, _Described] = {}
        self.low, self.high = (
            vm.memory.number(vm.static("CodeCache", field)) for field in ("_low_bound", "_high_bound")
        )
        heaps = vm.memory.number(vm.static("CodeCache", "_heaps"))
        count = min(vm.get(heaps, "GrowableArrayBase", "_len", 4), 16)
        data = vm.get(heaps, "GrowableArray<int>", "_data")
        self._heaps = [vm.memory.number(data + 8 * number) for number in range(count)]

    def calls(self, address: int) -> list[str]:
        """Names of the methods whose calls are at this return address, the innermost first. Raises VmError."""
        blob = self._blob(address)
        if blob is None or not self._vm.memory.text(self._vm.get(blob, "CodeBlob", "_name")).endswith("nmethod"):
            return []
        if blob not in self._described:
            self._described[blob] = self._describe(blob)
        known = self._described[blob]
        scope = known.scopes_of.get(address - known.code)
        return [] if scope is None else self._chain(known, scope)

    def _describe(self, blob: int) -> _Described:
        method, code, descriptors, end, scopes, metadata = self._sections(blob)
        if not 0 <= end - descriptors <= _MOST_DESCRIPTORS:
            raise VmError("compiled code has too many descriptors")
        size = self._vm.size("PcDesc")
        text = self._vm.memory.read(descriptors, (end - descriptors) // size * size)
        place, scope = self._vm.offset("PcDesc", "_pc_offset"), self._vm.offset("PcDesc", "_scope_decode_offset")
        found = {
            struct.unpack_from("<i", text, start + place)[0]: struct.unpack_from("<i", text, start + scope)[0]
            for start in range(0, len(text), size)
        }
        return _Described(method, code, scopes, metadata, found)

    def _blob(self, address: int) -> int | None:
        """The CodeBlob that holds an address, found with its heap's segment map (heap.cpp)."""
        vm = self._vm
        for heap in self._heaps:
            space = heap + vm.offset("CodeHeap", "_memory")
            low: int = vm.get(space, "VirtualSpace", "_low")
            if not low <= address < vm.get(space, "VirtualSpace", "_high"):
                continue
            shift = vm.get(heap, "CodeHeap", "_log2_segment_size", 4)
            if shift > 32:
                raise VmError("the code cache's segment size is impossible")
            marks = vm.get(heap + vm.offset("CodeHeap", "_segmap"), "VirtualSpace", "_low")
            segment = (address - low) >> shift
            back = vm.memory.number(marks + segment, 1)
            while back:
                if back == _FREE or back > segment:
                    return None
                segment -= back
                back = vm.memory.number(marks + segment, 1)
            return low + (segment << shift) + vm.size("HeapBlock")
        return None

    def _sections(self, code: int) -> tuple[int, int, int, int, int, int]:
        """Addresses: the method, the code, the descriptors and their end, the scopes, the metadata."""
        vm = self._vm
        if vm.has("nmethod", "_immutable_data"):  # JDK 25
            data = vm.get(code, "nmethod", "_immutable_data")
            scopes = data + vm.get(code, "nmethod", "_scopes_data_offset", 4)
            return (
                vm.get(code, "nmethod", "_method"),
                code + vm.get(code, "CodeBlob", "_code_offset", 4),
                data + vm.get(code, "nmethod", "_scopes_pcs_offset", 4),
                scopes,
                scopes,
                vm.get(code, "CodeBlob", "_mutable_data") + vm.get(code, "CodeBlob", "_relocation_size", 4),
            )
        return (
            vm.get(code, "CompiledMethod", "_method"),
            vm.get(code, "CodeBlob", "_code_begin"),
            code + vm.get(code, "nmethod", "_scopes_pcs_offset", 4),
            code + vm.get(code, "nmethod", "_dependencies_offset", 4),
            vm.get(code, "CompiledMethod", "_scopes_data_begin"),
            code + vm.get(code, "nmethod", "_metadata_offset", 4),
        )

    def _chain(self, code: _Described, offset: int) -> list[str]:
        names: list[str] = []
        method = 0
        while offset > 0 and len(names) < perf_map_line.MOST_CALLS:
            sender, index = self._numbers(code.scopes + offset)
            method = self._vm.memory.number(code.metadata + 8 * (index - 1)) if index else 0
            name = self._methods.name(method)
            if name is None:
                return []
            names.append(name)
            offset = sender
        return names if method == code.method and offset == 0 else []

    def _numbers(self, address: int) -> list[int]:
        """The first two numbers of a scope: the offset of its caller's scope, and the index of its method."""
        found = []
        for _number in range(2):
            value = shift = 0
            for _byte in range(5):
                byte = self._vm.memory.number(address, 1)
                address += 1
                value += (byte - self._excluded) << shift
                shift += 6
                if byte < 192:
                    break
            found.append(value & 0xFFFFFFFF)
        return found


def lines(fd: int, base: int, release: int, addresses: Iterable[int], seconds: float = 60.0) -> Iterator[bytes]:
    """Lines of a perf map for those addresses of a dump that belong to Java methods.

    ``fd`` is the process's memory, ``base`` where libjvm is mapped, ``release`` the JVM's feature release. Raises
    VmError, also once ``seconds`` have passed.
    """
    deadline = time.monotonic() + seconds
    vm = VmStructs(Memory(fd), base)
    methods = _Methods(vm)
    compiled = _CompiledCode(vm, methods, release)
    unknown: LayoutError | None = None
    for address in sorted(addresses):
        if time.monotonic() > deadline:
            raise VmError(f"it took longer than {seconds:.0f} seconds")
        if compiled.low <= address < compiled.high:
            try:
                names = compiled.calls(address)
            except LayoutError as exc:
                unknown = exc  # interpreted methods may still have names
                continue
            except VmError:
                continue  # the code was freed meanwhile
            if len(names) > 1:
                yield perf_map_line.added(address - 1, names)
        elif address % 8 == 1:
            name = methods.name(address - 1)
            if name is not None:
                yield perf_map_line.added(address - 1, [name])
    if unknown is not None:
        raise unknown
