# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""How fast dumps are collected from eight booted hosts, in six ways.

    collect.py [--rounds N] [--output build/bench/collect.json]

``small`` is 50 dumps of 92 kB on each host, ``big`` 20 of 2 MB. The ways run in turn, in a new order each round, each
into an empty archive and from a spool where nothing is collected yet, without an open SSH connection:

- ``fetch-loop``: ansible.builtin.fetch with become, a task for each dump (once: it takes minutes);
- ``tar-and-fetch``: one tar with become, then one fetch without;
- ``heap_fetch``: a play with this collection's module;
- ``fab-collect``: the operator's console;
- ``ssh-tar``: ``ssh host sudo tar -c | tar -x``, all hosts in parallel: no check, no archive, nothing marked;
- ``ssh-tarball``: the same without ``tar -x``, which leaves a tar file for each host.

Seconds are medians of the rounds; memory is the largest of any process on the controller. The images of the dumps are
on no host, so that only dumps are moved. Exits with status 1 if a promise is not kept.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BIN = ROOT / ".venv" / "bin"
LAB = ROOT / "tests" / "lab" / "lab"
LAB_NAME = "bench"
HOSTS = 8
SPOOL = "/var/lib/offheap/bench.service"
SIZES = {"small": (50, 92_000), "big": (20, 2_000_000)}
WAYS = ("fetch-loop", "tar-and-fetch", "heap_fetch", "fab-collect", "ssh-tar", "ssh-tarball")
SPEEDUP = {"small": 25.0, "big": 9.0}
#: fab collect against ssh with tar, whether the tar file is unpacked or not
SLOWDOWN = {"ssh-tar": 1.5, "ssh-tarball": 2.5}
MEMORY = 150.0

# Runs on a host: writes COUNT dumps of about SIZE bytes of a program whose image does not exist. As in real programs,
# the stacks share their outer frames, so gzip packs these dumps nine times; a JVM's pack eight to ten times.
MAKE = """
import random, sys
spool, count, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
program = random.Random(1)
functions = 2000
callers = [[program.randrange(one // 2, one) if one else 0 for _ in range(2)] for one in range(functions)]
address = [0x7f0000400000 + program.randrange(1 << 21) for _ in range(functions)]
for sequence in range(count):
    dice = random.Random(sequence)
    lines, length, total, held = [], 0, 0, 0
    while length < size - 700:
        frames, at = [], dice.randrange(functions // 2, functions)
        while at:
            frames.append("0x%x" % address[at])
            at = callers[at][dice.random() < 0.03]
        objects = dice.randrange(1, 400)
        bytes_ = objects * dice.choice((32, 96, 512, 4096, 65536))
        total, held = total + objects, held + bytes_
        counts = "%d: %d [0: 0]" % (objects, bytes_)
        lines.append("@ %s\\n  t*: %s\\n  t17: %s\\n" % (" ".join(frames), counts, counts))
        length += len(lines[-1])
    counts = "%d: %d [0: 0]" % (total, held)
    head = "heap_v2/524288\\n  t*: %s\\n  t17: %s\\n" % (counts, counts)
    maps = "\\nMAPPED_LIBRARIES:\\n7f0000400000-7f0000600000 r-xp 00000000 00:00 1 /nowhere/program\\n"
    maps += "7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0 [stack]\\n"
    maps += "7ffd00100000-7ffd00102000 r-xp 00000000 00:00 0 [vdso]\\n"
    with open("%s/jeprof.99999.%d.m%d.heap" % (spool, sequence, sequence), "w") as stream:
        stream.write(head + "".join(lines) + maps)
"""
FETCH_LOOP = """
- hosts: all
  gather_facts: false
  become: true
  tasks:
    - ansible.builtin.find: {paths: %(spool)s, patterns: "*.heap"}
      register: found
    - ansible.builtin.fetch: {src: "{{ item.path }}", dest: "%(dest)s/{{ inventory_hostname }}/", flat: true}
      loop: "{{ found.files }}"
      loop_control: {label: "{{ item.path }}"}
"""
TAR_AND_FETCH = """
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.tempfile: {state: directory}
      register: place
    - ansible.builtin.shell: "umask 077; sudo tar -C %(spool)s -czf - . > {{ place.path }}/dumps.tar.gz"
    - ansible.builtin.fetch:
        {src: "{{ place.path }}/dumps.tar.gz", dest: "%(dest)s/{{ inventory_hostname }}/", flat: true}
    - ansible.builtin.file: {path: "{{ place.path }}", state: absent}
"""

HEAP_FETCH = """
- hosts: all
  gather_facts: false
  become: true
  tasks:
    - offheap.profiler.heap_fetch: {archive: "%(archive)s"}
"""


