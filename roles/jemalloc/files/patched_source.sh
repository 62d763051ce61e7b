#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
#
# patched_source.sh PYTHON RELEASE SHA256 DIRECTORY RESULT [PATCH ...]
#
# Unpack a release tarball that has this SHA-256 and holds DIRECTORY, apply the patches exactly, and pack it again as RESULT.
set -eu
python=$1 release=$2 sha256=$3 directory=$4 result=$5
shift 5

work=$(mktemp -d "$result.XXXXXX")
trap 'rm -rf "$work"' EXIT
# What is compared is what is unpacked: others may be able to write to the release, but not to our copy.
cp "$release" "$work/release"
found=$("$python" -c 'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())' <"$work/release")
if [ "$found" != "$sha256" ]; then
    echo "The SHA-256 of $release is $found, but $directory has $sha256. Supply the right file, or set jemalloc_version or" \
        "jemalloc_checksum to match it." >&2
    exit 1
fi
# Python unpacks every format that releases come in; tar may lack bzip2.
"$python" -m tarfile -e "$work/release" "$work"
for patch in "$@"; do
    patch --directory="$work/$directory" --strip=1 --fuzz=0 --no-backup-if-mismatch --batch --input="$patch"
done
tar --create --file="$work/result.tar" --directory="$work" "$directory"
mv "$work/result.tar" "$result"
