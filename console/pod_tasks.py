# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""fab's commands for pods of Kubernetes: they read and print manifests, and ask no cluster."""

from __future__ import annotations

import json
import sys

from invoke.context import Context

from ..plugins.plugin_utils.base.options import user_path
from ..plugins.plugin_utils.driver import manifest_file, pod_libraries, pod_template
from ..plugins.plugin_utils.driver.pod_template import OPTIONS, SETTINGS, PodError
from . import screen
from .dump_tasks import command, failing
from .fab_program import at_least

_CACHE = "offheap/cache"
_ARCH_HELP = f"of the nodes: {' or '.join(pod_libraries.ARCHITECTURES)} (amd64)"


@command(
    help={
        "manifest": "a file with the workload, as kubectl takes it; - for standard input",
        "container": "NAME=PROGRAM: the program's path in it (kubectl exec POD -- readlink /proc/1/exe); several times",
        "undo": "take the profiler out again",
        "arch": _ARCH_HELP,
        "lg_prof_sample": f"a sample in so many bytes, as a power of two ({OPTIONS['lg_prof_sample']})",
        "dump_seconds": f"seconds between two dumps ({SETTINGS['dump_seconds']})",
        "workers": "profile the processes that the program forks, too",
    },
    iterable=["container"],
)
def pod(
    _context: Context,
    manifest: str,
    container: list[str] | None = None,
    undo: bool = False,
    arch: str = "amd64",
    lg_prof_sample: int = int(OPTIONS["lg_prof_sample"]),
    dump_seconds: int = int(SETTINGS["dump_seconds"]),
    workers: bool = False,
) -> None:
    """
    Print a workload of Kubernetes with the profiler in its containers, or without it again.

        kubectl get deployment shop -o json | fab pod - --container shop=/usr/bin/java | kubectl replace -f -
        kubectl get deployment shop -o json | fab pod - --undo | kubectl replace -f -
    """
    show = screen.Screen()
    with failing():
        at_least(0, lg_prof_sample=lg_prof_sample, dump_seconds=dump_seconds)
        if bool(container) == undo:
            raise PodError("give --container NAME=PROGRAM, or --undo")
        manifests = manifest_file.read(_text(manifest))
        if undo:
            changed = [pod_template.without_profiler(one) for one in manifest_file.profiled_already(manifests)]
        else:
            programs = dict(word.partition("=")[::2] for word in container or [])
            options = {**OPTIONS, "lg_prof_sample": lg_prof_sample}
            settings = {**SETTINGS, "dump_seconds": dump_seconds, "children": workers}
            one = manifest_file.to_profile(manifests, programs)
            changed = [pod_template.profiled(one, programs, pod_libraries.name_of(arch), arch, options, settings)]
    for warning in [warning for each in changed for warning in each.warnings]:
        show.say(warning, "yellow")
    for each in changed:
        print(json.dumps(each.manifest, indent=2))


@command(
    help={
        "namespace": "the workload's",
        "arch": _ARCH_HELP,
        "cache": f"jemalloc_cache of the run that built the libraries ({_CACHE})",
    },
)
def pod_config(_context: Context, namespace: str = "", arch: str = "amd64", cache: str = _CACHE) -> None:
    """
    Print the ConfigMap with the libraries that such a workload mounts: once for each namespace.

        fab pod-config --namespace shop | kubectl create -f -
    """
    with failing():
        print(json.dumps(pod_libraries.config_map(user_path(cache), arch, namespace), indent=2))


def _text(path: str) -> str:
    try:
        return sys.stdin.read() if path == "-" else user_path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PodError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
