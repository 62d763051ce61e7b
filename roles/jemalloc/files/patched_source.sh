#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
#
# patched_source.sh PYTHON RELEASE DIRECTORY RESULT [PATCH ...]
#
# Unpack a release tarball that holds DIRECTORY, apply the patches exactly, and pack it again as RESULT.
set -eu
python=$1 release=$2 directory=$3 result=$4
shift 4

work=$(mktemp -d "$result.XXXXXX")
trap 'rm -rf "$work"' EXIT
# Python unpacks every format that releases come in; tar may lack bzip2.
"$python" -m tarfile -e "$release" "$work"
for patch in "$@"; do
    patch --directory="$work/$directory" --strip=1 --fuzz=0 --no-backup-if-mismatch --batch --input="$patch"
done
tar --create --file="$work/result.tar" --directory="$work" "$directory"
mv "$work/result.tar" "$result"
