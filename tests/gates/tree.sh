#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
# tree.sh DIR    copy tracked and addable files (not ignored ones) to DIR/ansible_collections/offheap/profiler
#
# ansible-test needs that path, outside any git tree; in an ignored directory of ours it skips everything and says ok.
set -euo pipefail
to=$1/ansible_collections/offheap/profiler
mkdir -p "$to"
git ls-files -co --exclude-standard -z |
    while IFS= read -r -d '' file; do if [ -e "$file" ] || [ -L "$file" ]; then printf '%s\0' "$file"; fi; done |
    tar --null -T - -c | tar -x -C "$to"
printf '%s\n' "$to"
