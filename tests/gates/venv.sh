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
[ -x "$dir/bin/python" ] || "$python" -m venv "$dir"
"$dir/bin/python" -m pip install -qq --disable-pip-version-check --require-hashes -r "$lock"
rm -f "$dir"/.installed-*
touch "$dir/.installed-$key"
