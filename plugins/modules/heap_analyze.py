#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of heap_analyze. All of it runs on the controller, in the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: heap_analyze
short_description: Look at one heap profile
version_added: 0.1.0
description:
  - Reads a dump that jemalloc wrote and shows it as C(jeprof) and C(pprof) do, as a table, a tree, stacks, a call
    graph, a flame graph, source lines or instructions.
  - Runs on the controller and connects to no host. The dump may come from anywhere.
  - Reads dumps of other sources, too, and tells the format by its content. C(docs/sources.md) says which, and what each
    can and cannot say.
  - jemalloc's samples are unbiased record by record. All numbers are estimates, and every C(±) is the 95 % interval
    due to sampling.
author:
  - Offheap contributors (@offheap)
requirements:
  - protobuf (Python library, on the controller), for O(format=pprof)
extends_documentation_fragment:
  - offheap.profiler.attributes
  - offheap.profiler.attributes.controller
  - offheap.profiler.profiles
  - offheap.profiler.profiles.source
attributes:
  check_mode:
    support: full
    details: Analyses the dump and says whether O(dest) would change. Writes nothing.
  diff_mode:
    support: partial
    details: Names the file that is written, without its contents.
  idempotent:
    support: full
    details: The same dump and options give the same file, byte for byte.
options:
  src:
    description: The dump, or the directory of a capture in an archive.
    type: path
    required: true
  base:
    description:
      - Another dump, to subtract stack by stack. It need not be of the same process.
      - Two stacks are the same if function, build and offset are the same. To tell real differences from sampling, use
        M(offheap.profiler.heap_compare).
    type: path
  drop_negative:
    description: Leave out stacks that are smaller than in O(base).
    type: bool
    default: false
  format:
    description:
      - How to show it.
      - V(text) is a table, V(tree) the same with callers and callees of each function, V(peek) only of the functions
        that match O(function), V(traces) each stack, V(collapsed) one line per stack for flame graph tools,
        V(callgrind) for KCachegrind, V(list) the source lines and V(disasm) the instructions of the functions that
        match O(function).
      - V(flamegraph) is one self-contained HTML file.
      - V(pprof) is a gzipped C(profile.proto) for C(go tool pprof) and compatible tools, V(speedscope) and V(firefox)
        are for the viewers of these names, V(json) is for programs. Whatever O(measure) is, V(firefox) shows live bytes
        and the others contain all numbers.
      - V(dot) is a call graph as text for Graphviz. V(svg), V(pdf), V(png), V(gif) and V(ps) are pictures of it, which
        need Graphviz on the controller. V(disasm) needs C(objdump) of binutils.
    type: str
    choices:
      - text
      - tree
      - peek
      - traces
      - collapsed
      - callgrind
      - list
      - disasm
      - dot
      - flamegraph
      - pprof
      - speedscope
      - firefox
      - json
      - svg
      - pdf
      - png
      - gif
      - ps
    default: text
  granularity:
    description: What one row stands for.
    type: str
    choices: [functions, lines, files, addresses, modules]
    default: functions
  sort:
    description: Sort by what a function allocated itself, or including everything that it called.
    type: str
    choices: [flat, cumulative]
    default: flat
  function:
    description: Regular expression that selects the functions for O(format=peek), O(format=list) and O(format=disasm).
    type: str
    default: ""
  focus:
    description: Regular expression. Only stacks through a matching function, C(file:line) or address are kept.
    type: str
    default: ""
  ignore:
    description: Regular expression. Stacks through a matching function, C(file:line) or address are left out.
    type: str
    default: ""
  retain:
    description: Regular expression. Only matching functions are kept in the stacks.
    type: str
    default: ""
  exclude:
    description: Regular expression. Matching functions are taken out of the stacks.
    type: str
    default: ""
  thread:
    description:
      - Show only what one thread holds, by jemalloc's thread number, or V(*) for all threads, one after the other.
    type: str
    default: ""
  exact:
    description: Show exact bytes instead of rounded sizes.
    type: bool
    default: false
  node_count:
    description: The largest number of nodes in a call graph.
    type: int
    default: 80
  node_fraction:
    description: Leave out nodes of a call graph that are at most this fraction of the total.
    type: float
    default: 0.005
  edge_fraction:
    description: Leave out edges of a call graph that are at most this fraction of the total.
    type: float
    default: 0.001
  max_degree:
    description: The largest number of edges into a node, and out of it, in a call graph.
    type: int
    default: 8
  source_path:
    description:
      - Directories with the program's source, for O(format=list).
      - Without them the lines have no text. Paths in debug information are those of the machine that built the program,
        and a host can name any there, so they are never opened here.
    type: list
    elements: path
    default: []
seealso:
  - module: offheap.profiler.heap_compare
  - module: offheap.profiler.leak_report
"""

EXAMPLES = r"""
# ansible localhost -m offheap.profiler.heap_analyze -a "src=jeprof.4711.3.i3.heap limit=20"

- name: Show what holds most memory in a dump, with the images of another machine
  offheap.profiler.heap_analyze:
    src: jeprof.4711.3.i3.heap
    binary_path: [/srv/images]
    sort: cumulative
    limit: 20

- name: Draw a flame graph of what goes through zlib
  offheap.profiler.heap_analyze:
    src: offheap/archive/captures/frontend.service/app1/4711-1a2b3c4d/000003-0123456789ab
    focus: inflate
    format: flamegraph
    dest: inflate.html
    force: true

- name: Draw a call graph of what was added between two dumps
  offheap.profiler.heap_analyze:
    src: jeprof.4711.9.i9.heap
    base: jeprof.4711.3.i3.heap
    drop_negative: true
    format: svg
    dest: growth.svg
"""

RETURN = r"""
dest:
  description: The file that was written.
  returned: when O(dest) is set
  type: str
  sample: /home/ops/fleet/inflate.html
format:
  description: The format that was asked for.
  returned: success
  type: str
  sample: text
measure:
  description: What was counted.
  returned: success
  type: str
  sample: inuse_space
unit:
  description: The unit of the numbers, V(bytes) or V(objects).
  returned: success
  type: str
  sample: bytes
total:
  description: The sum over all selected stacks.
  returned: success
  type: int
  sample: 67108864
total_error:
  description: Half of the 95 % interval of RV(total).
  returned: success
  type: int
  sample: 6291456
sample_interval:
  description: How many bytes jemalloc allocated between two samples, on average.
  returned: success
  type: int
  sample: 524288
rows:
  description: The first rows of the table, in the order of O(sort), at most O(limit) and 100.
  returned: success
  type: list
  elements: dict
  contains:
    name:
      description: The function, or whatever O(granularity) says.
      type: str
      sample: inflate
    flat:
      description: What it allocated itself.
      type: int
      sample: 41943040
    cumulative:
      description: What it allocated, including everything that it called.
      type: int
      sample: 41943040
    error:
      description: Half of the 95 % interval of RV(rows[].cumulative).
      type: int
      sample: 5242880
row_count:
  description: How many rows there are.
  returned: success
  type: int
  sample: 214
dump:
  description:
    - What is known about the dump. A bare dump does not name its host, unit or time.
    - Where it says no build-ids, C(names) says that the names are of the files that have its paths now.
  returned: success
  type: dict
  sample:
    exe: /usr/lib/jvm/java-17/bin/java
    build_id: 330c29ae110f411ab2ed4ab630d25ce6edbbbb7e
    sample_interval: 524288
    threads: 42
"""
