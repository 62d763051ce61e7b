# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What collecting with the console costs for ten, a hundred and a thousand hosts.

    many_hosts.py [--hosts 10,100,1000] [--output build/bench/many-hosts.json]

One sshd on this machine answers for all names. Each session has its own spool with three dumps, in a mount namespace
that ends with it. Seconds are wall-clock time per host, memory is the largest resident set of the console's process,
threads are the most that it had. There is no peer. Needs root. Exits with status 1 if a thousand hosts take more than
one and a half times as long per host as ten, or if any run takes more than 150 MB.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BIN = ROOT / ".venv" / "bin"
SSHD = Path("/usr/sbin/sshd")
PORT = 20022
DUMPS = 3
MEMORY, GROWTH = 150.0, 1.5
DUMP = """heap_v2/524288
  t*: 1: {size} [0: 0]
@ 0x400100 0x400200
  t*: 1: {size} [0: 0]

MAPPED_LIBRARIES:
00400000-00600000 r-xp 00000000 00:00 1 /nowhere/program
7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0 [stack]
7ffd00100000-7ffd00102000 r-xp 00000000 00:00 0 [vdso]
"""
# Each session gets a fresh spool. The command is passed on as ssh received it.
SESSION = """#!/bin/sh
exec unshare -m --propagation private sh -c '
mount -t tmpfs -o mode=755 tmpfs {place} && mkdir -m 700 {place}/bench.service
cp -p {template}/* {place}/bench.service/
exec sh -c "$SSH_ORIGINAL_COMMAND"'
"""


@contextlib.contextmanager
def sshd(directory: Path) -> Iterator[Path]:
    """A server that answers for every name; yields the path of the ssh configuration for -F."""
    if not SSHD.exists():
        raise SystemExit("no sshd: apt-get install openssh-server")
    place = Path("/var/lib/offheap")
    made = not place.exists()
    place.mkdir(parents=True, exist_ok=True)
    template = directory / "template"
    template.mkdir()
    for sequence in range(DUMPS):
        text = DUMP.format(size=1000 + sequence)
        (template / f"jeprof.99999.{sequence}.m{sequence}.heap").write_text(text)
    (directory / "session").write_text(SESSION.format(place=place, template=template))
    (directory / "session").chmod(0o755)
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(directory / name)], check=True)
    shutil.copy(directory / "user.pub", directory / "authorized_keys")
    public = " ".join((directory / "host.pub").read_text().split()[:2])
    (directory / "known_hosts").write_text(f"* {public}\n")
    (directory / "sshd_config").write_text(
        f"Port {PORT}\nListenAddress 127.0.0.1\nHostKey {directory}/host\n"
        f"AuthorizedKeysFile {directory}/authorized_keys\nForceCommand {directory}/session\nPidFile none\n"
        "StrictModes no\nUsePAM no\nPermitRootLogin yes\n"
        "MaxStartups 100\n"
        # So that no ~/.bashrc of whoever measures is a part of each session: bash reads it for sshd.
        f"SetEnv HOME={directory}\n"
    )
    (directory / "ssh_config").write_text(
        f"Host *\n  HostName 127.0.0.1\n  Port {PORT}\n  User root\n"
        f"  IdentityFile {directory}/user\n  IdentitiesOnly yes\n  UserKnownHostsFile {directory}/known_hosts\n"
    )
    Path("/run/sshd").mkdir(exist_ok=True)
    server = subprocess.Popen([str(SSHD), "-D", "-f", str(directory / "sshd_config")], stderr=subprocess.DEVNULL)
    try:
        yield directory / "ssh_config"
    finally:
        server.terminate()
        server.wait()
        if made:
            place.rmdir()


def run(directory: Path, config: Path, count: int) -> tuple[float, float, int]:
    """(seconds, MB, threads) of a collection from so many hosts."""
    names: dict[str, dict[str, str]] = {f"host{number:04}": {} for number in range(count)}
    inventory = directory / f"hosts-{count}.yml"
    inventory.write_text(
        json.dumps(
            {"all": {"hosts": names, "vars": {"ansible_ssh_common_args": f"-F {config}", "ansible_become": False}}}
        )
    )
    archive = directory / f"archive-{count}"
    command = [str(BIN / "fab"), "-r", str(ROOT), "-i", str(inventory), "collect", "--archive", str(archive)]
    said = directory / "said"
    began = time.monotonic()
    with said.open("wb") as output:
        process = subprocess.Popen(command, cwd=directory, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    threads = 0
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            break
        with contextlib.suppress(OSError):
            threads = max(threads, len(os.listdir(f"/proc/{process.pid}/task")))
        time.sleep(0.05)
    seconds = time.monotonic() - began
    found = len(list((archive / "captures").glob("*/*/*/*/capture.json")))
    if status or found != count * DUMPS:
        raise SystemExit(f"{count} hosts: status {status}, {found} captures\n{said.read_text()[-3000:]}")
    return seconds, usage.ru_maxrss * 1024 / 1e6, threads


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hosts", default="10,100,1000")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "bench" / "many-hosts.json")
    arguments = parser.parse_args()
    counts = [int(word) for word in arguments.hosts.split(",")]
    rows: list[dict[str, Any]] = []
    per_host: dict[int, float] = {}
    broken = []
    with tempfile.TemporaryDirectory(prefix="offheap-bench-") as name, sshd(Path(name)) as config:
        for count in counts:
            seconds, memory, threads = run(Path(name), config, count)
            per_host[count] = seconds / count
            print(f"{count} hosts: {seconds:.1f} s, {memory:.0f} MB, {threads} threads", file=sys.stderr, flush=True)
            for metric, value in (("seconds-per-host", per_host[count]), ("peak-MB", memory), ("threads", threads)):
                shown = round(value, 3)
                row = {"case": f"collect-{count}", "metric": metric, "unit": metric, "ours": shown, "ratio": shown}
                rows.append({**row, "peer": None, "peer_name": "none"})
            if memory > MEMORY:
                broken.append(f"{count} hosts need {memory:.0f} MB")
    if per_host[counts[-1]] > GROWTH * per_host[counts[0]]:
        broken.append(
            f"{counts[-1]} hosts take {per_host[counts[-1]] / per_host[counts[0]]:.1f} times as long per host"
        )
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    for text in broken:
        print(f"NOT KEPT: {text}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
