# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What the collection reads in unit and environment files is what systemd makes of them, in each of its versions.

Each case is an instance of one template unit, whose only job is to write down its environment.
"""

from __future__ import annotations

import base64
import io
import random
import shlex
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.host import procfs, systemd
from ansible_collections.offheap.profiler.plugins.module_utils.unit import drop_in
from ansible_collections.offheap.profiler.plugins.module_utils.unit.refusal import UnitError
from ansible_collections.offheap.profiler.tests.integration.hosts import Lab, LabHost

HOSTS = ("app1", "app2", "app3")
LIBRARY = "/opt/offheap/jemalloc/none/lib/libjemalloc.so.2"
TEMPLATE = "offheap-syntax@.service"
UNITS = "/run/systemd/system"
OURS = ("LD_PRELOAD", "MALLOC_CONF")


@dataclass(frozen=True)
class Case:
    """Lines of the [Service] section by the drop-in that has them, and an environment file ($FILE in them)."""

    drop_ins: dict[str, bytes]
    file: bytes = b""


@dataclass
class Bench:
    """A directory that is at the same place here and on the host, with all cases of one run."""

    host: LabHost
    root: Path
    units: dict[str, list[str]] = field(default_factory=dict)

    @property
    def here(self) -> Path:
        """Our copy of the host's units."""
        return self.root / "units"

    def add(self, case: Case) -> str:
        """Write a case as the next instance; gives the unit's name."""
        unit = TEMPLATE.replace("@", f"@{len(self.units)}")
        path = self.root / f"{len(self.units)}.env"
        path.write_bytes(case.file)
        self.units[unit] = []
        for name, text in case.drop_ins.items():
            self.write(unit, name, text.replace(b"$FILE", str(path).encode()))
        return unit

    def write(self, unit: str, name: str, text: bytes) -> None:
        path = self.here / f"{unit}.d" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text)
        if name.endswith(".conf"):
            self.units[unit] = sorted([*self.units[unit], str(path)], key=lambda known: Path(known).name)

    def run(self) -> dict[str, dict[str, str] | None]:
        """The environment in which systemd starts each unit; None for one that it does not start."""
        self.here.mkdir(exist_ok=True)
        (self.here / TEMPLATE).write_text(
            "[Unit]\nStartLimitIntervalSec=0\n[Service]\nType=oneshot\n"
            f"ExecStart=/usr/bin/env -0\nStandardOutput=file:{self.root}/out/%i\nStandardError=null\n"
        )
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as tar:
            tar.add(self.root, arcname=str(self.root).lstrip("/"))
        text = base64.b64encode(packed.getvalue()).decode()
        self.host.run(f"echo {text} | base64 -d | tar -xzf - -C / && mkdir {self.root}/out")
        self.host.run(f"cp -r {self.here}/. {UNITS} && systemctl daemon-reload")
        self.host.run(f"systemctl start {' '.join(self.units)}", check=False)
        answer = self.host.run(f"tar -czf - -C {self.root} out | base64 -w0").stdout
        with tarfile.open(fileobj=io.BytesIO(base64.b64decode(answer))) as tar:
            tar.extractall(self.root, filter="data")
        return {unit: self._answer(number) for number, unit in enumerate(self.units)}

    def _answer(self, number: int) -> dict[str, str] | None:
        path = self.root / "out" / str(number)
        if not path.exists() or not path.stat().st_size:
            return None
        pairs = (word.partition(b"=") for word in path.read_bytes().split(b"\0"))
        return {
            key.decode(): value.decode(errors="surrogateescape")
            for key, _equals, value in pairs
            if key.startswith(b"T") or key.decode() in OURS
        }

    def read(self, unit: str) -> dict[str, str] | None:
        """The same, as the collection reads it."""
        try:
            found = drop_in.read_environment(systemd.read_assignments(self.units[unit]), {}, unit)
        except UnitError:
            return None
        return {key: variable.value for key, variable in found.variables.items() if key[0] == "T" or key in OURS}

    def clean(self) -> None:
        names = " ".join(f"{UNITS}/{name}" for name in (TEMPLATE, *(f"{unit}.d" for unit in self.units)))
        self.host.run(f"rm -rf {names} {self.root}; systemctl daemon-reload; systemctl reset-failed 'offheap-syntax@*'")


