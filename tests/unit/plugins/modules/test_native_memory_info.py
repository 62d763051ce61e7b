# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The module on real processes, as root and as another user, and what its action keeps."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail

from ansible_collections.offheap.profiler.plugins.action import native_memory_info as action
from ansible_collections.offheap.profiler.plugins.action import triage_report
from ansible_collections.offheap.profiler.plugins.module_utils.host import containers
from ansible_collections.offheap.profiler.plugins.module_utils.memory import process as process_memory
from ansible_collections.offheap.profiler.plugins.modules import native_memory_info
from ansible_collections.offheap.profiler.tests.agent import hanging_disk
from ansible_collections.offheap.profiler.tests.unit.fakes import actions, programs
from ansible_collections.offheap.profiler.tests.unit.fakes.module_run import run_module
from ansible_collections.offheap.profiler.tests.unit.fakes.units import Systemctl, shown

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(**arguments: Any) -> dict[str, Any]:
        return run_module(native_memory_info.main, monkeypatch, capsys, **arguments)

    return run


@pytest.fixture(scope="module")
def pid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    program = programs.compiled(tmp_path_factory.mktemp("triage"), "web")
    with programs.running(program, env={"MALLOC_ARENA_MAX": "2", "SECRET": "x"}) as pid:
        yield pid


def test_a_unit(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pid: int) -> None:
    systemctl = Systemctl(tmp_path, monkeypatch)
    systemctl.states(shown("/web", Id="web.service", ActiveState="active", ControlGroup="/web"))
    systemctl.processes("/web", pid)
    result = run(units=["web"])
    (sample,) = result["samples"]
    assert not result["changed"]
    assert (sample["name"], sample["problem"]) == ("web.service", None)
    (process,) = sample["processes"]
    assert (process["pid"], process["threads"], process["jvm"], process["allocator"]) == (pid, 1, None, "libc")
    assert process["tunables"] == {"MALLOC_ARENA_MAX": "2"}
    assert process["not_readable"] == []
    assert sum(sizes["resident"] for sizes in process["classes"].values()) == process["rss"] >= process["pss"] > 0


def test_a_process_whose_main_thread_has_ended(tmp_path: Path) -> None:
    program = programs.compiled(tmp_path, "program", programs.GOES_ON_WITHOUT_MAIN, "-pthread")
    with programs.running(program, state="Z") as pid:
        facts = process_memory.look(pid, 5.0)
    assert (facts["exe"], facts["threads"], facts["not_readable"]) == (str(program), 2, [])
    assert facts["fds"] > 0 and facts["rss"] >= facts["pss"] > 0
    assert facts["malloc"]["heap"]["used"] > 0


def test_containers(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pid: int) -> None:
    group = f"/kubepods.slice/kubepods-pod1.slice/cri-containerd-{'a' * 64}.scope"
    systemctl = Systemctl(tmp_path, monkeypatch)
    systemctl.processes(group, pid)
    monkeypatch.setattr(containers, "running", lambda: {"shop/cart-0/cart": group})
    cart, none = sorted(run(containers=["shop/*", "shop/web-*"])["samples"], key=lambda sample: bool(sample["problem"]))
    assert cart["name"] == "container shop/cart-0/cart"
    assert [process["pid"] for process in cart["processes"]] == [pid]
    assert none["name"] == "container shop/web-*" and none["processes"] == []
    assert none["problem"] == "no container of that name runs on this host; 1 run here: shop/cart-0/cart"


