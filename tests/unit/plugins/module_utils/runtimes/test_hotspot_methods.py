# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Names from a JVM's memory. Whole stacks of real JVMs are in tests/agent/test_unwind.py and on the lab."""

from __future__ import annotations

import os
import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.offheap.profiler.plugins.module_utils.runtimes import hotspot_methods
from ansible_collections.offheap.profiler.plugins.module_utils.runtimes.hotspot_structs import (
    LayoutError,
    Memory,
    VmError,
)


@pytest.mark.parametrize(
    ("descriptor", "returned", "parameters"),
    [
        ("()V", "void", []),
        ("([BII)I", "int", ["byte[]", "int", "int"]),
        ("(Ljava/lang/String;[[JZ)[Ljava/util/List;", "java.util.List[]", ["java.lang.String", "long[][]", "boolean"]),
    ],
)
def test_types_as_java_writes_them(descriptor: str, returned: str, parameters: list[str]) -> None:
    assert hotspot_methods._types(descriptor) == (returned, parameters)


@pytest.mark.parametrize("descriptor", ["", "V", "(", "()", "(Q)V", "(Ljava/lang/String)V", "(L;)V", "([)", "(\n)V"])
def test_what_is_no_descriptor(descriptor: str) -> None:
    with pytest.raises(VmError, match="not a method descriptor"):
        hotspot_methods._types(descriptor)


@given(st.text(alphabet="()[BLjV;/x"))
def test_any_descriptor_comes_to_an_end(descriptor: str) -> None:
    try:
        returned, parameters = hotspot_methods._types(descriptor)
    except VmError:
        return
    assert returned and all(parameters)


@given(st.lists(st.integers(0, (1 << 32) - 1), min_size=2, max_size=2), st.sampled_from([0, 1]))
def test_numbers_of_a_scope(numbers: list[int], excluded: int) -> None:
    """As HotSpot packs them (unsigned5.hpp): six bits after the first 192 values; since JDK 20 no byte is zero."""
    text = b""
    for number in numbers:
        rest = number
        for _byte in range(4):
            if rest < 192 - excluded:
                break
            rest -= 192 - excluded
            text += bytes([192 + rest % 64])
            rest //= 64
        text += bytes([rest + excluded])
    with tempfile.TemporaryFile() as file:
        file.write(b"\0" + text)
        file.flush()
        code = hotspot_methods._CompiledCode.__new__(hotspot_methods._CompiledCode)
        code._excluded = excluded
        code._vm = type("Vm", (), {"memory": Memory(file.fileno())})()
        assert code._numbers(1) == numbers


def test_a_process_that_is_no_jvm() -> None:
    fd = os.open("/proc/self/mem", os.O_RDONLY)
    try:
        with pytest.raises(VmError):
            list(hotspot_methods.lines(fd, id(object()), 17, {1, 9}))
    finally:
        os.close(fd)


def test_a_release_that_keeps_its_compiled_code_otherwise_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """As JDK 23 and 24 do: no inlined method has a name there, and nobody would know why. Interpreted ones have."""

    class Compiled:
        low, high = 100, 200

        def calls(self, _address: int) -> list[str]:
            raise LayoutError("this JVM does not say where CodeBlob::_mutable_data is")

    methods = type("Methods", (), {"name": lambda _self, method: f"void Some.m{method}()"})
    monkeypatch.setattr(hotspot_methods, "VmStructs", lambda *_memory: None)
    monkeypatch.setattr(hotspot_methods, "_Methods", lambda _vm: methods())
    monkeypatch.setattr(hotspot_methods, "_CompiledCode", lambda *_vm: Compiled())
    found: list[bytes] = []
    with pytest.raises(VmError, match="where CodeBlob::_mutable_data is"):
        found.extend(hotspot_methods.lines(-1, 0, 24, {9, 150, 801}))
    assert found == [b"0x8 0x1 void Some.m8()\n", b"0x320 0x1 void Some.m800()\n"]