@pytest.fixture(params=HOSTS)
def bench(request: pytest.FixtureRequest, booted_lab: Lab) -> Iterator[Bench]:
    bench = Bench(booted_lab.host(request.param), Path(tempfile.mkdtemp(prefix="offheap-syntax-")))
    yield bench
    bench.clean()
    shutil.rmtree(bench.root)


def compare(bench: Bench, cases: list[Case]) -> None:
    units = [bench.add(case) for case in cases]
    answers = bench.run()
    wrong = [
        f"{case}\n   systemd: {answers[unit]}\n   read:    {bench.read(unit)}"
        for unit, case in zip(units, cases, strict=True)
        if answers[unit] != bench.read(unit)
    ]
    assert not wrong, "\n".join([f"{len(wrong)} of {len(cases)}", *wrong])
    assert any(answers.values()), "no unit said anything"


def section(*lines: str) -> bytes:
    return "\n".join(["[Service]", *lines, ""]).encode()


FILE = section("EnvironmentFile=$FILE")


def from_file(text: bytes) -> Case:
    return Case({"10-a.conf": FILE}, text)


def test_environment_files(bench: Bench) -> None:
    texts = [
        b"T1=plain\nT2 = a b  \n  T3=x\t\n",
        b"T1='it'\"'\"'s'\nT2=\"a\\\"b\\\\c\\`d\\$e\\nf\"\nT3='a\\b'\n",
        b'T1=a"b"c\nT2="a"b"c"\nT3="a" \'b\' c \'d\'\n',
        b"T1=a\\\nb\nT2=\"a\\\nb\"\nT3='a\\\nb'\nT4=x \\\n y\n",
        b"T1=\"two\nlines\"\nT2='two\nlines'\n",
        b"# T1=no\n;T2=no\n  # T3=no\nT4=a # b\nT5=#x\n",
        b'T1=a\r\nT2="b"\r\nT3=c\\\r\nd\r\nT4=e\n',
        b"export T1=no\nT2\nT3=\nT-4=no\n5T=no\n=no\nT6==x\n",
        b"T1=first\nT1=second\nT2=a b c\nT3=$T1 ${T1} %n %%\n",
        b"T1=\\a\\b\\\\c\\ \nT2=a\\  \nT3= \\ a\n",
        b'T1=unclosed\nT2="to the end\nT3=x\n',
        b"T1=no newline at the end",
        b"T1=ends in a backslash\\",
        b"T1='a",
        b"T1=\xc3\xbc\nT2=\xe2\x80\xa8x\xc2\xa0\n",
        b'T1=a\x01b\nT2=tab\there\nT3="a\rb"\n',
        b"# latin \xfc in a comment\nT1=x\n",
        b"T1=latin \xfc\nT2=x\n",
        b'T1="a"\\\nT2=b\nT3=c\n',
        b"T1=a'b\nT2=it's\n",
        b"T1=\\\n\n\nT2=b\n",
    ]
    compare(bench, [from_file(text) for text in texts])


def test_environment_files_at_random(bench: Bench) -> None:
    """The seed is fixed, so that a failure comes again."""
    rolls = random.Random(20261121)
    atoms = ["T1=", "T2=", "T3=", "a", "b", " ", " ", "\t", "\n", "\n", "\r\n", "\\", '"', '"', "'", "$", "`", "=", "ü"]
    texts = ["".join(rolls.choices(atoms, k=rolls.randint(3, 40))) for _case in range(120)]
    compare(bench, [from_file(("T0=x\n" + text).encode()) for text in texts])


def test_a_comment_goes_on_behind_a_backslash_until_systemd_254(bench: Bench) -> None:
    unit = bench.add(from_file(b"T0=x\n# comment\\\nT1=x\nT2=y\n"))
    version = int(bench.host.run("systemctl --version").stdout.split()[1])
    expected = {"T0": "x", "T2": "y"}
    assert bench.read(unit) == expected
    assert bench.run()[unit] == (expected if version < 254 else {**expected, "T1": "x"})


