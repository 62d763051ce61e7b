# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The command line of the lab."""

from __future__ import annotations

import argparse
import os
import sys

from . import access, aptsource, fleet, images, leaks, listing, network, packages, requirements, workloads
from .cgroups import init_process
from .console import complain
from .settings import LabError, Settings

_EPILOG = (
    "Environment: OFFHEAP_LAB_DIR (images, keys, sources; default /var/cache/offheap-lab), OFFHEAP_LAB_NAME (a second"
    " lab needs another name; default offheap), OFFHEAP_LAB_NET (first three octets of its /24), OFFHEAP_LAB_FILTER=0"
    " (boot and revive hosts without nspawn's own system call filter), OFFHEAP_LAB_UBUNTU (a mirror of Ubuntu)."
)

_HOST_COMMANDS = {
    "listing": "list a host's files with mode and checksum, except what varies",
    "kill": "end a host at once, as in a power failure; its disk is lost",
    "revive": "boot a killed host afresh",
    "unplug": "disconnect a host from the network",
    "plug": "reconnect it",
}


def main(argv: list[str]) -> int:
    """Run one command. Returns 0, 1 if something failed, or 2 if the machine lacks something."""
    options = _parser().parse_args(argv)
    os.umask(0o022)  # files written here end up on the hosts
    try:
        requirements.extend_path()
        return _run(options, Settings.from_environment())
    except LabError as error:
        complain(str(error))
        return error.status
    except KeyboardInterrupt:
        complain("interrupted")
        return 130


def _run(options: argparse.Namespace, settings: Settings) -> int:
    if options.command == "inventory":
        print(settings.inventory)
        return 0
    requirements.require_machine()
    if options.command == "images":
        _build(settings, list(images.SUITES))
    elif options.command == "up":
        if {images.KERNEL, images.SELINUX} & set(options.suites):
            requirements.install_packages(requirements.MACHINE_PACKAGES)
        if images.ARM in options.suites:
            requirements.install_packages(requirements.ARM_PACKAGES)
        _build(settings, options.suites)
        fleet.up(settings, options.hosts or len(options.suites), options.suites)
    elif options.command == "down":
        fleet.down(settings)
    elif options.command == "ls":
        for host in fleet.known(settings):
            up = "up" if host.has_kernel else f"up, pid {init_process(settings, host.name)}"
            state = up if fleet.is_alive(settings, host) else "dead"
            print(f"{host.name}\t{host.suite}\t{settings.address(host.index)}\t{state}")
    elif options.command == "ssh":
        argv = access.ssh_command(settings, _host(settings, options.host).name, options.words)
        os.execvp(argv[0], argv)
    elif options.command == "listing":
        return listing.show(settings, _host(settings, options.host).name)
    elif options.command in ("kill", "revive"):
        {"kill": fleet.kill, "revive": fleet.revive}[options.command](settings, _host(settings, options.host))
    elif options.command == "install":
        packages.install(settings, _host(settings, options.host), options.packages)
    elif options.command in ("plug", "unplug"):
        network.plug(settings, _host(settings, options.host).index, options.command == "plug")
    else:
        found = leaks.find(settings)
        print("\n".join(found) if found else "nothing left")
        return 1 if found else 0
    return 0


def _build(settings: Settings, suites: list[str]) -> None:
    requirements.install_packages()
    images.build_missing(settings, [*suites, images.BUILDER])
    workloads.build_missing(settings)
    aptsource.fetch_jemalloc(settings)


def _host(settings: Settings, name: str) -> access.Host:
    hosts = {host.name: host for host in fleet.known(settings)}
    if name not in hosts:
        raise LabError(f"there is no host {name}: {', '.join(hosts) or 'nothing is up'}")
    return hosts[name]


def _suites(text: str) -> list[str]:
    suites = text.split(",")
    for suite in suites:
        if suite not in images.EVERY:
            raise argparse.ArgumentTypeError(f"{suite!r} is not among {', '.join(images.EVERY)}")
    return suites


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lab", description="Disposable systemd hosts with sshd on this machine.", epilog=_EPILOG
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("images", help="build missing images and workloads, fetch missing sources")
    up = commands.add_parser("up", help="boot hosts; returns when all accept SSH commands")
    up.add_argument("--hosts", type=int, help="how many (default: one of each suite)")
    up.add_argument("--suites", type=_suites, default=list(images.SUITES), help="in turn (default %(default)s)")
    up.add_argument(
        "--kernel",
        action="store_const",
        dest="suites",
        const=[images.KERNEL],
        help="hosts that boot a kernel of their own, in QEMU; each needs a minute and 3 GiB",
    )
    up.add_argument(
        "--selinux",
        action="store_const",
        dest="suites",
        const=[images.SELINUX],
        help="the same, with SELinux",
    )
    up.add_argument(
        "--arm", action="store_const", dest="suites", const=[images.ARM], help="the same, on a processor of 64-bit ARM"
    )
    commands.add_parser("down", help="take everything down, also after a crash")
    commands.add_parser("ls", help="list the hosts")
    ssh = commands.add_parser("ssh", help="run a command on a host, or a shell")
    ssh.add_argument("host")
    ssh.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND")
    install = commands.add_parser("install", help="install Debian's packages on a host, and start their services")
    install.add_argument("host")
    install.add_argument("packages", nargs="+", metavar="PACKAGE")
    commands.add_parser("inventory", help="print the path of the Ansible inventory")
    for name, text in _HOST_COMMANDS.items():
        commands.add_parser(name, help=text).add_argument("host")
    commands.add_parser("leaks", help="print what the lab has left on this machine; status 1 if anything")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
