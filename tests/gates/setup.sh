#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
# Install Debian packages and the virtual environment .venv, unless both are there.
set -eu
cd "$(dirname "$0")/../.."

say() { printf '== setup: %s\n' "$*"; }
fail() { printf '== setup: %s\n' "$*" >&2; exit 1; }

# tests/debian-packages.txt: one package per line, with the command or file that proves it is installed.
missing=""
while read -r package proof; do
    case $package in '' | '#'*) continue ;; esac
    case $proof in
        /*) [ -e "$proof" ] || missing="$missing $package" ;;
        *) command -v "$proof" >/dev/null || missing="$missing $package" ;;
    esac
done <tests/debian-packages.txt
tests/gates/find_python.sh >/dev/null || missing="$missing python3 python3-venv"

if [ -n "$missing" ]; then
    command -v apt-get >/dev/null ||
        fail "this needs Debian (or a relative with apt-get); missing here:$missing"
    [ "$(id -u)" -eq 0 ] ||
        fail "root is needed once to install Debian packages: apt-get install$missing"
    say "apt-get install$missing"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    # A bench runs an sshd of its own. One that answers to the network is nobody's wish, now or after the next boot.
    sshd_is_new=$(command -v /usr/sbin/sshd || echo yes)
    if [ ! -e /usr/sbin/policy-rc.d ]; then
        trap 'rm -f /usr/sbin/policy-rc.d' EXIT
        printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
        chmod 755 /usr/sbin/policy-rc.d
    fi
    # shellcheck disable=SC2086 # a list of words
    apt-get install -y -qq --no-install-recommends $missing >/dev/null
    if [ "$sshd_is_new" = yes ] && [ -d /run/systemd/system ]; then
        systemctl --quiet disable ssh.service
    fi
fi

python=$(tests/gates/find_python.sh) ||
    fail "ansible-core 2.19 needs Python 3.11, 3.12 or 3.13 with its venv module; this machine has none"
tests/gates/venv.sh .venv "$python" tests/requirements.lock
# The name under which everything here imports the collection.
.venv/bin/python tests/conftest.py

# What the page's build and its tests use: esbuild, uPlot, axe-core.
libraries=tools/report/node_modules/.package-lock.json
if [ -z "$(find "$libraries" -newer tools/report/package-lock.json 2>/dev/null)" ]; then
    say "npm ci in tools/report"
    npm ci --prefix tools/report --ignore-scripts --no-audit --no-fund --loglevel=error >/dev/null
fi
