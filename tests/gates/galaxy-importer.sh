#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
# What Galaxy does to an uploaded collection, with the tarball that users get.
set -eu
venv=$PWD/.cache/venvs/importer
tests/gates/venv.sh "$venv" "$(tests/gates/find_python.sh)" tests/requirements-importer.lock
tarball=$(tests/gates/build.sh)
echo "$tarball"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$tarball" "$work"
cd "$work"
status=0
PATH=$venv/bin:$PATH nice "$venv/bin/python" -m galaxy_importer.main "$(basename "$tarball")" >output 2>&1 || status=$?
cat output
[ "$status" -eq 0 ]
! grep -E '^(ERROR|CRITICAL)' output
