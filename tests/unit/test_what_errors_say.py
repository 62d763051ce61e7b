# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What a person in a hurry gets wrong, and what the real console and the real Ansible say to it.

A row is a command line, its exit status, and words of what it says: what happened, why, or what to do next.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.tests.conftest import COLLECTIONS, ROOT
from ansible_collections.offheap.profiler.tests.unit.strategies import leaky_archives

pytestmark = pytest.mark.slow

#: hides what is called GONE, as if it were not installed
HIDING = """
import os, sys

class Gone:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in os.environ["GONE"].split(","):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Gone)
"""
PLAY = "ansible-playbook offheap.profiler"
HERE = "-i localhost, -c local -e ansible_become=false"
ADHOC = "ansible localhost -m offheap.profiler"
KNOWN = "it has frontend.service"

CONSOLE: list[tuple[str, int, str]] = [
    # hosts and inventories
    ("fab -i nope.ini status", 2, "there is no inventory nope.ini; a list of hosts needs a comma"),
    ("fab status", 2, "the inventory has no hosts; name hosts with -H HOST,HOST or an inventory with -i"),
    ("fab -H , units", 2, "'' is not a host: expected [user@]host[:port]"),
    ("fab -H app1:ssh units", 2, "'app1:ssh' is not a host: expected [user@]host[:port]"),
    ("GONE=ansible fab -i localhost, units", 2, "-m pip install ansible-core; or name hosts with -H"),
    # options and numbers
    ("fab -H localhost nosuch", 2, "'nosuch' is neither a command nor an option that fits here; `fab -l` lists"),
    ("fab -H localhost units --nope", 2, "'--nope' is neither a command nor an option"),
    ("fab report extra", 2, "'extra' is neither a command nor an option"),
    ("fab top", 2, "'top' needs 'dump'; `fab -l` lists the commands, `fab --help COMMAND` the options"),
    ("fab peek frontend@app1 --focus", 2, "--focus needs a value"),
    ("fab -H localhost watch --unit x --interval abc", 2, "'abc' is not a whole number"),
    ("fab -H localhost watch --unit x --interval 0", 2, "--interval is 0; give 1 or more"),
    ("fab -H localhost watch --unit x --seconds -1", 2, "--seconds is -1; give 0 or more"),
    ("fab -H localhost watch --unit x --unit y", 2, "watch follows one service: give --unit once"),
    ("fab -H localhost units --at-once 0", 2, "--at-once is 0; give 1 or more"),
    ("fab -H localhost units --timeout -1", 2, "--timeout is -1; give 1 or more"),
    ("fab -H localhost dump", 2, "name the service with --unit, for example --unit frontend"),
    ("fab -H localhost dump --unit ../x", 1, "localhost: '../x' is not the name of a service unit"),
    ("fab -H localhost on --unit nosuch --unit b", 1, "no process of nosuch.service has an agent that answers"),
    ("fab -H localhost collect --unit a --unit b", 0, "b.service has no spool: it was never profiled"),
    ("fab top frontend@app1 --rows 0", 2, "--rows is 0; give 1 or more"),
    ("fab top frontend@app1 --rows many", 2, "'many' is not a whole number"),
    ("fab serve --directory written --port 1000000", 2, "--port is 1000000; give 0 (any free one) to 65535"),
    # dumps
    ("fab top nosuch", 2, "there is no file nosuch: name a dump's file, or UNIT@HOST, which `fab captures` lists"),
    ("fab top fronted@app1", 2, "fronted@app1 is neither a file nor a unit and host with captures"),
    ("fab top offheap/archive", 2, "is an archive: name one of its captures, which `fab captures` lists"),
    ("fab top directory", 2, "directory is a directory without dump.heap.zst: name a dump or"),
    ("fab top empty.heap", 2, "empty.heap: is empty"),
    ("fab top cut.heap.zst", 2, "cut.heap.zst: is cut off after 0 of"),
    ("fab top frontend@app1 --source live:bytes:x", 2, "'x' is not a size: expected bytes, such as 524288"),
    ("fab top frontend@app1 --source rubbish", 2, "'rubbish' is not one of live, allocated, grown"),
    ("fab top a.folded --source live:objects:1", 2, "counts objects and no bytes: set measure to inuse_objects"),
    ("fab top frontend@app1 --measure rss", 2, "'rss', which is not one of inuse_space, inuse_objects, alloc_space"),
    ("fab top frontend@app1 --focus (", 2, "'(' is not a regular expression"),
    ("fab diff frontend@app1", 2, "'diff' needs 'after'"),
    ("fab diff frontend@app1 frontend@app2 --focus (", 2, "'(' is not a regular expression: missing )"),
    ("fab peek frontend@app1 --focus nosuch", 2, "no function matches 'nosuch'; the format text lists them (fab top)"),
    ("GONE=symbolic,zstandard fab top frontend@app1", 2, "on the controller: zstandard symbolic. Install"),
    # where things are written
    ("fab flame frontend@app1 --dest directory", 2, "directory: is a directory; name a file"),
    ("fab flame frontend@app1 --dest empty.heap", 2, "replaced only with force=true (fab: --force)"),
    ("fab flame frontend@app1 --dest /proc/x.html", 2, "/proc/x.html cannot be written: No such file or directory"),
    ("fab report --dest empty.heap", 2, "cannot be written: part of its path is a file, not a directory"),
    # archives
    ("fab report --archive nosuch", 2, "if it is elsewhere, set offheap_archive (fab: --archive)"),
    ("fab report --archive empty", 2, "is empty: collect_profiles and fab collect bring captures"),
    ("fab report --archive empty.heap", 2, "empty.heap is a file, and an archive is a directory: name that"),
    ("fab report --archive torn", 2, "torn/archive.json is damaged: Expecting property name enclosed in double quotes"),
    ("fab report --archive future", 2, "use the version that made the archive, or collect into a new directory"),
    ("fab report --unit fronted", 2, f"has no captures of the unit fronted.service: {KNOWN}"),
    ("fab wach", 2, "'wach' is neither a command nor an option that fits here (did you mean watch?); `fab -l` lists"),
    ("fab wait lots", 2, "'lots' is not a size: expected bytes, such as 524288, or '512 KiB'"),
    ("fab wait 0", 2, "what does not leak is never told: name what is lost in a day, such as 60MiB"),
    ("fab captures --unit fronted", 2, f"has no captures of the unit fronted.service: {KNOWN}"),
    ("fab captures --archive damaged", 0, "is damaged: Expecting property name"),
    ("fab -H localhost collect --archive empty.heap", 2, "there is a file of that name; name another directory"),
    ("fab -H localhost collect --archive directory", 2, "directory is not an archive, and not empty (it holds thesis"),
    ("GONE=zstandard fab report", 2, "/meta/ee-requirements.txt"),
    ("GONE=rich fab captures", 1, "the console needs rich, too: "),
    ("fab serve --directory directory", 2, "there is no report in directory: `fab report` writes one"),
    # profiles of other tools
    ("fab import nosuch --unit a --host b", 2, "there is no file nosuch"),
    ("fab import a.folded --unit a --host b", 2, "set source_unit to bytes or objects, and source_measure to live"),
    ("fab import a.folded --unit a --host b --time yesterday", 2, "write it like 2026-11-22T03:00:00, in UTC"),
    (
        "fab import a.folded --unit a --host b --query memory:x",
        2,
        "--query, --since and --headers are for a server, and a.folded is no address",
    ),
    (
        "fab import http://127.0.0.1:1 --query a:b --headers nope --unit a --host b",
        2,
        "nope: No such file or directory",
    ),
    ("fab import http://127.0.0.1:1 --query web --unit a --host b", 2, "'web' is not a query, such as memory:inuse_"),
    ("fab import empty.heap --unit a --host b", 2, "empty.heap: is empty"),
]