class Bench:
    """The hosts, and the ways to collect from them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.environment = {
            # The first run compiles this library's modules, like the first run of an installed collection.
            **{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
            "OFFHEAP_LAB_NAME": LAB_NAME,
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        }
        self.lab("down")
        self.lab("up", "--hosts", str(HOSTS))
        self.inventory = self.lab("inventory").strip()
        self.names = [line.split("\t")[0] for line in self.lab("ls").splitlines()]
        tarball = subprocess.run(
            [str(ROOT / "tests/gates/build.sh"), str(directory)],
            cwd=ROOT,
            text=True,
            capture_output=True,
            check=True,
            env=self.environment,
        ).stdout.split()[-1]
        collections = directory / "collections"
        subprocess.run(
            ["ansible-galaxy", "collection", "install", "--offline", "-p", str(collections), str(ROOT / tarball)],
            check=True,
            env=self.environment,
            capture_output=True,
        )
        self.collection = collections / "ansible_collections" / "offheap" / "profiler"
        # No connection is kept from one run to the next.
        (directory / "ansible.cfg").write_text(
            f"[defaults]\ninventory = {self.inventory}\ncollections_path = {collections}\nforks = {HOSTS}\n"
            f"[ssh_connection]\npipelining = True\ncontrol_path_dir = {directory}/cp\n"
        )
        self.environment["ANSIBLE_CONFIG"] = str(directory / "ansible.cfg")
        places = {"spool": SPOOL, "dest": directory / "fetched", "archive": directory / "archive"}
        for name, text in (("fetch-loop", FETCH_LOOP), ("tar-and-fetch", TAR_AND_FETCH), ("heap_fetch", HEAP_FETCH)):
            (directory / f"{name}.yml").write_text(text % places)

    def lab(self, *arguments: str) -> str:
        return subprocess.run(
            [str(LAB), *arguments], env=self.environment, text=True, capture_output=True, check=True
        ).stdout

    def everywhere(self, command: str) -> None:
        """A shell command as root on all hosts at once."""
        line = f"sudo sh -c {shlex.quote(command)}"
        running = [subprocess.Popen([str(LAB), "ssh", name, line], env=self.environment) for name in self.names]
        statuses = [process.wait() for process in running]
        if any(statuses):
            raise SystemExit(f"failed on a host: {command}")

    def fill(self, count: int, size: int) -> None:
        self.everywhere(
            f"rm -rf /var/lib/offheap; mkdir -p -m 755 /var/lib/offheap; mkdir -m 700 {SPOOL};"
            f"python3 -c {shlex.quote(MAKE)} {SPOOL} {count} {size}"
        )

    def reset(self) -> None:
        """Restore the state before a collection, here and on the hosts."""
        self.everywhere(f"cd {SPOOL}; [ ! -d collected ] || {{ mv collected/* .; rmdir collected; }}")
        for connection in (self.directory / "cp").glob("*"):
            subprocess.run(["ssh", "-S", connection, "-O", "exit", "any"], check=False, capture_output=True)
        self._put_aside("fetched", "archive")
        (self.directory / "fetched").mkdir()
        os.sync()

    def _put_aside(self, *names: str) -> None:
        """Empty what came before, and keep its files: ext4 looks long for a place that nobody freed in the last minutes
        (recently_deleted in its ialloc.c), which no collection outside a benchmark meets."""
        aside = Path(tempfile.mkdtemp(dir=self.directory))
        for name in names:
            if (self.directory / name).exists():
                (self.directory / name).rename(aside / name)
        for path in aside.rglob("*"):
            if path.is_file():
                os.truncate(path, 0)

    def run(self, way: str, count: int) -> tuple[float, float]:
        """(seconds, MB of the largest process) of one way."""
        commands: dict[str, list[str]] = {
            "fetch-loop": ["ansible-playbook", "fetch-loop.yml"],
            "tar-and-fetch": ["ansible-playbook", "tar-and-fetch.yml"],
            "heap_fetch": ["ansible-playbook", "heap_fetch.yml"],
            "fab-collect": ["fab", "-r", str(self.collection), "-i", self.inventory, "collect", "--archive", "archive"],
            "ssh-tar": ["sh", "-c", self._ssh_tar("| tar -C {name} -xf -")],
            "ssh-tarball": ["sh", "-c", self._ssh_tar("> {name}.tar")],
        }
        self.reset()
        said = self.directory / "said"
        began = time.monotonic()
        with said.open("wb") as output:
            process = subprocess.Popen(
                commands[way],
                cwd=self.directory,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            _pid, status, usage = os.wait4(process.pid, 0)
        seconds = time.monotonic() - began
        if status:
            raise SystemExit(f"{way}: status {os.waitstatus_to_exitcode(status)}\n{said.read_text()[-4000:]}")
        self._check(way, count)
        return seconds, usage.ru_maxrss * 1024 / 1e6

    def _ssh_tar(self, end: str) -> str:
        """Without a shared connection, like the others."""
        config = Path(self.inventory).parent / "ssh_config"
        each = (
            f"(mkdir {name}; ssh -F {config} {name} sudo tar -C {SPOOL} -cf - . {end.format(name=name)}) & "
            for name in self.names
        )
        return f"cd {self.directory}/fetched; {''.join(each)} wait"

    def _check(self, way: str, count: int) -> None:
        """Check that everything arrived."""
        if way in ("heap_fetch", "fab-collect"):
            found = len(list((self.directory / "archive" / "captures").glob("*/*/*/*/capture.json")))
        elif way in ("fetch-loop", "ssh-tar"):
            found = len(list((self.directory / "fetched").glob("*/*.heap")))
        else:
            packed = [*(self.directory / "fetched").glob("**/*.tar*")]
            listed = [
                subprocess.run(["tar", "-tf", str(path)], text=True, capture_output=True, check=True) for path in packed
            ]
            found = sum(one.stdout.count(".heap\n") for one in listed)
        if found != count * HOSTS:
            raise SystemExit(f"{way}: {found} of {count * HOSTS} dumps arrived")


def row(case: str, metric: str, unit: str, ours: float, peer: float, peer_name: str, ratio: float) -> dict[str, Any]:
    return {
        "case": case,
        "metric": metric,
        "unit": unit,
        "ours": round(ours, 3),
        "peer": round(peer, 3),
        "peer_name": peer_name,
        "ratio": round(ratio, 3),
    }


def rows_of(size: str, seconds: dict[str, float], memory: dict[str, float]) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows of one size, and the promises that are not kept."""
    speedup = seconds["fetch-loop"] / seconds["heap_fetch"]
    slowdown, beside_tarball = (seconds["fab-collect"] / seconds[peer] for peer in ("ssh-tar", "ssh-tarball"))
    rows = [
        row(f"heap_fetch-vs-fetch-loop-{size}", "speedup", "s", seconds["heap_fetch"], seconds["fetch-loop"],
            "fetch with become, in a loop", speedup),
        row(f"heap_fetch-vs-tar-and-fetch-{size}", "speedup", "s", seconds["heap_fetch"], seconds["tar-and-fetch"],
            "tar, then one fetch", seconds["tar-and-fetch"] / seconds["heap_fetch"]),
        row(f"fab-collect-vs-ssh-{size}", "slowdown", "s", seconds["fab-collect"], seconds["ssh-tar"],
            "ssh host sudo tar | tar -x, in parallel", slowdown),
        row(f"fab-collect-vs-ssh-tarball-{size}", "slowdown", "s", seconds["fab-collect"], seconds["ssh-tarball"],
            "ssh host sudo tar, not unpacked", beside_tarball),
        *(row(f"{way}-{size}", "peak-MB", "MB", memory[way], memory[way], "none", memory[way])
          for way in ("heap_fetch", "fab-collect")),
    ]  # fmt: skip
    broken = [] if speedup >= SPEEDUP[size] else [f"{size}: heap_fetch is {speedup:.1f} times as fast as the loop"]
    broken += [
        f"{size}: fab collect takes {found:.2f} times as long as {peer}"
        for peer, found in (("ssh-tar", slowdown), ("ssh-tarball", beside_tarball))
        if found > SLOWDOWN[peer]
    ]
    broken += [
        f"{size}: {way} needs {memory[way]:.0f} MB" for way in ("heap_fetch", "fab-collect") if memory[way] > MEMORY
    ]
    return rows, broken


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "bench" / "collect.json")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    broken: list[str] = []
    dice = random.Random(1)
    with tempfile.TemporaryDirectory(prefix="offheap-bench-") as name:
        bench = Bench(Path(name))
        try:
            for size, (count, each) in SIZES.items():
                bench.fill(count, each)
                found: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
                for number in range(arguments.rounds):
                    ways = [way for way in WAYS if way != "fetch-loop" or number == 0]
                    for way in dice.sample(ways, len(ways)):
                        found[way].append(bench.run(way, count))
                        print(
                            f"{size} {way}: {found[way][-1][0]:.2f} s, {found[way][-1][1]:.0f} MB",
                            file=sys.stderr,
                            flush=True,
                        )
                seconds = {way: statistics.median(run[0] for run in runs) for way, runs in found.items()}
                more, missed = rows_of(size, seconds, {way: max(run[1] for run in runs) for way, runs in found.items()})
                rows += more
                broken += missed
        finally:
            bench.lab("down")
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    for one in rows:
        print(f"{one['case']:36} {one['metric']:9} {one['ratio']:8.2f}")
    for text in broken:
        print(f"NOT KEPT: {text}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
