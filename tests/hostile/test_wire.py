# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A host that keeps a session busy with nothing."""

from __future__ import annotations

import itertools
import struct

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.formats import wire
from ansible_collections.offheap.profiler.tests.hostile.bounds import costs_at_most


@pytest.mark.parametrize("kind", [b"J", b"D"])
def test_empty_messages_for_ever(kind: bytes) -> None:
    heads = itertools.repeat(struct.pack(">cI", kind, 0), 100_000)
    with costs_at_most(0.5, 1), pytest.raises(wire.WireError, match="empty"):
        while True:
            wire.read(lambda count: next(heads) if count else b"", 1 << 20)