def test_environment_settings(bench: Bench) -> None:
    texts = [
        section('Environment=T1=a T2=b \'T3=c d\' "T4=e f" T5="g h" T6=', "Environment=T1=z"),
        section(
            r"Environment=T1=\x41\102\u00fc\U0001F600\s\t\\\"\'x", r"Environment=T2=\xc3\xbc", r"Environment=T3=\xff"
        ),
        section(r"Environment=T1=a T2=\d T3=c", "Environment=T4=x"),
        section(r"Environment=T1=a T2=\x00 T3=c", r"Environment=T4=\ud800", r"Environment=T5=\400", "Environment=T6=x"),
        section("Environment=T1=a 'T2=open", "Environment=T3=x"),
        section("Environment=T1=a\\\\", "Environment=T2=b\\", "Environment=T3=c"),
        section("Environment=T1=a\u00a0b\u2028c T2=d\x0be T3=f", "Environment=T4=x"),
        section("Environment=T1=a", "Environment=", "Environment=T2=b", "Environment=''", "Environment=T-3=no T4=x"),
        section("Environment=T1=a \\", "# a comment between", "   ; another", "  T2=b \\", "T3=c", "T4=not a setting"),
        section("Environment='T1=a \\", "   b'", "  Environment = T2=b  "),
        section("Environment=T1=a \\ ", "Environment=T2=b"),
        section("Environment=T1=a \\", ""),
        b"\xef\xbb\xbf[Service]\nEnvironment=T1=bom\r\nEnvironment=T2=crlf\r\n",
        b"[Unit]\nEnvironment=T1=no\n[Service]\nEnvironment=T2=x\n[X-Other]\nEnvironment=T3=no\n[Service]\nEnvironment=T4=x\n",
        section("Environment=T1=x", "Environment=LD_PRELOAD=/nowhere/%p/%i/%N/%%.so MALLOC_CONF=narenas:1"),
    ]
    compare(bench, [Case({"10-a.conf": text}) for text in texts])


def test_environment_settings_at_random(bench: Bench) -> None:
    rolls = random.Random(20261122)
    atoms = [
        "T1=",
        "T2=",
        " ",
        " ",
        "a",
        "b",
        "\\",
        "\\x41",
        "\\n",
        "\\s",
        '"',
        '"',
        "'",
        "'",
        "=",
        "ü",
        "#",
        "\\\n",
        "\t",
    ]
    texts = ["".join(rolls.choices(atoms, k=rolls.randint(3, 25))) for _case in range(120)]
    compare(bench, [Case({"10-a.conf": section("Environment=T0=x", "Environment=T3=y " + text)}) for text in texts])


def test_order_of_settings(bench: Bench) -> None:
    cases = [
        Case({"10-a.conf": FILE, "20-b.conf": section("Environment=T1=later")}, b"T1=file"),
        Case({"10-a.conf": FILE, "20-b.conf": section("EnvironmentFile=", "Environment=T2=x")}, b"T1=file"),
        Case({"20-b.conf": section("Environment=T1=b"), "100-a.conf": section("Environment=T1=a")}),
        Case({"10-a.conf": section("Environment=T1=a T2=b T3=c", "UnsetEnvironment=T1 T2=b T3=other")}),
        Case({"10-a.conf": section("Environment=T1=a", "UnsetEnvironment=T1", "UnsetEnvironment=")}),
        Case({"10-a.conf": FILE, "20-b.conf": section("UnsetEnvironment=T1=file 'T2'")}, b"T1=file\nT2=x\nT3=y"),
        Case({"10-a.conf": section("Environment=T1=x", "EnvironmentFile=-/nowhere/at/all")}),
        Case({"10-a.conf": section("Environment=T1=x", "EnvironmentFile=/nowhere/at/all")}),
        Case(
            {"10-a.conf": FILE.replace(b"=$FILE", b"=-$FILE"), "20-b.conf": section("Environment=T2=x")},
            b"T1=\xfc\nT3=y",
        ),
        Case({"10-a.conf": section("EnvironmentFile=$FILE*")}, b"T1=by a pattern"),
        Case(
            {
                "10-a.conf": section(
                    "Environment=LD_PRELOAD=/nowhere/%i.so", "UnsetEnvironment=LD_PRELOAD=/nowhere/%i.so T1"
                )
            }
        ),
    ]
    compare(bench, cases)


