# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The services whose blocks are held in one way each, or lost; and what is true of them."""

from __future__ import annotations

import re
from dataclasses import dataclass

PLACE = "/srv/holders"
# Until the profiler samples. What is allocated before is not seen.
SECONDS = 10
_START = {
    "C++": "{place}/held_cpp only {name} {seconds}",
    "C": "{place}/held_c {name} {seconds} {place}/keeper.so",
    "Rust": "{place}/held_rs {name} {seconds}",
    "Go with cgo": "{place}/held_go {name} {seconds}",
    "Python": "/usr/bin/python3 {place}/service.py {name} {seconds}",
    "Java": "/usr/bin/java -Xmx64m -XX:+UseSerialGC -cp {place} Held {name} {seconds} {place}/libheld.so",
}


@dataclass(frozen=True)
class Case:
    """``path`` is in the name of a function on the path that allocates it: the case's name, if empty. ``kept`` is what
    the sentence says of its holder, a regular expression; empty if all of it is lost. ``half`` is lost, too. Of what
    Debian packages: its ``package`` and ``service``, and the ``load`` under which it allocates, a shell's words."""

    language: str
    name: str
    kept: str = ""
    half: bool = False
    path: str = ""
    package: str = ""
    service: str = ""
    load: str = ""

    @property
    def unit(self) -> str:
        if self.service:
            return self.service
        language = self.language.split()[0].lower().replace("+", "p")
        return f"held-{language}-{self.name.replace('_', '-')}.service"

    @property
    def start(self) -> str:
        """What its unit runs."""
        return _START[self.language].format(place=PLACE, name=self.name, seconds=SECONDS)

    def is_on(self, functions: list[str]) -> bool:
        return any(re.search(self.path or self.name, function) for function in functions)


def _global(name: str) -> str:
    return rf"kept by (their own kind \(a list or a tree\), which )?global {name}\b"


_JAVA_HEAP = "kept by the Java heap"
_PYTHON = r"kept by (global \S+ of python3|the stack of thread python3|memory .*that is not the allocator's)"

CASES = (
    Case("C++", "lost_by_overwrite"),
    Case("C++", "lost_by_return"),
    Case("C++", "lost_by_exception"),
    Case("C++", "lost_with_its_holder"),
    Case("C++", "lost_in_a_cycle"),
    Case("C++", "lost_but_in_freed_memory"),
    Case("C++", "half_lost", _global("halves"), half=True),
    Case("C++", "kept_by_map", _global("ordered")),
    Case("C++", "kept_by_unordered_map", _global("session_cache")),
    Case("C++", "kept_by_vector", _global("shapes")),
    Case("C++", "kept_by_set", _global("chosen")),
    Case("C++", "kept_by_list", _global("queue")),
    Case("C++", "kept_by_its_own_list", _global("audit_head")),
    Case("C++", "kept_by_its_own_tree", _global("tree_root")),
    Case("C++", "kept_by_an_intrusive_list", _global("intrusive")),
    Case("C++", "kept_by_an_array", _global("array")),
    Case("C++", "kept_by_a_large_array", _global("large")),
    Case("C++", "kept_by_a_static", _global("kept_by_a_static::cache")),
    Case("C++", "kept_by_a_thread_local", "kept by thread-local mine"),
    Case("C++", "kept_by_a_stack", "kept by the stack of thread worker-3"),
    Case("C++", "kept_by_a_closure", _global("callbacks")),
    Case("C++", "kept_by_an_arena", "memory that is not the allocator's"),
    Case("C", "kept_by_a_list", _global("sessions")),
    Case("C", "lost_by_overwrite"),
    Case("C", "kept_by_a_plugin", _global("kept_by_a_plugin"), path="keep"),
    Case("C", "lost_with_a_plugin", path="with_plugin"),
    Case("Rust", "kept_by_a_hash_map", "kept by global .*CACHE"),
    Case("Rust", "lost_by_forget"),
    Case("Go with cgo", "kept_by_a_map", "memory that is not the allocator's"),
    Case("Go with cgo", "lost_by_return"),
    Case("Python", "kept_by_a_module", _global("kept of held"), path="made"),
    Case("Python", "kept_by_a_dict", _PYTHON, path="made"),
    Case("Python", "lost_reference", path="made"),
    Case("Python", "kept_documents", _PYTHON, path="xmlNewNode|xmlSAX2|xmlNewDoc"),
    Case("Python", "statements_not_finalized", _PYTHON, path="sqlite3"),
    Case("Java", "kept_by_a_list", _JAVA_HEAP, path="inflateInit2_"),
    Case("Java", "kept_by_a_map", _JAVA_HEAP, path="Unsafe_AllocateMemory"),
    Case("Java", "lost_by_native", path="Java_Held_lostByNative"),
    Case(
        "Debian",
        "keys of redis",
        _global("server"),
        path="dbAdd|createStringObject|sdsnewlen|sdsdup",
        package="redis-server",
        service="redis-server.service",
        load="seq 20000 | sed 's/.*/SET key:& a-value-of-some-length-&/' | redis-cli > /dev/null",
    ),
    Case(
        "Debian",
        "connections of nginx",
        r"kept by .* of nginx",
        path="ngx_create_pool|ngx_http_alloc|ngx_http_create_request|ngx_http_wait_request",
        package="nginx-light",
        service="nginx.service",
        load=f"systemd-run -q python3 {PLACE}/connections.py",
    ),
    Case(
        "Debian",
        "prepared statements of PostgreSQL",
        r"kept by global .*postgres",
        path="PrepareQuery|CreateCachedPlan|StorePreparedStatement",
        package="postgresql",
        service="postgresql@15-main.service",
        load=f"systemd-run -q --uid=postgres psql -qf {PLACE}/prepared.sql",
    ),
)
