# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The option of those that read many captures on the controller."""

from __future__ import annotations


class ModuleDocFragment:
    """Who does the work."""

    DOCUMENTATION = r"""
options:
  cluster:
    description:
      - Address of the scheduler of a C(dask.distributed) cluster that reads and judges the captures, such as
        C(tcp://dask.example.org:8786). The results are the same. By default the controller does it.
      - O(archive) must be an address, or a directory that all workers share. The workers need the collection in their
        C(PYTHONPATH), its Python libraries, and the archive's credentials.
      - Whoever can reach a scheduler can run code on its workers, and they on the controller.
    type: str
    default: ""
requirements:
  - distributed (Python library, on the controller, for O(cluster))
"""
