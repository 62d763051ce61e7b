#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
# Build the collection's tarball from tracked and addable files; print its path.
# build.sh [DIR]    where to put it (build).
set -eu
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
unset PYTHONPATH
.venv/bin/ansible-galaxy collection build --force --output-path "$to" "$tree" >"$copy/said"
sed -n 's/^Created collection for .* at //p' "$copy/said"
