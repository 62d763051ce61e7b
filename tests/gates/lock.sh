#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
# Lock requirements: one version of each, with the hashes of its files for every platform and Python.
# lock.sh [--upgrade]    keeps the versions that are locked already, unless told to take the newest
set -eu
cd "$(dirname "$0")/../.."
PATH=$PWD/.venv/bin:$PATH

lock() {
    uv pip compile --quiet --universal --fork-strategy fewest --python-version "$1" --generate-hashes --no-annotate \
        --custom-compile-command "make lock" ${upgrade:+"$upgrade"} --output-file "$2.lock" "$2.txt"
    head="# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors"
    printf '%s\n%s\n' "$head" "$(sed '/^# SPDX-/d' "$2.lock")" >"$2.lock.new"
    mv "$2.lock.new" "$2.lock"
}

upgrade=${1:-}
lock 3.11 meta/ee-requirements
lock 3.11 tests/requirements
lock 3.11 tests/requirements-importer
lock 3.12 tests/requirements-newest
