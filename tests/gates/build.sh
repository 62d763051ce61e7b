#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
# Build the collection's tarball from tracked and addable files; print its path.
# build.sh [--release] [DIR]    where to put it (build). A release needs a public repository in galaxy.yml, and has a
#                               signature of its MANIFEST.json beside it, by gpg's default key.
set -eu
release=
if [ "${1-}" = --release ]; then
    release=$1
    shift
fi
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
tree=$(tests/gates/tree.sh "$copy")
to=${1:-build}
mkdir -p "$to"
PYTHONPATH=$copy
export PYTHONPATH
gates=ansible_collections.offheap.profiler.tests.gates
.venv/bin/python -B -m $gates.sbom "$tree" >"$tree/meta/sbom.cdx.json"
.venv/bin/python -B -m $gates.provenance >"$copy/provenance.json"
mv "$copy/provenance.json" "$tree/meta"
.venv/bin/python -B -m $gates.published "$tree" ${release:+"$release"}
unset PYTHONPATH
.venv/bin/ansible-galaxy collection build --force --output-path "$to" "$tree" >"$copy/said"
tarball=$(sed -n 's/^Created collection for .* at //p' "$copy/said")
if [ "$release" ]; then
    tar --extract --to-stdout --file "$tarball" MANIFEST.json >"$copy/MANIFEST.json"
    gpg --batch --yes --armor --detach-sign --output "${tarball%.tar.gz}.asc" "$copy/MANIFEST.json"
fi
echo "$tarball"
