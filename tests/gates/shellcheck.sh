#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
# Every file whose first line names a shell, whatever the file is called.
set -eu
git ls-files -co --exclude-standard -z | xargs -0 awk 'FNR == 1 && /^#!.*(bash|[^a-z]sh)( |$)/ { print FILENAME } { nextfile }' |
    sort >build/gates/shell-files.txt
echo "$(wc -l <build/gates/shell-files.txt) files"
xargs shellcheck --external-sources <build/gates/shell-files.txt
