# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The filters as a playbook sees them: what they return, and how they fail when misused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.errors import AnsibleFilterError

from ansible_collections.offheap.profiler.plugins.filter import (
    bytes_as_text,
    from_malloc_conf,
    lg_bytes,
    misspelt,
    next_steps,
    to_malloc_conf,
)

FILES = (bytes_as_text, from_malloc_conf, lg_bytes, misspelt, next_steps, to_malloc_conf)
FILTERS = {name: function for file in FILES for name, function in file.FilterModule().filters().items()}


@pytest.mark.parametrize(
    ("name", "given", "result"),
    [
        ("from_malloc_conf", "prof:true,lg_prof_sample:19", {"prof": "true", "lg_prof_sample": "19"}),
        ("from_malloc_conf", "", {}),
        ("to_malloc_conf", {"prof": True, "lg_prof_sample": 19}, "prof:true,lg_prof_sample:19"),
        ("to_malloc_conf", {}, ""),
        ("bytes_as_text", 62_914_560, "60.0 MiB"),
        ("lg_bytes", "512 KiB", 19),
        ("lg_bytes", 1 << 30, 30),
        ("misspelt", ["offheap_units", "jemalloc_method", "offheap_team", "jemalloc_library_path", "units"], []),
        (
            "misspelt",
            ["jemalloc_methode", "offheap_unit"],
            [
                "jemalloc_methode is no variable of these playbooks: did you mean jemalloc_method?",
                "offheap_unit is no variable of these playbooks: did you mean offheap_units?",
            ],
        ),
    ],
)
def test_a_filter_returns(name: str, given: Any, result: Any) -> None:
    assert FILTERS[name](given) == result


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("from_malloc_conf", "prof", "not of the form name:value"),
        ("from_malloc_conf", {"prof": True}, "needs a string"),
        ("to_malloc_conf", {"prof_prefix": "/a,b"}, "must not contain a comma"),
        ("to_malloc_conf", {"Prof": True}, "not the name of a jemalloc option"),
        ("to_malloc_conf", "prof:true", "needs a mapping"),
        ("bytes_as_text", "60", "needs a number"),
        ("bytes_as_text", True, "needs a number"),
        ("lg_bytes", 3, "not a power of two"),
        ("lg_bytes", True, "not a size"),
        ("lg_bytes", None, "needs a number or a string"),
    ],
)
def test_a_filter_refuses(name: str, given: Any, message: str) -> None:
    with pytest.raises(AnsibleFilterError, match=message):
        FILTERS[name](given)


def test_text_and_mapping_are_each_others_inverse() -> None:
    text = "prof:true,prof_prefix:/var/lib/offheap/a.service/jeprof,lg_prof_sample:19"
    assert FILTERS["to_malloc_conf"](FILTERS["from_malloc_conf"](text)) == text


@pytest.mark.parametrize("file", FILES, ids=lambda file: Path(file.__file__).stem)
def test_every_filter_is_in_a_file_of_its_name_and_documented(file: Any) -> None:
    (name,) = file.FilterModule().filters()
    assert Path(file.__file__).stem == name
    assert yaml.safe_load(file.DOCUMENTATION)["name"] == name
    assert yaml.safe_load(file.EXAMPLES)
    assert yaml.safe_load(file.RETURN)["_value"]["sample"]


def test_next_steps_bear_what_a_host_says_of_itself() -> None:
    unit = {"unit": "web.service", "problem": "", "environment": {"OFFHEAP_START": "x", "OFFHEAP_DUMP_SECONDS": "x"}}
    told = FILTERS["next_steps"]({"app1": [unit], "app2": []}, ["my fleet.yml"])
    assert told[0] == "web.service is profiled on app1"
    assert told[1].endswith("ansible-playbook -i 'my fleet.yml' offheap.profiler.switch_profiling -e state=dump")
    assert FILTERS["next_steps"]({"app1": [{**unit, "problem": "no"}]}, []) == []
