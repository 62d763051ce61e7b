# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A program, started by inventory.py, that reads an inventory as Ansible does, vault included.

Ansible changes how its whole process finds collections, so it gets a process of its own. Standard input has a JSON
list: the limit and the sources. Standard output gets a JSON list of hosts with their variables, templates resolved. On
failure the reason goes to standard error and the exit status is 1.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import sys
from typing import Any

gc.set_threshold(100_000)  # loading Ansible leaves no garbage, and hosts wait while it is looked for

try:
    from ansible import constants
except ImportError:
    sys.exit(f"Ansible is missing: {sys.executable} -m pip install ansible-core; or name hosts with -H")
from ansible.errors import AnsibleError
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.loader import init_plugin_loader
from ansible.template import Templar
from ansible.vars.manager import VariableManager

# The variables of the connection plugins ssh and local and of the become plugin sudo (from their documentation).
NAMES = """
    ansible_host ansible_ssh_host ansible_port ansible_ssh_port ansible_user ansible_ssh_user ansible_password
    ansible_ssh_pass ansible_ssh_password ansible_ssh_private_key_file ansible_private_key_file ansible_ssh_common_args
    ansible_ssh_extra_args ansible_connection ansible_python_interpreter ansible_become ansible_become_method
    ansible_become_user ansible_become_password ansible_become_pass
""".split()

# What ansible.cfg says of all hosts, under the name that gives way to all others of its kind.
_CONFIGURED = {
    "ansible_ssh_user": "DEFAULT_REMOTE_USER",
    "ansible_ssh_port": "DEFAULT_REMOTE_PORT",
    "ansible_private_key_file": "DEFAULT_PRIVATE_KEY_FILE",
}

# What Ansible imports of itself to read most inventories.
_USED = """
    ansible.playbook.play_context ansible.plugins.cache.memory ansible.plugins.connection
    ansible.plugins.doc_fragments.vars_plugin_staging ansible.plugins.inventory.auto ansible.plugins.inventory.host_list
    ansible.plugins.inventory.ini ansible.plugins.inventory.script ansible.plugins.inventory.toml
    ansible.plugins.inventory.yaml ansible.plugins.shell ansible.plugins.vars.host_group_vars
""".split()


def prepared() -> DataLoader:
    """A loader with the vault secrets, if there are any. Raises AnsibleError."""
    # From init_plugin_loader on, each import of Ansible's own needs the table of all modules that were ever renamed,
    # which takes as long to read as an inventory.
    for name in _USED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    init_plugin_loader()
    loader = DataLoader()
    identities = constants.config.get_config_value("DEFAULT_VAULT_IDENTITY_LIST")
    if identities or constants.config.get_config_value("DEFAULT_VAULT_PASSWORD_FILE"):
        # Importing it takes a tenth as long as everything else.
        from ansible.cli import CLI

        CLI.setup_vault_secrets(loader, vault_ids=identities, auto_prompt=False)
    return loader


def read(loader: DataLoader, limit: str, sources: list[str]) -> list[dict[str, Any]]:
    """The hosts, each with its ``name``. Raises AnsibleError."""
    inventory = InventoryManager(loader, sources=sources or constants.config.get_config_value("DEFAULT_HOST_LIST"))
    manager = VariableManager(loader, inventory)
    inventory.subset(limit or None)
    return [_host(host.name, manager.get_vars(host=host), loader) for host in inventory.get_hosts()]


def _host(name: str, variables: dict[str, Any], loader: DataLoader) -> dict[str, Any]:
    templar = Templar(loader, variables=variables)
    found = {known: str(templar.template(variables[known])) for known in NAMES if variables.get(known) is not None}
    configured = {known: constants.config.get_config_value(option) for known, option in _CONFIGURED.items()}
    return {"name": name, **{known: str(value) for known, value in configured.items() if value}, **found}


if __name__ == "__main__":
    try:
        ready = prepared()
        if asked := sys.stdin.read():  # else nobody needs the inventory after all
            limit, *sources = json.loads(asked)
            print(json.dumps(read(ready, limit, sources)), flush=True)
            gc.freeze()  # the end needs no search either
    except AnsibleError as error:
        sys.exit(str(error))
