# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Leaks that others found, reported and mended, in packages that people use: which versions, and how to meet them.

Each is written after the reproduction in its report: ``step`` is called again and again. In Python, JavaScript and Go
it is a function of that name, in Java and Rust a method of ``Leak``.
"""

from __future__ import annotations

from ansible_collections.offheap.profiler.tests.real_leaks import published_elsewhere, published_python

LEAKS = (*published_python.LEAKS, *published_elsewhere.LEAKS)
