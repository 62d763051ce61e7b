# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What the drop-in says, whatever the unit had before. An integration test shows that systemd obeys."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ansible_collections.offheap.profiler.plugins.module_utils.formats import malloc_conf, preload
from ansible_collections.offheap.profiler.plugins.module_utils.host import procfs, systemd
from ansible_collections.offheap.profiler.plugins.module_utils.host.systemd import Assignment
from ansible_collections.offheap.profiler.plugins.module_utils.unit import drop_in
from ansible_collections.offheap.profiler.plugins.module_utils.unit.refusal import UnitError

UNIT = "web@north.service"
LIBRARY = "/opt/offheap/jemalloc/5.3.0-x/lib/libjemalloc.so.2"
PLAIN = "prof_prefix:/var/lib/offheap/web@north.service/jeprof"
BOOT = procfs.boot_id().replace("-", "")
PREFIX = f"{PLAIN}.{BOOT}"
BARE = f"prof:true,{PREFIX}"
WRITTEN = f'Environment="MALLOC_CONF=prof:true,{PLAIN}.%b"'
WHERE = "/etc/systemd/system/web@north.service.d"
FRAGMENT = "/usr/lib/systemd/system/web@.service"


def setting(key: str, value: str, path: str = FRAGMENT) -> Assignment:
    return Assignment(key, value, path)


def late(key: str, value: str) -> Assignment:
    return setting(key, value, f"{WHERE}/95-late.conf")


def compose(
    *own: Assignment,
    options: Mapping[str, malloc_conf.Value] | None = None,
    manager: Mapping[str, str] | None = None,
    sandbox: tuple[str, ...] = (),
    agent: drop_in.AgentSettings | None = None,
    aids: Mapping[str, list[str]] | None = None,
) -> drop_in.Injection:
    return drop_in.compose(UNIT, LIBRARY, options or {}, list(own), manager or {}, sandbox, WHERE, agent, aids)


def values(*own: Assignment, manager: Mapping[str, str] | None = None) -> dict[str, str]:
    found = drop_in.read_environment(list(own), manager or {}, UNIT)
    return {name: variable.value for name, variable in found.variables.items()}


# What the unit has


def test_later_settings_win() -> None:
    own = [setting("Environment", "A=1 B=1"), setting("Environment", "A=2 C='x y'"), setting("User", "A=3")]
    assert values(*own, manager={"B": "manager", "D": "manager"}) == {"A": "2", "B": "1", "C": "x y", "D": "manager"}


