#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
# venv.sh DIR PYTHON REQUIREMENTS    make DIR a virtual environment with REQUIREMENTS, unless it is one already
set -eu
dir=$1 python=$2 requirements=$3

# Requirements may include the controller's own, so the key covers all files.
key=$(cat "$requirements" meta/ee-requirements.txt console/requirements.txt | sha256sum | cut -c1-16)
mkdir -p "$(dirname "$dir")" .cache
exec 9>".cache/$(basename "$dir").lock"
flock 9
[ ! -e "$dir/.installed-$key" ] || exit 0

echo "== setup: $dir with $("$python" --version) from $requirements"
[ -x "$dir/bin/python" ] || "$python" -m venv "$dir"
"$dir/bin/python" -m pip install -qq --disable-pip-version-check -r "$requirements"
rm -f "$dir"/.installed-*
touch "$dir/.installed-$key"
