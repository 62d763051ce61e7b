# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""No file names the host of a package registry: a machine's own settings say where packages come from."""

from __future__ import annotations

import re

from ansible_collections.offheap.profiler.tests.gates.files import kept, text_of

# Joined at run time, so that this file does not name them either.
HOSTS = [
    ("pypi", "org"),
    ("pythonhosted", "org"),
    ("deb", "debian", "org"),
    ("security", "debian", "org"),
    ("archive", "ubuntu", "com"),
    ("snapshot", "debian", "org"),
    ("registry", "npmjs", "org"),
    ("registry", "yarnpkg", "com"),
    ("proxy", "golang", "org"),
    ("static", "crates", "io"),
    ("index", "crates", "io"),
    ("galaxy", "ansible", "com"),
]
PATTERN = re.compile("|".join(r"\.".join(map(re.escape, host)) for host in HOSTS), re.IGNORECASE)


def test_no_file_names_a_package_registry() -> None:
    naming = []
    for path in kept():
        for number, line in enumerate((text_of(path) or "").splitlines(), 1):
            if PATTERN.search(line):
                naming.append(f"{path}:{number}: {line.strip()[:100]}")
    assert not naming, "\n".join(naming)
