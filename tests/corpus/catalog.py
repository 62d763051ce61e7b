# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Every case of the corpus."""

from __future__ import annotations

from ansible_collections.offheap.profiler.tests.corpus import allocator_cases, go_cases, runtime_cases, tool_cases

CASES = [*allocator_cases.CASES, *tool_cases.CASES, *go_cases.CASES, *runtime_cases.CASES]
