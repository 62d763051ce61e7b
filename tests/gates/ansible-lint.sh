#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
set -eu
# Only what git has or would take: a tree of its own keeps ansible-lint out of caches and its .ansible/ out of ours.
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
tree=$(tests/gates/tree.sh "$copy")
cd "$tree"
git init -q . && git add -A
ANSIBLE_COLLECTIONS_PATH=$copy nice ansible-lint --offline --profile production --nocolor
