#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
# The lab's workloads in C compile without a warning.
set -eu
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
sources=$(git ls-files -co --exclude-standard -- '*.c')
if [ -z "$sources" ]; then
    echo "no C source"
    exit 77
fi
for source in $sources; do
    echo "$source"
    gcc -std=gnu11 -O2 -Wall -Wextra -Werror -c -o "$out/object" "$source"
done