ANSIBLE: list[tuple[str, int, str]] = [
    (
        f"{PLAY}.triage",
        2,
        "The playbook triage looks at the units that offheap_units names, on the hosts of the inventory (-i)",
    ),
    (f"{PLAY}.triage {HERE}", 2, "No unit is named. Name the services to look at with offheap_units"),
    (f"{PLAY}.triage {HERE} -e offheap_units=a -e triage_watch=soon", 2, "triage_watch is 'soon', which is not a dur"),
    (f"{PLAY}.triage {HERE} -e offheap_units=../x", 2, "'../x' is not the name of a service unit"),
    (
        f"{PLAY}.report_leaks -e offheap_report_units=fronted",
        2,
        f"has no captures of the unit fronted.service: {KNOWN}",
    ),
    (f"{PLAY}.report_leaks -e offheap_report_hosts=app7", 2, "has no captures of the host app7: it has app1, app2"),
    (f"{PLAY}.report_leaks -e offheap_report_top=many", 2, "'many' is not a whole number"),
    (f"{PLAY}.report_leaks -e offheap_archive=nosuch", 2, "there is no archive in "),
    (f"{PLAY}.switch_profiling {HERE} -e state=maybe", 2, "Pass -e state=on, -e state=off or -e state=dump."),
    (f"{PLAY}.switch_profiling {HERE} -e state=dump", 0, "No unit on this host has an agent, so nothing was done."),
    (f"{PLAY}.switch_profiling {HERE} -e state=dump -e offheap_units=nosuch", 2, "no process of nosuch.service has an"),
    (
        f"""{PLAY}.switch_profiling {HERE} -e state=dump -e '{{"offheap_units": [{{"name": "nosuch"}}]}}'""",
        2,
        "no process of nosuch.service has an",
    ),
    (f"{PLAY}.collect_profiles {HERE} -e heap_collect_max_batch=1X", 2, "'1X' is not a size: expected bytes, such as"),
    (f"{PLAY}.collect_profiles {HERE} -e heap_collect_units=../x", 2, "'../x' is not the name of a service unit"),
    (f"{PLAY}.collect_profiles {HERE} -e offheap_archive=empty.heap", 2, "there is a file of that name; name another"),
    (f"{ADHOC}.leak_assert -a 'archive=offheap/archive max_growth=1X'", 2, "'1X' is not a size: expected bytes"),
    (f"{ADHOC}.leak_assert -a 'archive=offheap/archive units=fronted'", 2, KNOWN),
    (f"{ADHOC}.leak_push -a archive=offheap/archive", 2, "nowhere to send to: set pyroscope_url, otlp_url or textfile"),
    (f"{ADHOC}.leak_push -a 'archive=offheap/archive textfile=x.txt'", 2, "textfile's name must end with .prom"),
    (f"{ADHOC}.archive_prune -a archive=offheap/archive", 0, "nothing is pruned without keep_days, keep_captures or"),
    (
        f"{ADHOC}.archive_sync -a 'archive=offheap/archive url=file:///nosuch direction=pull'",
        2,
        "there is no archive",
    ),
    (f"{ADHOC}.heap_analyze -a 'src=directory dest=x.html'", 2, "is a directory without dump.heap.zst"),
    (f"{ADHOC}.unit_health -a unit=nosuch", 2, "this host does not run systemd|unit nosuch.service"),
]
#: what no message for people holds
NOISE = re.compile(r"Traceback \(most recent|AnsibleTagged|\[Errno|<class |Error\(|object at 0x")


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with what the commands name."""
    path = tmp_path_factory.mktemp("hurry")
    archive = leaky_archives.fill(path / "offheap" / "archive", path / "scratch")
    (path / "empty.heap").touch()
    (path / "a.folded").write_text("main;work 4096\n")
    (path / "directory").mkdir()
    (path / "directory" / "thesis.txt").touch()
    (path / "written").mkdir()
    (path / "written" / "report.html").touch()
    newest = archive.captures()[-1]
    (path / "cut.heap.zst").write_bytes(newest.dump.read_bytes()[:40])
    for name, index in {"empty": '{"format": 3}', "torn": "{", "future": '{"format": 9}'}.items():
        (path / name).mkdir()
        (path / name / "archive.json").write_text(index)
    shutil.copytree(archive.root, path / "damaged")
    (path / "damaged" / archive.name_of(newest) / "capture.json").write_text("{")
    (path / "hiding").mkdir()
    (path / "hiding" / "sitecustomize.py").write_text(HIDING)
    return path


def _run(line: str, here: Path) -> tuple[int, str]:
    gone, program, *arguments = shlex.split(line if line.startswith("GONE=") else f"GONE= {line}")
    environment = {
        **os.environ,
        "ANSIBLE_COLLECTIONS_PATH": str(COLLECTIONS),
        "ANSIBLE_LOCALHOST_WARNING": "false",
        "ANSIBLE_LOCAL_TEMP": str(here / ".ansible"),
        "ANSIBLE_REMOTE_TEMP": str(here / ".ansible"),
        "ANSIBLE_PYTHON_INTERPRETER": sys.executable,
    }
    if gone != "GONE=":
        environment.update(GONE=gone.removeprefix("GONE="), PYTHONPATH=str(here / "hiding"))
    own = ["-r", str(ROOT)] if program == "fab" else []
    done = subprocess.run(
        [str(Path(sys.executable).with_name(program)), *own, *arguments],
        cwd=here,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr if program == "fab" else done.stdout + done.stderr


@pytest.fixture(scope="module")
def said(here: Path) -> Iterator[dict[str, tuple[int, str]]]:
    """What each command says. Most of the time they wait for Python to start, so several run at once."""
    lines = [line for line, _status, _words in (*CONSOLE, *ANSIBLE)]
    with ThreadPoolExecutor(4) as pool:
        yield dict(zip(lines, pool.map(lambda line: _run(line, here), lines), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(("line", "status", "words"), [*CONSOLE, *ANSIBLE])
def test_an_error_says_what_happened_and_what_to_do(
    said: dict[str, tuple[int, str]], line: str, status: int, words: str
) -> None:
    was, text = said[line]
    plain = " ".join(text.split())
    assert any(part in plain for part in words.split("|")), text
    assert was == status, text
    assert not NOISE.search(text), text
