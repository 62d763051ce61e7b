# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Manifests of Kubernetes as kubectl reads them: documents of YAML or JSON, some of them lists of others."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..base import libraries
from . import pod_template
from .pod_template import PodError

if TYPE_CHECKING:
    import yaml
else:
    yaml = libraries.optional("yaml")

# A word that is a number of base 60 in YAML 1.1 (22:22), or a time, is a text to Kubernetes.
_TEXT = re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?\Z")
_INT, _FLOAT, _TIME = (f"tag:yaml.org,2002:{name}" for name in ("int", "float", "timestamp"))


def read(text: str) -> list[dict[str, Any]]:
    """The manifests in a text. Raises PodError."""
    libraries.require("yaml")
    try:
        documents = list(yaml.load_all(text, _loader()))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise PodError(f"this is no YAML or JSON: {' '.join(str(error).split())}") from error
    found = [one for document in documents if document is not None for one in _flat(document)]
    if not found:
        raise PodError("there is no manifest in it")
    return found


def to_profile(manifests: Sequence[dict[str, Any]], names: Collection[str]) -> dict[str, Any]:
    """The one workload that has containers of these names. Raises PodError."""
    there = [(one, pod_template.containers(one)) for one in manifests]
    having = [one for one, containers in there if set(names) <= set(containers)]
    if len(having) == 1 or len(manifests) == 1:
        return (having or manifests)[0]
    if having:
        raise PodError(f"several have such a container: {_listed(having)}. Give one of them alone")
    known = [f"{pod_template.title(one)} ({', '.join(containers)})" for one, containers in there if containers]
    raise PodError(f"nothing here has containers {', '.join(names)}; there are: {'; '.join(known) or 'no workloads'}")


def profiled_already(manifests: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The workloads that we have changed. Raises PodError if there are none."""
    found = [one for one in manifests if pod_template.is_profiled(one)]
    if not found:
        raise PodError(f"nothing here has the annotation {pod_template.ADDED}: we have changed none of it")
    return found


def _listed(manifests: Sequence[dict[str, Any]]) -> str:
    return ", ".join(map(pod_template.title, manifests))


def _flat(document: object) -> Iterator[dict[str, Any]]:
    if not isinstance(document, dict):
        raise PodError(f"{str(document)[:60]!r} is no manifest of Kubernetes")
    items = document.get("items")
    if document.get("kind") == "List" and isinstance(items, list):
        for item in items:
            yield from _flat(item)
    else:
        yield document


def _loader() -> Any:
    """PyYAML's, which takes words for texts where Kubernetes does."""

    class Loader(yaml.SafeLoader):
        def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
            tag = super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]
            if tag == _TIME or (tag in (_INT, _FLOAT) and _TEXT.match(str(value))):
                return self.DEFAULT_SCALAR_TAG
            return tag

    return Loader
