# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""MALLOC_CONF, and the table of options against the library that Debian ships (5.3.0)."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.offheap.profiler.plugins.module_utils.formats import malloc_conf

# A library has these only if it was configured with --enable-uaf-detection, -log, -utrace, -xmalloc.
CONFIGURED = {"lg_san_uaf_align", "log", "utrace", "xmalloc"}
NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,30}", fullmatch=True)
VALUES = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters=","), max_size=40)


@given(st.dictionaries(NAMES, VALUES))
def test_what_is_rendered_is_parsed_again(options: dict[str, str]) -> None:
    assert malloc_conf.parse(malloc_conf.render(options)) == options


def test_values_of_yaml() -> None:
    text = malloc_conf.render({"prof": True, "prof_final": False, "lg_prof_sample": 19, "dss": "primary"})
    assert text == "prof:true,prof_final:false,lg_prof_sample:19,dss:primary"


def test_parse_as_jemalloc_reads() -> None:
    assert malloc_conf.parse("narenas:1,prof_prefix:/a:b,narenas:2") == {"narenas": "2", "prof_prefix": "/a:b"}
    assert malloc_conf.parse("bin_shards:1-160:16|129-512:4,") == {"bin_shards": "1-160:16|129-512:4"}
    assert malloc_conf.parse("") == {}


@pytest.mark.parametrize("text", ["prof", "prof:true, narenas:1", ":x", "PROF:true", "prof=true", "a b:c"])
def test_malformed_texts(text: str) -> None:
    with pytest.raises(malloc_conf.MallocConfError, match="not of the form name:value"):
        malloc_conf.parse(text)


@pytest.mark.parametrize("value", ["a,b", "a b", "a\tb", "a\nb", "a\0b", "\x7f"])
def test_a_value_that_would_become_another_option_is_not_rendered(value: str) -> None:
    with pytest.raises(malloc_conf.MallocConfError, match="prof_prefix"):
        malloc_conf.render({"prof_prefix": value})


@pytest.mark.parametrize("name", ["", "a,b", "a:b", "Prof", "a b", "1a", "a\n"])
def test_a_name_that_is_none_is_not_rendered(name: str) -> None:
    with pytest.raises(malloc_conf.MallocConfError, match="not the name"):
        malloc_conf.render({name: 1})


def test_unknown_options_by_version() -> None:
    options: dict[str, malloc_conf.Value] = {
        "prof": True,
        "prof_recent_alloc_max": 1,
        "prof_bt_max": 64,
        "prof_typo": 1,
    }
    assert malloc_conf.unknown_options(options, "5.2.1") == ["prof_recent_alloc_max", "prof_bt_max", "prof_typo"]
    assert malloc_conf.unknown_options(options, "5.3.0-0-g54eaed1d8b56") == ["prof_bt_max", "prof_typo"]
    assert malloc_conf.unknown_options(options, "5.3.1") == ["prof_typo"]
    assert malloc_conf.unknown_options(options, "4.5.0") is None
    assert malloc_conf.unknown_options(options, "") is None


@pytest.fixture(scope="module")
def jemalloc() -> Path:
    found = sorted(Path("/usr/lib").glob("*/libjemalloc.so.2"))
    if not found or b"5.3.0-" not in found[0].read_bytes():
        pytest.fail("no libjemalloc2 5.3.0: apt-get install libjemalloc-dev")
    return found[0]


def unknown_to(jemalloc: Path, names: list[str]) -> set[str]:
    """The names that the library does not accept as an option, whatever the value."""
    environment = {"LD_PRELOAD": str(jemalloc), "MALLOC_CONF": ",".join(f"{name}:!" for name in names)}
    done = subprocess.run(["/bin/true"], env=environment, capture_output=True, text=True, check=True)
    return set(re.findall(r"Invalid conf pair: (\w+):!", done.stderr))


def test_the_table_knows_what_the_library_knows(jemalloc: Path) -> None:
    everything = sorted(set().union(*malloc_conf.OPTIONS.values()))
    known = set(everything) - unknown_to(jemalloc, everything)
    assert known == malloc_conf.OPTIONS["5.3.0"] - CONFIGURED


def test_the_table_misses_no_option_of_the_library(jemalloc: Path) -> None:
    """Offers the library every word in it as an option."""
    words = re.findall(rb"[a-z][a-z0-9_]{2,60}(?=\0)", jemalloc.read_bytes())
    names = sorted({word.decode() for word in words})
    assert len(names) > 200
    known = set(names) - unknown_to(jemalloc, names)
    assert known >= {"lg_prof_sample", "narenas_ratio"}, "options stand among the words"
    known -= {"metadata", "percpu"}  # jemalloc compares dss, metadata_thp and percpu_arena by the word's own length
    assert known <= malloc_conf.OPTIONS["5.3.0"]
