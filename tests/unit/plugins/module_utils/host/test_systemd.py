# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""How units and environment files are read. Integration tests show that systemd reads them the same way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ansible_collections.offheap.profiler.plugins.module_utils.host import systemd
from ansible_collections.offheap.profiler.tests.unit.fakes import programs
from ansible_collections.offheap.profiler.tests.unit.fakes.units import Systemctl

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30)


def test_show(systemctl: Systemctl) -> None:
    systemctl.states(
        "Id=x.service\n"
        "ExecStart={ path=/bin/sh ; argv[]=/bin/sh -c a\nUser=not me\n\nb ; ignore_errors=no }\n"
        "ExecStart={ path=/bin/b ; argv[]=/bin/b ; ignore_errors=no }\n"
        "Environment=A=1 B=2\nUser=\nno line\n"
    )
    shown = systemd.show("x.service", ["Id", "ExecStart"])
    assert shown == {
        "Id": ["x.service"],
        "ExecStart": [
            "{ path=/bin/sh ; argv[]=/bin/sh -c a\nUser=not me\n\nb ; ignore_errors=no }",
            "{ path=/bin/b ; argv[]=/bin/b ; ignore_errors=no }",
        ],
        "Environment": ["A=1 B=2"],
        "User": [""],
    }
    assert systemctl.questions == ["--no-pager show --property Id,ExecStart -- x.service"]


@pytest.mark.parametrize(
    ("said", "unmet"),
    [
        ("x.service: ConditionPathExists=/a succeeded.\nConditions succeeded.\nexit 0", ""),
        ("x.service: ConditionPathExists=/a failed.\nConditions failed.\nexit 1", "ConditionPathExists=/a"),
        ("x.service: AssertUser=!a failed.\nx.service: AssertUser=b c failed.\nexit 1", "AssertUser=b c"),
        ("x.service: ConditionPathExists=!/a failed.\nConditions failed.\nexit 1", ""),
        ("x.service: ConditionPathExists=|/a failed.\nConditions succeeded.\nexit 0", ""),
        ("systemd-analyze: unrecognized option '--unit=x.service'\nexit 1", ""),
    ],
)
def test_a_condition_that_does_not_hold(
    systemctl: Systemctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, unmet: str
) -> None:
    lines = [line if line.startswith("exit ") else f'echo "{line}" >&2' for line in said.split("\n")]
    programs.script(tmp_path / "bin", "systemd-analyze", "\n".join(["#!/bin/sh", *lines, ""]))
    assert systemd.unmet_condition("x.service") == (f"its {unmet} does not hold" if unmet else "")
    monkeypatch.setenv("PATH", "/nowhere")
    assert systemd.unmet_condition("x.service") == ""


def test_a_command_that_is_cut_off_ends(systemctl: Systemctl) -> None:
    systemctl.states("ExecStart={ path=/bin/sh\n")
    assert systemd.show("x.service", ["ExecStart"])["ExecStart"] == ["{ path=/bin/sh\n\n }"]


def test_manager_environment(systemctl: Systemctl) -> None:
    systemctl.manager("LANG=C.UTF-8\nLD_PRELOAD=$'/a.so /b.so'\nQ=$'it\\'s \\\\ \"q\"'\nEMPTY=\nN=$'two\\nlines'\n")
    assert systemd.manager_environment() == {
        "LANG": "C.UTF-8",
        "LD_PRELOAD": "/a.so /b.so",
        "Q": 'it\'s \\ "q"',
        "EMPTY": "",
        "N": "two\nlines",
    }


def test_systemctl_that_fails_is_quoted(systemctl: Systemctl) -> None:
    with pytest.raises(systemd.SystemdError, match="fake systemctl: --no-pager kill x"):
        systemd.systemctl("kill", "x")


def test_systemctl_that_takes_too_long(systemctl: Systemctl) -> None:
    systemctl.restart("exec sleep 600")
    with pytest.raises(systemd.SystemdTimeout, match=r"restart x was not done after 0\.2 s"):
        systemd.systemctl("restart", "x", timeout=0.2)


