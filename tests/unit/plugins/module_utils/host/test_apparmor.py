# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What the kernel is asked, and what its answer means; the kernel itself is one that this machine may not have."""

from __future__ import annotations

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.host import apparmor, security_module

LIBRARY = "/opt/offheap/liboffheap.so"
REST = b"audit 0x00000000\nquiet 0x00000000\n"


@pytest.mark.parametrize(
    ("answer", "forbidden"),
    [
        (b"allow 0x00010004\ndeny 0x00000000\n" + REST, False),  # mr
        (b"allow 0x0001ffff\ndeny 0x00000000\n" + REST, False),
        (b"allow 0x00000004\ndeny 0x00000000\n" + REST, True),  # r
        (b"allow 0x00010004\ndeny 0x00010000\n" + REST, True),
        (b"allow 0x00000000\ndeny 0x00000000\n" + REST, True),
        (b"", False),
        (b"something else", False),
    ],
)
def test_what_its_answer_means(answer: bytes, forbidden: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []

    def kernel(path: str, question: bytes) -> bytes:
        assert path == apparmor._ACCESS
        asked.append(question)
        return answer

    monkeypatch.setattr(security_module, "asked", kernel)
    assert apparmor.forbids("/usr/sbin/named (enforce)", LIBRARY) is forbidden
    assert asked == [b"label\0/usr/sbin/named\0\2" + LIBRARY.encode()]


@pytest.mark.parametrize("label", ["", "unconfined", "/usr/sbin/named (complain)", "system_u:system_r:named_t:s0"])
def test_who_is_not_confined_is_not_asked_about(label: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security_module, "asked", lambda _path, _question: pytest.fail("asked"))
    assert not apparmor.forbids(label, LIBRARY)


def test_a_kernel_without_it_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apparmor, "_ACCESS", "/nowhere/.access")
    assert not apparmor.forbids("/usr/sbin/named (enforce)", LIBRARY)
