# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Hosts from words and inventories, and OpenSSH's settings for them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.console import inventory, target
from ansible_collections.offheap.profiler.console.target import TargetError


def test_words() -> None:
    assert target.from_word("app1").arguments == ()
    assert target.from_word("ops@app1:2222", ["key"]).arguments == ("-i", "key", "-l", "ops", "-p", "2222")
    assert target.from_word("ops@app1:2222").address == "app1"
    assert target.from_word("localhost").local
    with pytest.raises(TargetError, match="not a host"):
        target.from_word("ops@")


def test_settings_are_openssh_own(tmp_path: Path) -> None:
    (tmp_path / "more").write_text("Host app1\n  HostName 192.0.2.7\n  ProxyJump ops@jump:2200\n")
    (tmp_path / "config").write_text(
        f"Include {tmp_path}/more\nMatch host 192.0.2.*\n  User deploy\n"
        'Host *\n  UserKnownHostsFile /a/one "/a b/two"\n  IdentityFile /keys/first\n  IdentityFile /keys/second\n'
    )
    found = target.settings("app1", ["-F", str(tmp_path / "config"), "-p", "2222"])
    assert (found.hostname, found.user, found.port) == ("192.0.2.7", "deploy", 2222)
    assert found.one("proxyjump") == "ops@jump:2200" and found.one("proxycommand") is None
    assert found.lines("identityfile") == ["/keys/first", "/keys/second"]


def test_quotes_in_names_are_no_error() -> None:
    found = target.Settings({"identityfile": ["~/it's mine", "none"], "userknownhostsfile": ["/it's /b"]})
    assert found.lines("identityfile") == ["~/it's mine"] and found.words("userknownhostsfile") == ["/it's", "/b"]


def test_settings_that_make_no_sense(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("Nonsense yes\n")
    with pytest.raises(TargetError, match=r"refuses its settings.*onsense"):
        target.settings("app1", ["-F", str(tmp_path / "config")])


def test_an_address_is_no_option() -> None:
    with pytest.raises(TargetError):
        target.settings("-oProxyCommand=touch /tmp/x", [])


def written(directory: Path, variables: dict[str, object]) -> list[str]:
    path = directory / "hosts.yml"
    path.write_text(json.dumps({"web": {"hosts": {"app1": variables, "app2": {}}}, "db": {"hosts": {"db1": {}}}}))
    return [str(path)]


def test_an_inventory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "password").write_text("fledermaus\n")
    monkeypatch.setenv("ANSIBLE_VAULT_PASSWORD_FILE", str(tmp_path / "password"))
    vault = Path(sys.executable).with_name("ansible-vault")
    done = subprocess.run(
        [str(vault), "encrypt_string", "offen"], stdin=subprocess.DEVNULL, text=True, capture_output=True, check=True
    )
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars" / "web.yml").write_text(f"secret: {done.stdout}")
    variables: dict[str, object] = {
        "ansible_host": "{{ inventory_hostname }}.example",
        "ansible_port": 2222,
        "ansible_user": "ops",
        "ansible_ssh_private_key_file": "/keys/a b",
        "ansible_ssh_common_args": "-o ProxyJump='jump host'",
        "ansible_become_password": "{{ secret }}",
        "ansible_python_interpreter": "auto_silent",
    }
    found = {one.name: one for one in inventory.targets(written(tmp_path, variables), "web")}
    assert set(found) == {"app1", "app2"}
    assert found["app1"].address == "app1.example" and found["app1"].python == "python3"
    assert found["app1"].arguments == (
        "-i", "/keys/a b", "-p", "2222", "-l", "ops", "-o", "ProxyJump=jump host"
    )  # fmt: skip
    assert found["app1"].become_password == "offen" and "offen" not in repr(found["app1"])
    assert found["app2"].address == "app2" and found["app2"].become and not found["app2"].local


def test_an_ansible_cfg_says_what_an_inventory_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the playbooks log in with the same inventory, and the console does not."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ansible.cfg").write_text(
        "[defaults]\nremote_user = deploy\nremote_port = 2200\nprivate_key_file = /keys/c\n"
    )
    variables: dict[str, object] = {"ansible_ssh_user": "ops", "ansible_port": 22}
    found = {one.name: one.arguments for one in inventory.targets(written(tmp_path, variables), "web")}
    assert found == {
        "app1": ("-i", "/keys/c", "-p", "22", "-l", "ops"),
        "app2": ("-i", "/keys/c", "-p", "2200", "-l", "deploy"),
    }


@pytest.mark.parametrize(
    ("variables", "limit", "message"),
    [
        ({}, "nosuch", "matches 'nosuch'"),
        ({"ansible_become_method": "su"}, "", "app1: .*only by sudo"),
        ({"ansible_ssh_extra_args": "-o ProxyCommand='x"}, "", "app1: ansible_ssh_extra_args .*No closing quotation"),
        ({"ansible_host": "{{ nosuch }}"}, "", "cannot read the inventory: .*nosuch"),
    ],
)
def test_an_inventory_that_will_not_do(variables: dict[str, object], limit: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=message):
        inventory.targets(written(tmp_path, variables), limit)


def test_a_vault_is_read_with_its_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "secret"
    secret.write_text("geheim")
    monkeypatch.setenv("ANSIBLE_VAULT_PASSWORD_FILE", str(secret))
    vault = [
        str(Path(sys.executable).with_name("ansible-vault")),
        "encrypt_string",
        "--name",
        "ansible_become_password",
    ]
    done = subprocess.run([*vault, "wort"], text=True, capture_output=True, check=True)
    hosts = tmp_path / "hosts.yml"
    indented = "\n".join(f"    {line}" for line in done.stdout.splitlines())
    hosts.write_text(f"all:\n  hosts: {{app1: }}\n  vars:\n{indented}\n")
    assert inventory.targets([str(hosts)], "")[0].become_password == "wort"


def test_a_reader_that_was_begun_is_the_one_that_is_asked(tmp_path: Path) -> None:
    path = tmp_path / "hosts.ini"
    path.write_text("app1\n")
    inventory.begin()
    (begun,) = inventory._begun
    inventory.begin()
    assert inventory._begun == [begun], "one is enough"
    assert [found.name for found in inventory.targets([str(path)], "")] == ["app1"]
    assert (begun.returncode, inventory._begun) == (0, [])
    inventory.begin()
    assert inventory._begun.pop().communicate("") == ("", ""), "one that nobody asks ends without a word"