def test_an_empty_setting_takes_back_all_before(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("B=file\n")
    own = [
        setting("Environment", "A=1"),
        setting("EnvironmentFile", str(file)),
        setting("UnsetEnvironment", "C"),
        setting("Environment", ""),
        setting("EnvironmentFile", ""),
        setting("UnsetEnvironment", ""),
        setting("Environment", "C=3"),
    ]
    assert values(*own, manager={"A": "manager"}) == {"A": "manager", "C": "3"}


def test_a_file_wins_over_a_later_environment(tmp_path: Path) -> None:
    (tmp_path / "1").write_text("A=first\nB=first\n")
    (tmp_path / "2").write_text("A='second'\n")
    own = [
        setting("EnvironmentFile", str(tmp_path / "1")),
        setting("EnvironmentFile", f"-{tmp_path / '2'}"),
        setting("EnvironmentFile", f"-{tmp_path / 'missing'}"),
        setting("Environment", "A=direct B=direct C=direct"),
    ]
    found = drop_in.read_environment(own, {}, UNIT).variables
    assert {name: variable.value for name, variable in found.items()} == {"A": "second", "B": "first", "C": "direct"}
    assert found["A"].setting == "EnvironmentFile"
    assert found["C"] == drop_in.Variable("direct", "Environment", FRAGMENT)


def test_files_by_pattern_and_specifier(tmp_path: Path) -> None:
    (tmp_path / "north-1").write_text("A=1\nB=1\n")
    (tmp_path / "north-2").write_text("A=2\n")
    assert values(setting("EnvironmentFile", f"{tmp_path}/%i-*")) == {"A": "2", "B": "1"}


def test_a_file_that_must_exist(tmp_path: Path) -> None:
    with pytest.raises(UnitError, match=r"gone cannot be read, so web@north\.service would not start again"):
        values(setting("EnvironmentFile", str(tmp_path / "gone")))


def test_a_file_that_systemd_would_not_load(tmp_path: Path) -> None:
    file = tmp_path / "latin"
    file.write_bytes(b"A=1\nB=\xfc\n")
    assert values(setting("EnvironmentFile", f"-{file}")) == {}
    with pytest.raises(UnitError, match="not UTF-8"):
        values(setting("EnvironmentFile", str(file)))


@pytest.mark.parametrize("optional", ["", "-"])
def test_a_pipe_that_would_never_end(tmp_path: Path, optional: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UnitError, match="is a pipe, which gives what it holds once"):
        values(setting("EnvironmentFile", f"{optional}{tmp_path / 'pipe'}"))


def test_unset_environment() -> None:
    own = [setting("Environment", "A=1 B=2 C=3 D=4"), setting("UnsetEnvironment", "A B=2 C=other 'D=4' E")]
    assert values(*own) == {"C": "3"}
    assert values(setting("UnsetEnvironment", "A"), manager={"A": "1"}) == {}


def test_specifiers_are_resolved_where_it_matters() -> None:
    own = [
        setting("Environment", "LD_PRELOAD=/%p/%i%%.so MALLOC_CONF=prof_prefix:/%i OTHER=%m"),
        setting("UnsetEnvironment", "LD_PRELOAD=/web/%i%%.so"),
    ]
    assert values(own[0]) == {"LD_PRELOAD": "/web/north%.so", "MALLOC_CONF": "prof_prefix:/north", "OTHER": "%m"}
    assert "LD_PRELOAD" not in values(*own)
    with pytest.raises(systemd.SystemdError, match="%m"):
        values(setting("Environment", "LD_PRELOAD=/%m.so"))


# What ours says


def test_a_unit_without_either_variable() -> None:
    injection = compose(setting("Environment", "A=1"))
    assert injection.settings == [f'Environment="LD_PRELOAD={LIBRARY}"', WRITTEN]
    assert injection.environment == {"LD_PRELOAD": LIBRARY, "MALLOC_CONF": BARE}
    assert injection.environment_file is None
    assert injection.shown() == injection.environment


@pytest.mark.parametrize(
    ("theirs", "kept"),
    [
        ("/a.so", ":/a.so"),
        ("/a.so:/b.so", ":/a.so:/b.so"),
        ("'/a.so  /b.so:/c.so'", ":/a.so:/b.so:/c.so"),
        (f"/a.so:{LIBRARY}", ":/a.so"),
        ("/usr/lib/x86_64-linux-gnu/libjemalloc.so.2:/a.so", ":/a.so"),
        ("", ""),
    ],
)
def test_preloaded_libraries_stay_behind_ours(theirs: str, kept: str) -> None:
    injection = compose(setting("Environment", f"LD_PRELOAD={theirs}"))
    assert injection.environment["LD_PRELOAD"] == LIBRARY + kept
    assert injection.settings[0] == f'Environment="LD_PRELOAD={LIBRARY}{kept}"'


def test_another_jemalloc_stays_where_the_service_keeps_its_allocator() -> None:
    agent = drop_in.AgentSettings("/opt/offheap/agent/1/liboffheap.so", {"OFFHEAP_UNIT": UNIT})
    theirs = setting("Environment", "LD_PRELOAD=/usr/lib/libjemalloc.so.2")
    injection = drop_in.compose(UNIT, agent.library, {}, [theirs], {}, (), WHERE, agent, None)
    assert injection.environment["LD_PRELOAD"] == f"{agent.library}:/usr/lib/libjemalloc.so.2"


def test_options_are_merged() -> None:
    before = "narenas:2,lg_prof_sample:10,prof:false,prof_prefix:/tmp/x,bin_shards:1-160:16|129-512:4"
    injection = compose(
        setting("Environment", f"MALLOC_CONF={before}"), options={"lg_prof_sample": 19, "prof_final": False}
    )
    assert malloc_conf.parse(injection.environment["MALLOC_CONF"]) == {
        "narenas": "2",
        "lg_prof_sample": "19",
        "prof": "true",
        "prof_prefix": PREFIX.partition(":")[2],
        "bin_shards": "1-160:16|129-512:4",
        "prof_final": "false",
    }


@pytest.mark.parametrize(
    ("setting_of_kernel", "options"),
    [
        ("[always] madvise never\n", {"thp": "never", "metadata_thp": "disabled"}),
        ("always [madvise] never\n", {}),
        ("always madvise [never]\n", {}),
        (None, {}),
    ],
)
def test_huge_pages_are_left_out_where_the_kernel_gives_them_always(
    tmp_path: Path, setting_of_kernel: str | None, options: dict[str, str]
) -> None:
    file = tmp_path / "enabled"
    if setting_of_kernel is not None:
        file.write_text(setting_of_kernel)
    assert drop_in.huge_page_options(str(file)) == options


def test_the_unit_s_own_options_win_over_defaults_and_ours_over_those() -> None:
    own = setting("Environment", "MALLOC_CONF=thp:always,narenas:2")
    injection = drop_in.compose(
        UNIT, LIBRARY, {"narenas": 1}, [own], {}, (), WHERE, defaults={"thp": "never", "metadata_thp": "disabled"}
    )
    found = malloc_conf.parse(injection.environment["MALLOC_CONF"])
    assert (found["thp"], found["metadata_thp"], found["narenas"]) == ("always", "disabled", "1")


def test_options_that_jemalloc_could_not_read() -> None:
    with pytest.raises(UnitError, match="'nonsense' in MALLOC_CONF"):
        compose(setting("Environment", "MALLOC_CONF=nonsense"))
    with pytest.raises(UnitError, match="value of narenas"):
        compose(options={"narenas": "1,2"})


def test_dumps_of_another_boot_have_other_names(tmp_path: Path) -> None:
    """Without the agent. In a file systemd expands nothing, so there the names are jemalloc's own."""
    injection = compose()
    assert injection.environment["MALLOC_CONF"] == BARE
    assert injection.settings[-1] == WRITTEN
    (tmp_path / "file").write_text("MALLOC_CONF=narenas:1\n")
    injection = compose(setting("EnvironmentFile", str(tmp_path / "file")))
    assert injection.environment["MALLOC_CONF"] == f"prof:true,narenas:1,{PLAIN}"


def test_what_the_manager_sets_stays_too() -> None:
    injection = compose(manager={"LD_PRELOAD": "/m%n.so"})
    assert injection.environment["LD_PRELOAD"] == f"{LIBRARY}:/m%n.so"
    assert injection.settings[0] == f'Environment="LD_PRELOAD={LIBRARY}:/m%%n.so"', "it is no specifier there"


def test_specifiers_keep_their_meaning() -> None:
    injection = compose(setting("Environment", r'"LD_PRELOAD=/%i/a\x5cb%%.so"'))
    assert injection.environment["LD_PRELOAD"] == LIBRARY + r":/north/a\b%.so"
    written = systemd.split_words(injection.settings[0].partition("=")[2])[0]
    assert systemd.expand(written, UNIT) == f"LD_PRELOAD={injection.environment['LD_PRELOAD']}"


def test_a_variable_of_a_file_goes_into_a_file(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("LD_PRELOAD='/a.so /odd$`\"\\.so'\nOTHER=1\n")
    injection = compose(setting("EnvironmentFile", str(file)), setting("Environment", "MALLOC_CONF=narenas:1"))
    conf = f"prof:true,narenas:1,{PREFIX}"
    written = conf.replace(BOOT, "%b")
    assert injection.settings == [f'Environment="MALLOC_CONF={written}"', f"EnvironmentFile={WHERE}/90-offheap.env"]
    assert injection.environment_file is not None
    in_file = systemd.parse_environment_file(injection.environment_file)
    assert in_file == {"LD_PRELOAD": LIBRARY + ':/a.so:/odd$`"\\.so'}
    assert injection.environment == {**in_file, "MALLOC_CONF": conf}


def test_a_file_whose_path_is_not_absolute_is_not_read_by_systemd_either(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("LD_PRELOAD=/a.so\n")
    for value in (f'"{file}"', "file", f"-'{file}'"):
        injection = compose(setting("EnvironmentFile", value))
        assert (injection.environment["LD_PRELOAD"], injection.environment_file) == (LIBRARY, None)


def test_what_a_file_sets_is_in_no_other_text(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("JAVA_TOOL_OPTIONS=-Dkey=geheim\nLD_PRELOAD=/geheim.so\nMALLOC_CONF=narenas:1\n")
    injection = compose(setting("EnvironmentFile", str(file)), aids={"JAVA_TOOL_OPTIONS": ["-XX:+A"]})
    assert "-Dkey=geheim -XX:+A" in (injection.environment_file or "")
    assert "geheim" not in injection.text({}) + str(injection.shown())
    assert injection.shown().keys() == injection.environment.keys()


@pytest.mark.parametrize("text", ["MALLOC_CONF=geheim\n", 'MALLOC_CONF="narenas:1\nPASSWORD=geheim\n', "geheim=\xfc\n"])
def test_an_error_does_not_say_what_is_in_a_file(tmp_path: Path, text: str) -> None:
    file = tmp_path / "file"
    file.write_bytes(text.replace("geheim=", "A=geheim").encode("latin-1"))
    with pytest.raises(UnitError, match="EnvironmentFile") as refused:
        compose(setting("EnvironmentFile", str(file)))
    assert "geheim" not in str(refused.value)


def test_a_variable_of_a_later_drop_in_goes_into_a_file_literally() -> None:
    injection = compose(late("Environment", "LD_PRELOAD=/%i/%%.so"))
    assert injection.environment_file == f'LD_PRELOAD="{LIBRARY}:/north/%.so"\n'
    assert injection.settings[-1] == f"EnvironmentFile={WHERE}/90-offheap.env"


def test_a_variable_that_is_unset_is_set_by_us() -> None:
    injection = compose(
        setting("Environment", "LD_PRELOAD=/a.so OTHER=1"),
        setting("UnsetEnvironment", "OTHER LD_PRELOAD 'X=a b' MALLOC_CONF=y"),
    )
    assert injection.environment["LD_PRELOAD"] == LIBRARY, "theirs was not in force"
    assert injection.settings[2:] == ["UnsetEnvironment=", 'UnsetEnvironment="OTHER"', 'UnsetEnvironment="X=a b"']


def test_other_unset_variables_are_left_to_their_setting() -> None:
    assert not [line for line in compose(setting("UnsetEnvironment", "OTHER")).settings if "Unset" in line]


def test_the_agent_stands_behind_jemalloc_and_before_all_others() -> None:
    agent = drop_in.AgentSettings(
        "/opt/offheap/agent/1/liboffheap.so", {"OFFHEAP_UNIT": UNIT, "OFFHEAP_START": "sampling"}
    )
    injection = compose(
        setting("Environment", f"LD_PRELOAD=/a.so:{agent.library} OFFHEAP_START=x"),
        options={"prof_active": True},
        agent=agent,
    )
    assert injection.environment == {
        "LD_PRELOAD": f"{LIBRARY}:{agent.library}:/a.so",
        "MALLOC_CONF": f"prof:true,prof_active:false,{PLAIN}",
        "OFFHEAP_UNIT": UNIT,
        "OFFHEAP_START": "sampling",
    }
    assert f'Environment="OFFHEAP_UNIT={UNIT}"' in injection.settings


@pytest.mark.parametrize(
    ("own", "leaves"),
    [("OTHER=1", True), ("LD_PRELOAD=/a.so", False), ("MALLOC_CONF=narenas:1", False)],
)
def test_ours_leave_the_environment_of_children_unless_a_variable_was_the_unit_s(own: str, leaves: bool) -> None:
    agent = drop_in.AgentSettings("/opt/offheap/agent/1/liboffheap.so", {"OFFHEAP_UNIT": UNIT})
    injection = compose(setting("Environment", own), agent=agent)
    assert (preload.UNSET in injection.environment) is leaves
    assert preload.UNSET not in compose(setting("Environment", own)).environment


def test_options_of_a_runtime_are_added_to_its_own(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("JAVA_TOOL_OPTIONS=-Dx=%n -XX:-PreserveFramePointer\n")
    aids = {"JAVA_TOOL_OPTIONS": ["-XX:+PreserveFramePointer", "-XX:NativeMemoryTracking=summary"]}
    plain = compose(aids=aids)
    assert plain.environment["JAVA_TOOL_OPTIONS"] == "-XX:+PreserveFramePointer -XX:NativeMemoryTracking=summary"
    injection = compose(setting("EnvironmentFile", str(file)), aids=aids)
    kept = "-Dx=%n -XX:-PreserveFramePointer -XX:NativeMemoryTracking=summary"
    assert injection.environment["JAVA_TOOL_OPTIONS"] == kept
    assert injection.environment_file == f'JAVA_TOOL_OPTIONS="{kept}"\n'
    with pytest.raises(UnitError, match="would undo"):
        compose(late("UnsetEnvironment", "JAVA_TOOL_OPTIONS"), aids=aids)
    compose(late("UnsetEnvironment", "JAVA_TOOL_OPTIONS"))


def test_sandbox_lines_come_last() -> None:
    assert compose(sandbox=("ReadWritePaths=-/x",)).settings[-1] == "ReadWritePaths=-/x"


@pytest.mark.parametrize(
    "undoing",
    [
        late("UnsetEnvironment", "LD_PRELOAD"),
        late("UnsetEnvironment", "X MALLOC_CONF"),
        late("UnsetEnvironment", "'LD_PRELOAD=x'"),
        late("Environment", ""),
    ],
)
def test_a_later_drop_in_that_undoes_ours_is_refused(undoing: Assignment) -> None:
    with pytest.raises(UnitError, match=r"95-late\.conf is read after 90-offheap\.conf.* Rename it"):
        compose(undoing)


def test_a_later_environment_file_that_wins_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("MALLOC_CONF=narenas:1\n")
    with pytest.raises(UnitError, match="would undo"):
        compose(late("EnvironmentFile", str(file)))
    with pytest.raises(UnitError, match="would undo"):
        compose(late("EnvironmentFile", ""), late("Environment", "LD_PRELOAD=/a.so"))


def test_a_later_drop_in_that_empties_our_sandbox_lines_is_refused() -> None:
    with pytest.raises(UnitError, match="ReadWritePaths= would undo"):
        compose(late("ReadWritePaths", ""), sandbox=("ReadWritePaths=-/x",))


def test_later_drop_ins_that_do_no_harm(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("OTHER=1\n")
    harmless = [
        late("Environment", "OTHER=1"),
        late("EnvironmentFile", ""),
        late("EnvironmentFile", str(file)),
        late("UnsetEnvironment", "OTHER"),
        late("UnsetEnvironment", ""),
        late("ReadWritePaths", ""),
        late("ExecStart", ""),
    ]
    assert compose(*harmless).settings == compose().settings


@pytest.mark.parametrize("name", ["10-a.conf", "89-z.conf", "90-a.conf", "90-offheap-a.conf"])
def test_earlier_drop_ins_may_reset(name: str) -> None:
    compose(setting("UnsetEnvironment", "LD_PRELOAD", f"{WHERE}/{name}"), setting("Environment", "", f"{WHERE}/{name}"))


@pytest.mark.parametrize("name", ["90-offheap.confx", "90-p.conf", "91-a.conf", "a.conf"])
def test_names_decide_which_is_later(name: str) -> None:
    with pytest.raises(UnitError):
        compose(setting("UnsetEnvironment", "LD_PRELOAD", f"/run/systemd/system/service.d/{name}"))
    compose(setting("UnsetEnvironment", "LD_PRELOAD", f"/usr/lib/systemd/system/{name}"))


# Our own file


def lie(directory: Path, injection: drop_in.Injection, record: dict[str, object]) -> Path:
    path = directory / drop_in.NAME
    path.write_text(injection.text(record))
    return path


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(theirs=st.text(st.characters(min_codepoint=33, max_codepoint=0x2FF, exclude_characters="\x7f:"), min_size=1))
def test_what_is_written_is_what_is_promised(tmp_path: Path, theirs: str) -> None:
    """Any name for a library, in each place that it may come from."""
    literal = systemd.quote(f"LD_PRELOAD={theirs}").replace("%", "%%")
    for own, manager in (
        ([setting("Environment", literal)], {}),
        ([], {"LD_PRELOAD": theirs}),
        ([late("Environment", literal)], {}),
    ):
        injection = compose(*own, manager=manager)
        (tmp_path / drop_in.ENVIRONMENT_NAME).write_text(injection.environment_file or "")
        written = systemd.read_assignments([str(lie(tmp_path, injection, {}))])
        direct = [
            line if line.key == "Environment" else line._replace(value=str(tmp_path / drop_in.ENVIRONMENT_NAME))
            for line in written
        ]
        result = drop_in.read_environment([*own, *direct], manager, UNIT).variables
        assert {name: result[name].value for name in injection.environment} == injection.environment
        kept = injection.environment["LD_PRELOAD"]
        others = [path for path in theirs.split() if not os.path.basename(path).startswith("libjemalloc")]
        assert " ".join(kept.split(":")[1:]).split() == others


def test_composing_again_gives_the_same(tmp_path: Path) -> None:
    """Our drop-in is among those that systemd has read, and is left out by its name."""
    own = [setting("Environment", "LD_PRELOAD=/a.so"), setting("UnsetEnvironment", "MALLOC_CONF")]
    first = compose(*own, options={"lg_prof_sample": 19})
    path = lie(tmp_path, first, {"made_directory": True})
    assert drop_in.is_ours(str(path))
    again = compose(*own, options={"lg_prof_sample": 19})
    assert again.text(drop_in.read_record(str(path)) and {"made_directory": True}) == path.read_text()


def test_the_record_comes_back(tmp_path: Path) -> None:
    injection = compose(setting("Environment", r'"LD_PRELOAD=/ü\n\\ \".so"'))
    path = lie(tmp_path, injection, {"made_directory": True})
    assert drop_in.read_record(str(path)) == {"made_directory": True, "library": LIBRARY}
    lines = path.read_text().splitlines()
    assert all(line.startswith("#") for line in lines[: lines.index("[Service]")])
    assert not any(line.endswith("\\") for line in lines), "no comment goes on in the next line"
    assert "systemctl daemon-reload" in path.read_text(), "it says how to undo it by hand"


@pytest.mark.parametrize(
    "text", ["", "[Service]\n", "# offheap: {broken\n", "# offheap: [1]\n", '# offheap: "x"\n', "\udcff"]
)
def test_a_record_that_is_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / drop_in.NAME
    path.write_text(text, errors="surrogateescape")
    assert drop_in.read_record(str(path)) == {}
    assert drop_in.read_record(str(tmp_path / "gone")) == {}


def test_a_record_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UnitError, match="cannot be read"):
        drop_in.read_record(str(tmp_path))


def test_the_record_is_json_on_one_line() -> None:
    lines = [line for line in compose().text({}).splitlines() if line.startswith("# offheap: ")]
    assert [json.loads(line[len("# offheap: ") :]) for line in lines] == [{"library": LIBRARY}]


def test_undoing_it_by_hand_as_documented_removes_each_file_of_it() -> None:
    """One that stays may hold secrets, and keeps the directory."""
    page = Path(__file__).resolve().parents[5] / "docs" / "what_is_touched.md"
    removed = re.findall(r"/etc/systemd/system/frontend\.service\.d/(\S+)", page.read_text(encoding="utf-8"))
    for name in (drop_in.NAME, drop_in.ENVIRONMENT_NAME, drop_in.CONTAINER_NAME):
        assert any(fnmatch(name, pattern) for pattern in removed), name
