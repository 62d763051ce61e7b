#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
set -eu
# Only tracked and addable files: in a tree of its own ansible-lint stays out of caches and keeps its .ansible/ there.
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
tree=$(tests/gates/tree.sh "$copy")
cd "$tree"
git init -q . && git add -A
ANSIBLE_COLLECTIONS_PATH=$copy nice ansible-lint --offline --profile production --nocolor
