# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Refusals as tests expect them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.unit.refusal import Refusal


def refusal(check: Callable[[], object], reason: str, *words: str) -> str:
    """The message of the refusal; it has to hold the words, of which the last says the way out."""
    with pytest.raises(Refusal) as caught:
        check()
    message = str(caught.value)
    assert caught.value.reason == reason, message
    for word in words:
        assert word in message
    return message
