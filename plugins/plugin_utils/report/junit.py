# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What an assertion found as a file of JUnit, which pipelines show (the form that Jenkins, GitLab and GitHub's actions
read): each unit is a test case, which fails, or is skipped where nobody can tell yet."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from ..leaks.baseline import Offence
from ..leaks.watched import Watched

_SUITE = "native memory leaks"


def render(offences: Sequence[Offence], watched: Sequence[Watched], missing: str = "") -> bytes:
    """``missing`` says why nothing could be judged, if that is a failure, too."""
    units = sorted({process.unit for process in watched})
    suite = ElementTree.Element("testsuite", name=_SUITE)
    failures = skipped = 0
    for unit in units:
        case = ElementTree.SubElement(suite, "testcase", classname="offheap", name=unit)
        why = [offence.text for offence in offences if offence.unit == unit]
        verdicts = [process.verdict for process in watched if process.unit == unit]
        if why:
            failures += 1
            _say(case, "failure", why)
        elif all(verdict.answer.is_open for verdict in verdicts):
            skipped += 1
            _say(case, "skipped", [verdicts[-1].reason])
    if missing:
        failures += 1
        _say(ElementTree.SubElement(suite, "testcase", classname="offheap", name="a verdict"), "failure", [missing])
    for name, number in (("tests", len(suite)), ("failures", failures), ("skipped", skipped)):
        suite.set(name, str(number))
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    written: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return written + b"\n"


def _say(case: ElementTree.Element, what: str, lines: Sequence[str]) -> None:
    ElementTree.SubElement(case, what, message=lines[0]).text = "\n".join(lines)
