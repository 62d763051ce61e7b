#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
# Print the path of a Python that can make a virtual environment.
# find_python.sh [X.Y ...]    the first of these versions that this machine has; exit 1 if it has none
set -eu

# PATH may hold shims (pyenv) that exist but do not run, so each candidate is tried.
works() {
    "$1" -c 'import sys, venv, ensurepip; sys.exit("%d.%d" % sys.version_info[:2] != sys.argv[1])' "$2" 2>/dev/null
}

[ $# -gt 0 ] || set -- 3.11 3.12 3.13
for version in "$@"; do
    for candidate in "python$version" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/"python$version" \
        "$HOME/.local/share/uv/python/cpython-$version".*/bin/"python$version"; do
        if works "$candidate" "$version"; then
            "$candidate" -c 'import os, sys; print(os.path.realpath(sys.executable))'
            exit 0
        fi
    done
done
exit 1
