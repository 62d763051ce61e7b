#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
# Every C source compiles without a warning, but those that need another program's headers. So does every header on its own.
set -eu
sources=$(git ls-files -co --exclude-standard -- '*.[ch]')
if [ -z "$sources" ]; then
    echo "no C source"
    exit 77
fi
for source in $sources; do
    [ -e "$source" ] || continue # deleted, but not yet in git
    case $source in
    tests/holders/programs/heldmodule.c | tests/holders/programs/heldnative.c) continue ;; # CPython's, a JDK's
    esac
    echo "$source"
    case $source in
    *.h) unused=-Wno-unused-function ;; # its includers use them
    *) unused= ;;
    esac
    # A test's program may drive a part of the agent.
    gcc -std=gnu11 -O2 -Wall -Wextra -Werror $unused -iquote roles/jemalloc/files/agent -x c -c -o /dev/null "$source"
done
