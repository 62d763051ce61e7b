#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
# pip_for_ansible_test.sh PYTHON CACHE    put the pip that ansible-test bootstraps with into its CACHE
#
# It would fetch get-pip from a site that a closed network cannot reach, but it takes a file in its cache as it is. Ours
# installs from a wheel of exactly the version that it wants.
set -eu
python=$1 cache=$2
mkdir -p "$cache"
"$python" - <<'P' | sort -u | while read -r version; do
import inspect
import re

from ansible_test._internal import python_requirements

print("\n".join(re.findall(r"\bpip='([\d.]+)'", inspect.getsource(python_requirements))))
P
    stub=$cache/get_pip_$(echo "$version" | tr . _).py
    [ ! -e "$stub" ] || continue
    "$python" -m pip download --quiet --disable-pip-version-check --no-deps -d "$cache" "pip==$version"
    cat >"$stub" <<P
import sys

sys.path.insert(0, "$cache/pip-$version-py3-none-any.whl")
from pip._internal.cli.main import main

sys.exit(main(["install"] + [word for word in sys.argv[1:] if word not in ("--no-setuptools", "--no-wheel")]))
P
done
