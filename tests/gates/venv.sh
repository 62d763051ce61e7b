#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
# venv.sh DIR PYTHON LOCK    make DIR a virtual environment with what LOCK names by version and hash, unless it is one
set -eu
dir=$1 python=$2 lock=$3

key=$(sha256sum <"$lock" | cut -c1-16)
mkdir -p "$(dirname "$dir")" .cache
exec 9>".cache/$(basename "$dir").lock"
flock 9
[ ! -e "$dir/.installed-$key" ] || exit 0

echo "== setup: $dir with $("$python" --version) from $lock"
"$python" -m venv --clear "$dir"
pip_install() { "$dir/bin/python" -m pip install -qq --disable-pip-version-check --require-hashes -r "$1"; }

# uv installs the same in seconds, where pip takes minutes. Where uv can't be had or finds no packages, since only pip
# was told of a mirror, pip does it.
awk '/^uv==/ { found = 1 } found { print; if (!/\\$/) exit }' tests/requirements.lock >"$dir/uv.lock"
if ! { pip_install "$dir/uv.lock" && "$dir/bin/uv" pip install --quiet --python "$dir/bin/python" \
    --compile-bytecode --require-hashes -r "$lock"; }; then
    echo "== setup: pip installs, which takes some minutes"
    pip_install "$lock"
fi
touch "$dir/.installed-$key"
