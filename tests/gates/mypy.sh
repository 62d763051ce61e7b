#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
# Strict types in the collection and its tests.
set -eu
config=$PWD/.mypy.ini cache=$PWD/.mypy_cache
name=ansible_collections.offheap.profiler name_as_path=ansible_collections/offheap/profiler
.venv/bin/python tests/conftest.py # creates the import path
cd .cache/collections

set --
for directory in plugins console $(cd "$name_as_path" && ls -d tests/*/); do
    if [ -n "$(find -L "$name_as_path/$directory" -name '*.py' -print -quit)" ]; then
        set -- "$@" -p "$name.$(echo "${directory%/}" | tr / .)"
    fi
done
MYPYPATH=$PWD mypy --config-file "$config" --cache-dir "$cache" "$@"