def test_no_systemctl(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(systemd.SystemdError, match="Is this a systemd host"):
        systemd.systemctl("show")


def read(tmp_path: Path, *texts: str | bytes) -> list[tuple[str, str]]:
    paths = []
    for number, text in enumerate(texts):
        path = tmp_path / f"{number}.conf"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        paths.append(str(path))
    return [(assignment.key, assignment.value) for assignment in systemd.read_assignments(paths)]


def test_assignments_of_one_section_in_order(tmp_path: Path) -> None:
    assert read(
        tmp_path,
        "[Unit]\nA=no\n[Service]\n A = 1 \nB=x=y\nno assignment\n[Install]\nA=no\n[Service]\nC=\n",
        "A=outside\n[Service]\nA=2\n",
    ) == [("A", "1"), ("B", "x=y"), ("C", ""), ("A", "2")]


def test_assignments_know_their_file(tmp_path: Path) -> None:
    path = tmp_path / "x.conf"
    path.write_text("[Service]\nA=1\n")
    assert systemd.read_assignments([str(path)]) == [systemd.Assignment("A", "1", str(path))]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A=1 \\\n  2\nB=3", [("A", "1    2"), ("B", "3")]),
        ("A=1 \\\n# comment\n ; another\\\n2\nB=3", [("A", "1  2"), ("B", "3")]),
        ("A=1\\\\\nB=3", [("A", "1\\\\"), ("B", "3")]),
        ("A=1\\\\\\\nB=3", [("A", "1\\\\ B=3")]),
        ("A=1\\ \nB=3", [("A", "1\\"), ("B", "3")]),
        ("A=1\\\n\nB=3", [("A", "1"), ("B", "3")]),
        ("A=1\\", [("A", "1")]),
        ("#A=0\n;A=0\n  #A=0\nA=1 # no comment", [("A", "1 # no comment")]),
        ("A=1\r\nB=2\r\n", [("A", "1"), ("B", "2")]),
        ("A=a\u2028b\x85c\x0bd\n", [("A", "a\u2028b\x85c\x0bd")]),
        ("A=\u00a0x\u00a0", [("A", "\u00a0x\u00a0")]),
    ],
)
def test_lines(tmp_path: Path, text: str, expected: list[tuple[str, str]]) -> None:
    assert read(tmp_path, "[Service]\n" + text) == expected


def test_bytes_that_are_no_utf8(tmp_path: Path) -> None:
    assert read(tmp_path, b"\xef\xbb\xbf[Service]\nA=\xff\n") == [("A", "\udcff")]


def test_a_unit_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(systemd.SystemdError, match=r"gone\.conf cannot be read: No such file"):
        systemd.read_assignments([str(tmp_path / "gone.conf")])


@given(st.lists(TEXT))
@example(['"', "\\", "a\nb", "'", "", " "])
def test_quoted_words_are_split_again(words: list[str]) -> None:
    assert systemd.split_words(" ".join(map(systemd.quote, words))) == words


@given(st.lists(TEXT, min_size=1))
def test_quoted_words_stay_on_their_line(words: list[str]) -> None:
    """Unless they have a carriage return, which also ends a line of a unit file."""
    line = "Environment=" + " ".join(systemd.quote(word.replace("\r", "")) for word in words)
    assert "\n" not in line


@given(TEXT)
def test_any_value_can_be_split(value: str) -> None:
    for word in systemd.split_words(value):
        assert isinstance(word, str)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("", []),
        (" \t ", []),
        ("a  b\tc", ["a", "b", "c"]),
        ("'a b' \"c d\" e'f g'h", ["a b", "c d", "ef gh"]),
        ("'' \"\"", ["", ""]),
        ("'a\"b' \"c'd\"", ['a"b', "c'd"]),
        (r"\a\b\f\n\r\t\v\\\"\'\s", ["\a\b\f\n\r\t\v\\\"' "]),
        (r"\x41\102C\u00fc\U0001F600", ["ABCü😀"]),
        (r"\xc3\xbc \303\274", ["ü", "ü"]),
        (r"\xff", ["\udcff"]),
        (r"\ud7ff\ue000\U0010ffff", ["\ud7ff\ue000\U0010ffff"]),
        (r"'\x41\n'", ["A\n"]),
        (r"a \d b", ["a"]),
        (r"a b\x00c d", ["a"]),
        (r"a \ud800 d", ["a"]),
        (r"a \U00110000 d", ["a"]),
        (r"a \400 d", ["a"]),
        ("a 'b c", ["a"]),
        ("a b\\", ["a"]),
        ("a\u00a0b\u2003c", ["a\u00a0b\u2003c"]),
    ],
)
def test_split_words(value: str, words: list[str]) -> None:
    assert systemd.split_words(value) == words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A=1\nB = 2 \n  C=3", {"A": "1", "B": "2", "C": "3"}),
        ("A='a b'\nB=\"a b\"\nC='a' \"b\" c d", {"A": "a b", "B": "a b", "C": "abc d"}),
        ('A=a"b"\nB=it\'s', {"A": 'a"b"', "B": "it's"}),
        (r'A="\"\\\`\$\n"', {"A": '"\\`$\\n'}),
        (r"A='\"\\'", {"A": r"\"\\"}),
        (r"A=\"a\ b\n", {"A": '"a bn'}),
        ("A=\"a\\\nb\"\nB=a\\\nb\nC='a\\\nb'", {"A": "ab", "B": "ab", "C": "a\\\nb"}),
        ('A="two\nlines"\nB=x', {"A": "two\nlines", "B": "x"}),
        ("#A=1\n ;B=1\nC=a # b\nD=#", {"C": "a # b", "D": "#"}),
        ('A=1\r\nB="2"\r\nC=3\\\r\nx\n', {"A": "1", "B": "2", "C": "3"}),
        ("export A=1\nA-B=1\n1A=1\n=x\nA\nB=", {"B": ""}),
        ("A=1\nA=2", {"A": "2"}),
        ("A=$B ${C} %n", {"A": "$B ${C} %n"}),
        ("A=a \\ \nB=b\\  ", {"A": "a  ", "B": "b "}),
        ("A='open\nB=x", {"A": "open\nB=x"}),
        ("A=\\", {"A": ""}),
        ("A=ü\u2028x", {"A": "ü\u2028x"}),
    ],
)
def test_environment_file(text: str, expected: dict[str, str]) -> None:
    assert systemd.parse_environment_file(text) == expected