@pytest.mark.parametrize("name", HOSTS)
def test_specifiers(booted_lab: Lab, name: str) -> None:
    host = booted_lab.host(name)
    unit = r"offheap-syntax@some-thing\x2dlike.this.service"
    text = "%n|%N|%p|%P|%i|%I|%j|%J|%t|%S|%C|%L|%E|%T|%V|%h|%u|%U|%H|%v|%%"
    where = f"{UNITS}/offheap-syntax@.service"
    try:
        host.run(f"printf '[Service]\\nExecStart=/bin/true\\nEnvironment=T1=%s\\n' '{text}' > {where}")
        host.run("systemctl daemon-reload")
        shown = host.run(f"systemctl show -p Environment --value '{unit}'").stdout
        facts = host.run("uname -n; uname -r").stdout.split()
    finally:
        host.run(f"rm {where}; systemctl daemon-reload")
    fake = [part for part in text.split("|") if part not in ("%H", "%v")]
    there = dict(zip(text.split("|"), systemd.split_words(shown)[0][len("T1=") :].split("|"), strict=True))
    assert {part: systemd.expand(part, unit) for part in fake} == {part: there[part] for part in fake}
    assert [there["%H"], there["%v"]] == facts


def injected(bench: Bench, unit: str) -> drop_in.Injection:
    """Compose our drop-in for a case and lay it among the others."""
    own = systemd.read_assignments(bench.units[unit])
    injection = drop_in.compose(unit, LIBRARY, {"lg_prof_sample": 19}, own, {}, [], f"{UNITS}/{unit}.d")
    bench.write(unit, drop_in.NAME, injection.text({}).encode())
    if injection.environment_file:
        bench.write(unit, drop_in.ENVIRONMENT_NAME, injection.environment_file.encode())
    return injection


def test_what_compose_promises_is_what_a_process_gets(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    boot_id = bench.host.run("cat /proc/sys/kernel/random/boot_id").stdout.strip()
    monkeypatch.setattr(procfs, "boot_id", lambda: boot_id)
    theirs = "LD_PRELOAD=/nowhere/a.so MALLOC_CONF=narenas:2,lg_prof_sample:1"
    file = theirs.replace(" MALLOC", "\nMALLOC").encode()
    cases = [
        Case({}),
        Case({"10-a.conf": section(f"Environment={theirs} T1=kept")}),
        Case({"10-a.conf": section('Environment="LD_PRELOAD=/nowhere/a.so /nowhere/b.so:/nowhere/c.so"')}),
        Case({"10-a.conf": FILE}, file + b"\nT1=kept\n"),
        Case({"10-a.conf": FILE}, b'LD_PRELOAD="/nowhere/$x`y.so"\n'),
        Case(
            {"10-a.conf": section(f"Environment={theirs}", "UnsetEnvironment=LD_PRELOAD T1", "Environment=T1=a T2=b")}
        ),
        Case({"10-a.conf": section("Environment=LD_PRELOAD=/nowhere/%i/%%.so T1=x", "Environment=MALLOC_CONF=")}),
        Case({"95-z.conf": section(f"Environment={theirs.replace('/a.so', '/%i.so')} T1=kept")}),
        Case({"10-a.conf": FILE, "95-z.conf": section(f"Environment={theirs} T1=kept")}, b"LD_PRELOAD=/nowhere/f.so"),
    ]
    units = {bench.add(case): case for case in cases}
    kept = {unit: bench.read(unit) or {} for unit in units}
    promised = {unit: injected(bench, unit) for unit in units}
    answers = bench.run()
    for unit, case in units.items():
        assert answers[unit] == {**kept[unit], **promised[unit].environment}, case
        for library in kept[unit].get("LD_PRELOAD", "").replace(":", " ").split():
            assert library in promised[unit].environment["LD_PRELOAD"].split(":"), case


def test_manager_environment(booted_lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set, read and taken back by systemctl on the host."""
    values = {
        "T1": "a b",
        "T2": "1|2",
        "T3": "it's",
        "T4": 'p"q',
        "T5": "a$b\\c",
        "T6": "a:b,c/%n",
        "T7": "",
        "T8": "ü",
    }
    host = booted_lab.host("app2")

    def systemctl(*arguments: str) -> str:
        return host.run(shlex.join(["systemctl", *arguments])).stdout

    monkeypatch.setattr(systemd, "systemctl", systemctl)
    try:
        host.run(shlex.join(["systemctl", "set-environment", *(f"{key}={value}" for key, value in values.items())]))
        found = systemd.manager_environment()
    finally:
        host.run(f"systemctl unset-environment {' '.join(values)}")
    assert {key: value for key, value in found.items() if key in values} == values
