# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Every source file says whose it is and under which licence."""

from __future__ import annotations

from ansible_collections.offheap.profiler.tests.gates.files import kept, text_of

SUFFIXES = {".py", ".sh", ".c", ".h", ".yml", ".yaml", ".j2", ".toml", ".ini", ".cfg", ".js", ".mjs", ".css", ".html"}
# Formats that are made by a tool, or compared byte for byte in a test.
EXCEPTED = {"changelogs/changelog.yaml"}


def is_source(path: str, text: str) -> bool:
    name = path.rsplit("/", 1)[-1]
    return ("." in name and "." + name.rsplit(".", 1)[1] in SUFFIXES) or text.startswith("#!")


def test_every_source_file_has_its_licence_in_the_first_lines() -> None:
    without = []
    for path in kept():
        text = text_of(path)
        if text is None or str(path) in EXCEPTED or "fixtures" in path.parts or not is_source(str(path), text):
            continue
        head = "\n".join(text.splitlines()[:5])
        if (
            "SPDX-License-Identifier: GPL-3.0-or-later" not in head
            or "SPDX-FileCopyrightText: Offheap contributors" not in head
        ):
            without.append(str(path))
    assert not without, "without SPDX lines at the top:\n" + "\n".join(without)
