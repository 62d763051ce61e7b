#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
# sanity.sh newest|RELEASE    ansible-test sanity with the newest ansible-core, on Python 3.13, or another release's last
set -euo pipefail

if [ "$1" = newest ]; then
    if ! python=$(tests/gates/find_python.sh 3.13); then
        echo "the newest ansible-core needs Python 3.13, which is not on this machine"
        exit 77
    fi
    venv=$PWD/.cache/venvs/newest
    tests/gates/venv.sh "$venv" "$python" tests/requirements-newest.lock
elif [ "$1" = 2.19 ]; then
    venv=$PWD/.venv
else
    venv=$PWD/.cache/venvs/core-$1
    if [ ! -x "$venv/bin/ansible-test" ]; then
        python=$(tests/gates/find_python.sh "$([ "$1" = 2.22 ] && echo 3.13 || echo 3.12)")
        .venv/bin/uv venv --quiet --clear --seed --python "$python" "$venv"
        .venv/bin/uv pip install --quiet --python "$venv/bin/python" "ansible-core==$1.*"
    fi
fi

# ansible-test keeps its environments and its pip below HOME; ours must not mix with the user's.
home=$PWD/.cache/ansible-test/$1
tests/gates/pip_for_ansible_test.sh "$venv/bin/python" "$home/.ansible/test/cache"

# Modules must import on every Python that ansible-test supports: let it find those on this machine.
paths=$venv/bin
for version in 3.8 3.9 3.10 3.11 3.12 3.13 3.14; do
    if found=$(tests/gates/find_python.sh "$version"); then
        paths=$paths:$(dirname "$found")
        echo "Python $version: $found"
    fi
done

# pyenv's shims exist for versions that they cannot run.
others=$(printf '%s' "$PATH" | tr : '\n' | grep -v '/shims$' | paste -sd :)

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
tree=$(tests/gates/tree.sh "$copy")
# The newest pylint looks at what is shipped, more closely than the older one. Ruff and mypy look at the tests.
options=()
if [ "$1" = newest ]; then
    options=(--exclude tests/)
elif tests/gates/find_python.sh 3.13 >/dev/null; then
    options=(--skip-test pylint)
fi
cache=${PIP_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/pip}
status=0
cd "$tree"
HOME=$home PIP_CACHE_DIR=$cache PATH=$paths:$others PIP_QUIET=2 \
    ansible-test sanity --venv --color no "${options[@]}" 2>&1 | tee "$copy/output" || status=$?

# It reports success if it found nothing to check.
if grep -qE 'No tests applicable|All targets skipped' "$copy/output"; then status=1; fi
if [ "$status" -ne 0 ]; then
    printf '\n== what ansible-test found\n'
    grep -E '^(ERROR|FATAL):|No tests applicable|All targets skipped' "$copy/output" | grep -v '^FATAL: Command'
fi
exit "$status"
