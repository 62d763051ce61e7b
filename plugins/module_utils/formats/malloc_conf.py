# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""MALLOC_CONF: text to mapping and back, and which options a jemalloc version knows.

The format is jemalloc's own (``malloc_conf_next`` in its source): pairs
``name:value`` joined by commas, where a value ends at the next comma and
nothing can be escaped.
"""

from __future__ import annotations

import re
from typing import Mapping, Union

from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError

Value = Union[bool, int, str]

_NAME = re.compile(r"[a-z][a-z0-9_]*\Z")


def _words(text: str) -> list[str]:
    return text.split()


# Read off the option parsers of the releases (src/jemalloc.c, from 5.3.1 on src/conf.c).
_SINCE_5_2_1 = _words("""
    abort abort_conf background_thread bin_shards confirm_conf dirty_decay_ms dss junk lg_extent_max_active_fit
    lg_prof_interval lg_prof_sample lg_tcache_max log max_background_threads metadata_thp muzzy_decay_ms narenas
    oversize_threshold percpu_arena prof prof_accum prof_active prof_final prof_gdump prof_leak prof_log
    prof_prefix prof_thread_active_init retain slab_sizes stats_print stats_print_opts tcache thp utrace xmalloc
    zero
""")
_SINCE_5_3_0 = _words("""
    experimental_infallible_new hpa hpa_dirty_mult hpa_hugification_threshold hpa_hugification_threshold_ratio
    hpa_hugify_delay_ms hpa_min_purge_interval_ms hpa_sec_batch_fill_extra hpa_sec_max_alloc hpa_sec_max_bytes
    hpa_sec_nshards hpa_slab_max_alloc lg_san_uaf_align lg_tcache_flush_large_div lg_tcache_flush_small_div
    lg_tcache_nslots_mul mutex_max_spin narenas_ratio prof_leak_error prof_recent_alloc_max prof_stats
    prof_sys_thread_name prof_time_resolution prof_unbias san_guard_large san_guard_small stats_interval
    stats_interval_opts tcache_gc_delay_bytes tcache_gc_incr_bytes tcache_max tcache_nslots_large
    tcache_nslots_small_max tcache_nslots_small_min trust_madvise zero_realloc
""")
_ONLY_5_3_0 = ["hpa_sec_bytes_after_flush"]
_SINCE_5_3_1 = _words("""
    cache_oblivious calloc_madvise_threshold debug_double_free_max_scan disable_large_size_classes
    experimental_hpa_enforce_hugify experimental_hpa_max_purge_nhp experimental_hpa_start_huge_if_thp_always
    experimental_tcache_gc hpa_hugify_sync hpa_min_purge_delay_ms hpa_purge_threshold hpa_purge_threshold_ratio
    huge_arena_pac_thp process_madvise_max_batch prof_bt_max prof_pid_namespace tcache_ncached_max
""")

OPTIONS: dict[str, frozenset[str]] = {
    "5.2.1": frozenset(_SINCE_5_2_1),
    "5.3.0": frozenset(_SINCE_5_2_1 + _SINCE_5_3_0 + _ONLY_5_3_0),
    "5.3.1": frozenset(_SINCE_5_2_1 + _SINCE_5_3_0 + _SINCE_5_3_1),
}


class MallocConfError(OffheapError):
    """A text or mapping is not a valid MALLOC_CONF."""


def parse(text: str) -> dict[str, str]:
    """Read ``name:value,name:value``; if a name is repeated, the last value wins, as in jemalloc."""
    options: dict[str, str] = {}
    for pair in text.split(","):
        if not pair:
            continue
        name, colon, value = pair.partition(":")
        if not colon or not _NAME.match(name):
            raise MallocConfError(f"'{pair}' in MALLOC_CONF is not of the form name:value")
        options[name] = value
    return options


def render(options: Mapping[str, Value]) -> str:
    """Write a mapping as MALLOC_CONF; booleans become ``true`` and ``false``."""
    pairs = []
    for name, value in options.items():
        if not _NAME.match(name):
            raise MallocConfError(f"'{name}' is not the name of a jemalloc option")
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if not text.isprintable() or "," in text or " " in text:
            raise MallocConfError(f"the value of {name} must not contain a comma, blank or control character: {text!r}")
        pairs.append(f"{name}:{text}")
    return ",".join(pairs)


def unknown_options(options: Mapping[str, Value], version: str) -> list[str] | None:
    """Names in ``options`` that this version of jemalloc does not know.

    ``version`` is what ``mallctl("version")`` says (``5.3.0-0-g54eaed1d8b56``) or
    the release alone. ``None`` for a version that we do not know.
    """
    known = OPTIONS.get(version.split("-", 1)[0])
    if known is None:
        return None
    return [name for name in options if name not in known]