@given(st.text(st.sampled_from("AB=\"'\\\n\r \t#;$`xü"), max_size=60))
def test_any_environment_file_can_be_read(text: str) -> None:
    for key, value in systemd.parse_environment_file(text).items():
        assert key.strip() == key and "\0" not in value


def test_an_entry_that_is_not_utf8() -> None:
    assert systemd.parse_environment_file("# \udcff\nA=1") == {"A": "1"}
    with pytest.raises(systemd.SystemdError, match="'B' is not UTF-8") as refused:
        systemd.parse_environment_file("A=1\nB=geheim\udcff\n")
    assert "geheim" not in str(refused.value), "it may be a secret"


def test_expand() -> None:
    unit = r"web-shop@north-sea\x2done.service"
    assert systemd.expand("%n %N", unit) == rf"{unit} web-shop@north-sea\x2done"
    assert systemd.expand("%p %P %j %J", unit) == "web-shop web/shop shop shop"
    assert systemd.expand("%i %I %%i", unit) == r"north-sea\x2done north/sea-one %i"
    assert systemd.expand("/%p/%i/100%", "plain.service") == "/plain//100%"
    assert systemd.expand("%H%t", "x.service") == os.uname().nodename + "/run"
    assert systemd.expand("%S %C %L %E %T %V", unit) == "/var/lib /var/cache /var/log /etc /tmp /var/tmp"
    assert systemd.expand("%h %u %U %v", unit) == f"/root root 0 {os.uname().release}"
    with pytest.raises(systemd.SystemdError, match=r"%m in '/x/%m'; write it out"):
        systemd.expand("/x/%m", unit)


def test_variable() -> None:
    assert systemd.variable("A_1=b=c") == ("A_1", "b=c")
    assert systemd.variable("A=two\nlines") == ("A", "two\nlines")
    for word in ("A", "1A=b", "A-B=c", "=b", "", "A=\udcff"):
        assert systemd.variable(word) is None


def test_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    roots = [tmp_path / name for name in ("systemd", "unified")]
    monkeypatch.setattr(systemd, "CGROUP_ROOTS", tuple(map(str, roots)))
    assert systemd.processes("/system.slice/x.service") == []
    for path, text in {"": "30\n4\n", "child": "7\n0\n", "child/deep": ""}.items():
        (roots[1] / "system.slice/x.service" / path).mkdir(parents=True)
        (roots[1] / "system.slice/x.service" / path / "cgroup.procs").write_text(text)
    (roots[1] / "cgroup.procs").write_text("1\n")
    assert systemd.processes("/system.slice/x.service") == [4, 7, 30]
    assert systemd.processes("/system.slice/x") == [], "a name that begins alike is another unit"
    for group in ("", "x", "/../x", "/system.slice/../system.slice/x.service"):
        assert systemd.processes(group) == []
    (roots[0] / "system.slice/x.service").mkdir(parents=True)
    (roots[0] / "system.slice/x.service" / "cgroup.procs").write_text("9\n")
    assert systemd.processes("/system.slice/x.service") == [9], "the first hierarchy that knows the group"
