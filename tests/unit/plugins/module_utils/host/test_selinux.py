# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What the kernel is asked, and what its answer means; the kernel itself is one that this machine may not have."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.host import procfs, selinux

LIBRARY = "/opt/offheap/agent/1/liboffheap.so"
INIT = "system_u:system_r:init_t:s0"
NAMED = "system_u:system_r:named_t:s0:c1,c2"
PROGRAM = "/usr/sbin/named"
OF = "system_u:object_r:{}:s0".format
# Of what is there.
CONTEXTS = {
    LIBRARY: OF("lib_t"),
    PROGRAM: OF("named_exec_t"),
    "/usr/sbin": OF("bin_t"),
    "/opt/offheap": OF("usr_t"),
    "/var/lib": OF("var_lib_t"),
    "/run": OF("var_run_t"),
    "/sys/fs/cgroup": OF("cgroup_t"),
    "/proc/sys/kernel": OF("sysctl_kernel_t"),
    "/proc/sys/kernel/random/boot_id": OF("sysctl_kernel_t"),
}
# Of each class its number, and the numbers of its permissions in the answer.
CLASSES = {
    "file": (
        6,
        {"read": 2, "write": 3, "create": 4, "getattr": 5, "unlink": 10, "rename": 12, "execute": 14, "open": 19},
    ),
    "dir": (7, {"read": 2, "write": 3, "getattr": 5, "add_name": 18, "remove_name": 19, "search": 22, "open": 24}),
    "process": (2, {"noatsecure": 21}),
    "filesystem": (5, {"getattr": 3}),
}
EVERY = 0xFFFFFFFF


class Kernel:
    """Answers by type of the target and number of the class; allows all of what it is not told. What is made in a
    directory of some type has another."""

    def __init__(self, allowed: dict[tuple[str, int], int], flags: int = 0) -> None:
        self.asked: list[str] = []
        self.allowed, self.flags = allowed, flags

    def __call__(self, file: str, question: str) -> str:
        _source, target, number = question.split(" ")
        kind = target.split(":")[2]
        if file == "create":
            return OF(f"named_{kind}")
        assert file == "access"
        self.asked.append(question)
        return f"{self.allowed.get((kind, int(number)), EVERY):x} ffffffff 0 ffffffff 1 {self.flags:x}"


@pytest.fixture
def filesystem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, (number, permissions) in CLASSES.items():
        (tmp_path / "class" / name / "perms").mkdir(parents=True)
        (tmp_path / "class" / name / "index").write_text(str(number))
        for permission, bit in permissions.items():
            (tmp_path / "class" / name / "perms" / permission).write_text(str(bit))
    (tmp_path / "enforce").write_text("1")
    monkeypatch.setattr(selinux, "_FS", str(tmp_path))
    monkeypatch.setattr(selinux, "_own_context", lambda path: CONTEXTS.get(path, ""))
    monkeypatch.setattr(procfs, "security_label", lambda pid: INIT if pid == 1 else "")
    monkeypatch.setattr("os.path.lexists", CONTEXTS.__contains__)
    return tmp_path


def asked(monkeypatch: pytest.MonkeyPatch, kernel: Kernel, label: str = NAMED) -> list[str]:
    monkeypatch.setattr(selinux, "_asked", kernel)
    return selinux.lines(label, PROGRAM, [LIBRARY, ""], "named.service")


def test_all_is_allowed(filesystem: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel({})
    assert asked(monkeypatch, kernel) == []
    assert f"{NAMED} {CONTEXTS[LIBRARY]} 6" in kernel.asked
    assert f"{NAMED} {OF('fs_t')} 5" in kernel.asked
    assert f"{INIT} {NAMED} 2" in kernel.asked


def test_what_is_not_is_told_as_rules(filesystem: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = {
        ("bin_t", 7): 0,
        ("sysctl_kernel_t", 7): 0,
        ("lib_t", 6): EVERY & ~(1 << 13),
        ("var_lib_t", 7): 1 << 21 | 1 << 23,
        ("var_lib_t", 6): 0,  # no file of ours will have it
        ("named_var_lib_t", 6): EVERY & ~(1 << 3),
        ("named_tmpfs_t", 6): 0,
        ("fs_t", 5): 0,
        ("named_t", 2): EVERY & ~(1 << 20),
    }
    assert asked(monkeypatch, Kernel(allowed)) == [
        "(allow named_t sysctl_kernel_t (dir (search)))",
        "(allow named_t bin_t (dir (search)))",
        "(allow named_t lib_t (file (execute)))",
        "(allow named_t var_lib_t (dir (read getattr write add_name remove_name)))",
        "(allow named_t named_var_lib_t (file (create)))",
        "(allow named_t fs_t (filesystem (getattr)))",
        "(allow named_t named_tmpfs_t (file (open read getattr write)))",
        "(allow init_t named_t (process (noatsecure)))",
    ]


def test_of_what_is_looked_at_and_made_there_is_one_rule(filesystem: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CONTEXTS, "/", OF("var_lib_t"))
    kernel = Kernel({("var_lib_t", 7): 0})
    (rule,) = asked(monkeypatch, kernel)
    assert rule == "(allow named_t var_lib_t (dir (search open read getattr write add_name remove_name)))"


def test_a_domain_that_is_excepted(filesystem: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked(monkeypatch, Kernel({("lib_t", 6): 0}, flags=1)) == []


def test_one_that_does_not_change_needs_no_exception_for_its_start(
    filesystem: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert asked(monkeypatch, Kernel({("init_t", 2): 0}), INIT) == []


def test_a_policy_that_only_complains(filesystem: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (filesystem / "enforce").write_text("0")
    assert asked(monkeypatch, Kernel({("lib_t", 6): 0})) == []


@pytest.mark.parametrize("label", ["", "unconfined", "/usr/sbin/named (enforce)"])
def test_a_label_of_another_kind(label: str, filesystem: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked(monkeypatch, Kernel({("lib_t", 6): 0}), label) == []


@pytest.mark.parametrize("answer", ["", "0 0", "no"])
def test_an_answer_that_is_none(answer: str, filesystem: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selinux, "_asked", lambda _file, _question: answer)
    assert selinux.lines(NAMED, PROGRAM, [LIBRARY], "named.service") == []


def test_a_kernel_without_it_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selinux, "_FS", "/nowhere")
    assert selinux.lines(NAMED, PROGRAM, [LIBRARY], "named.service") == []
    assert selinux._asked("access", "anything") == ""