def test_what_is_not_there(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    systemctl = Systemctl(tmp_path, monkeypatch)
    systemctl.states(shown("/web", Id="web.service", LoadState="not-found"))
    assert run(units=["web"])["samples"][0]["problem"] == "there is no unit web.service on this host"
    systemctl.states(shown("/web", Id="web.service"))
    assert "has no process: it is inactive" in run(units=["web"])["samples"][0]["problem"]
    (sample,) = run(pids=[4194304])["samples"]
    assert "no longer exists" in sample["problem"] and sample["processes"] == []
    assert "name units, containers or pids" in run()["msg"]


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes somebody else")
def test_without_the_right_to_look(pid: int) -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
        try:
            os.write(writing, json.dumps(process_memory.look(pid, 1.0)).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        process = json.loads(stream.read())
    os.waitpid(child, 0)
    assert process["rss"] > 0 and process["threads"] == 1 and process["name"] == "web"
    assert process["classes"] is None and process["fds"] is None
    named = " ".join(process["not_readable"])
    assert all(word in named for word in ("open files", "environment", "memory map"))


def test_a_process_of_somebody_else_is_a_warning(run: Run, pid: int, monkeypatch: pytest.MonkeyPatch) -> None:
    words = f"process {pid} lets this user read only its RSS"
    assert words not in str(run(pids=[pid]).get("warnings"))
    sample = native_memory_info.of_pid(pid, 1)
    sample["processes"][0]["classes"] = None
    monkeypatch.setattr(native_memory_info, "of_pid", lambda *_ask: sample)
    assert words in str(run(pids=[pid])["warnings"])


def _run(module: Any, check: bool = False, **arguments: Any) -> dict[str, Any]:
    plugin = actions.action(module, check, **arguments)
    if module is action:
        samples = [native_memory_info.of_pid(pid, 1) for pid in arguments["pids"]]
        native_memory_info.add_host(samples)
        plugin._execute_module = lambda **_more: {"changed": False, "samples": samples}
    result: dict[str, Any] = plugin.run(task_vars={"inventory_hostname": "app1"})
    return result


def test_looks_are_kept_and_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pid: int) -> None:
    monkeypatch.chdir(tmp_path)
    assert "kept" not in _run(action, pids=[pid])
    for _look in range(2):
        assert Path(_run(action, pids=[pid], keep="t")["kept"]).parent == tmp_path / "t" / "app1"
    checked = _run(triage_report, check=True, samples="t", show=False)
    assert checked["changed"] and not (tmp_path / "t" / "verdicts.json").exists()
    reported = _run(triage_report, samples="t", show=False)
    (verdict,) = reported["verdicts"]
    assert (verdict["unit"], verdict["host"]) == (f"pid {pid}", "app1")
    assert json.loads((tmp_path / "t" / "verdicts.json").read_text()) == reported["verdicts"]
    assert not _run(triage_report, samples="t", show=False)["changed"]
    with pytest.raises(AnsibleActionFail, match="nothing has no looks at these units and hosts"):
        _run(triage_report, samples="nothing", show=False)
    assert not (tmp_path / "nothing").exists()


class Silent(hanging_disk.HangingDisk):
    """Hangs whoever asks what it is."""

    def _answer(self, operation: int, node: int, argument: bytes) -> bytes:
        if operation == hanging_disk._GETATTR:
            self._free.wait()
        return super()._answer(operation, node, argument)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount it")
def test_a_file_system_that_does_not_answer_hides_no_more_than_what_lies_there(
    run: Run, pid: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_memory_info, "_PATIENCE", 0.5)
    (tmp_path / "disk").mkdir()
    disk = Silent(tmp_path / "disk")
    line = (
        "mount -t tmpfs t /mnt && head -c 2M /dev/zero > /mnt/large && mkdir /mnt/disk"
        f" && mount --bind {disk.path} /mnt/disk && exec sleep 60"
    )
    try:
        with subprocess.Popen(["unshare", "--mount", "sh", "-c", line]) as process:
            programs.settled(process, "sleep")
            disk.hangs()
            result = run(pids=[pid, process.pid])
            disk.let_go()
            process.kill()
    finally:
        disk.close()
    assert [sample["processes"][0]["pid"] for sample in result["samples"]] == [pid, process.pid]
    (warning,) = [one for one in result["warnings"] if "did not answer in time" in str(one)]
    assert f"error files and core dumps of pid {process.pid} are not known" in str(warning)
