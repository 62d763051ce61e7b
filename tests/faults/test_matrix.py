# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Each fault of the matrix on a booted host, judged by four invariants:

1. no service and no host is left worse: the unit runs as before, and nothing of ours is left after the rollback
2. no capture is lost: what lay whole in the spool is in the archive at the end
3. the archive is never corrupt
4. the action ends in time, with the right status and one sentence that says what happened
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ansible_collections.offheap.profiler.tests.faults.batch import Seen
from ansible_collections.offheap.profiler.tests.faults.fault import Fault
from ansible_collections.offheap.profiler.tests.faults.matrix import MATRIX

NOT_A_SENTENCE = ("Traceback", "MODULE FAILURE", "Errno", "No start of json")
ROWS = [
    pytest.param(
        fault,
        id=f"{fault.kind}: {fault.do}: {fault.name}",
        marks=[] if fault.everyday else [pytest.mark.soak_only],
    )
    for fault in MATRIX
]


@pytest.mark.parametrize("fault", ROWS)
def test_fault(fault: Fault, tried: Callable[[Fault], Seen], request: pytest.FixtureRequest) -> None:
    request.node.user_properties.append(("kind", fault.kind))
    seen = tried(fault)
    assert fault.fails in (bool(seen.failures), None), f"I4: failed: {seen.failures or 'no'}: {seen.output}"
    assert fault.says in seen.about + seen.failures, f"I4: does not say '{fault.says}': {seen.about}\n{seen.output}"
    words = [word for word in NOT_A_SENTENCE if word in seen.about + seen.failures]
    assert words == [], f"I4: no sentence: {seen.about}\n{seen.output}"
    assert seen.took < fault.within, f"I4: took {seen.took:.0f} s"
    if fault.do == "enable" and not fault.is_struck:
        assert seen.was_under_us == (fault.dumps and not fault.fails), (
            "I1: it runs under the profiler" if fault.fails else "I4: called fine"
        )
        assert seen.dumps or fault.fails or not fault.dumps, "I4: called fine without a dump"
    assert seen.problem_at_the_end == "", f"I1: the last rollback fails: {seen.problem_at_the_end}"
    assert seen.left == [], "I1: something of ours is left"
    assert seen.processes == "", "I1: processes still run under the profiler"
    assert seen.state == fault.active, f"I1: the unit is {seen.state}"
    assert seen.dumps <= seen.archived, f"I2: captures are lost: {seen.dumps - seen.archived}"
    assert seen.damaged == [], "I3: captures are damaged"


def test_the_matrix_names_each_row_once() -> None:
    names = [(fault.kind, fault.do, fault.name) for fault in MATRIX]
    assert sorted(names) == sorted(set(names))
