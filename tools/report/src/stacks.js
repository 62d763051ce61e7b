// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// The tree of all stacks of a unit, other trees made from it (from the leaves up, around one frame), and what each
// dump holds in them. A tree is parent and frame by node, parents first, so sums are one loop from the end.

const MOST_LINES = 5; // are named of a file

export class Stacks {
    // `fold` gives by frame the one that it folds into (own_code.js).
    constructor(unit, frames, fold) {
        this.frames = frames;
        this.fold = fold;
        const { parent, frame, sites, lines = {} } = unit.tree;
        this.frame = Int32Array.from(frame);
        this.parent = Int32Array.from(parent, (distance, node) => (node ? node - distance : -1));
        this.size = frame.length;
        this.self = new Map();
        this.dumps = unit.hosts.flatMap((host) => [...host.dumps, ...host.threads]);
        for (const dump of this.dumps) unpack(dump);
        for (const suspect of unit.hosts.flatMap((host) => host.suspects)) {
            let node = 0;
            suspect.nodes = suspect.nodes.map((step) => (node += step));
        }
        const leaves = new Set();
        for (const dump of this.dumps) for (const node of dump.nodes) leaves.add(node);
        this.leaves = [...leaves].sort((a, b) => a - b);
        this.sites = sites; // [file, line], where debug information is
        this.lines = new Map(Object.entries(lines).map(([node, seen]) => [Number(node), seen]));
        this.down = new Tree("down", this.frame, this.parent, this.leaves, this.leaves, this.lines);
        this.made = new Map();
    }

    pathOf(leaf) {
        const path = [];
        for (let node = leaf; node > 0; node = this.parent[node]) path.push(node);
        return path;
    }

    // Kinds: "down", "up" (from the function that allocates), "callers" and "callees" of a frame, and "through", the whole
    // stacks that have it. In a folded tree, what lies in one library without a break is one frame. `hidden` names functions, and [libraries]: stacks through one of
    // them are left out.
    tree(kind, frame = -1, folded = false, hidden = []) {
        if (kind === "down" && !folded && !hidden.length) return this.down;
        const key = JSON.stringify([kind, frame, folded, ...hidden]);
        let tree = this.made.get(key);
        if (!tree) {
            if (this.made.size > 8) this.made.clear();
            tree = this.derive(kind, frame, folded, this.framesOf(hidden));
            this.made.set(key, tree);
        }
        return tree;
    }

    // Sites in words: "inflate.c:622, 630", or only the file, as of a Python function.
    source(seen = []) {
        const files = new Map();
        for (const [file, line] of [...seen].map((site) => this.sites[site])) files.set(file, [...(files.get(file) || []), line]);
        const words = (lines) => [...new Set(lines)].sort((a, b) => a - b).slice(0, MOST_LINES).join(", ") + (lines.length > MOST_LINES ? ", …" : "");
        return [...files]
            .map(([file, lines]) => [file, words(lines.filter(Boolean))])
            .map(([file, known]) => (file ? file + (known && `:${known}`) : `line ${known}`))
            .join("; ");
    }

    // The only file of these sites and their only line, where there is just one: [file, line].
    siteOf(seen = []) {
        const sites = [...seen].map((site) => this.sites[site]);
        const only = (values) => (values.every((value) => value === values[0]) ? values[0] : undefined);
        return [only(sites.map(([file]) => file)) || "", only(sites.map(String)) ? sites[0][1] : 0];
    }

    framesOf(hidden) {
        const { name, module } = this.frames;
        const names = new Set(hidden);
        return new Uint8Array(name.map((one, frame) => names.has(one) || names.has(`[${module[frame]}]`)));
    }

    derive(kind, wanted, folded, hidden) {
        const frames = [wanted < 0 || kind === "through" ? this.frame[0] : wanted];
        const parents = [-1];
        const nodes = new Map();
        const ends = [];
        const leaves = [];
        const lines = new Map();
        const see = (node, passed) => {
            const seen = this.lines.get(passed);
            if (!seen) return;
            if (!lines.has(node)) lines.set(node, new Set());
            for (const site of seen) lines.get(node).add(site);
        };
        const frameOf = (node) => (folded ? this.fold[this.frame[node]] : this.frame[node]);
        for (const leaf of this.leaves) {
            let path = this.pathOf(leaf); // leaf first
            if (path.some((node) => hidden[this.frame[node]] || hidden[this.fold[this.frame[node]]])) continue;
            if (folded) path = path.filter((node, at) => !at || frameOf(node) !== frameOf(path[at - 1]) || this.frames.own[frameOf(node)]);
            if (wanted >= 0) {
                const at = path.map(frameOf).lastIndexOf(wanted);
                if (at < 0) continue;
                if (kind !== "through") see(0, path[at]);
                path = { callers: () => path.slice(at + 1), callees: () => path.slice(0, at).reverse(), through: () => path.reverse() }[kind]();
            } else if (kind === "down") path.reverse();
            let node = 0;
            for (const passed of path) {
                const frame = frameOf(passed);
                const key = node * this.frames.name.length + frame;
                let next = nodes.get(key);
                if (next === undefined) {
                    next = frames.length;
                    nodes.set(key, next);
                    frames.push(frame);
                    parents.push(node);
                }
                node = next;
                if (frame === this.frame[passed]) see(node, passed);
            }
            leaves.push(leaf);
            ends.push(node);
        }
        return new Tree(kind, Int32Array.from(frames), Int32Array.from(parents), leaves, ends, lines);
    }
}

// Nodes come as differences to the one before.
function unpack(dump) {
    let node = 0;
    dump.nodes = dump.nodes.map((step) => (node += step));
    dump.total = dump.bytes.reduce((sum, size) => sum + size, 0);
}

// `ends[i]` is the node at which the bytes of the unit's leaf `leaves[i]` count; `lines` has the sites of nodes.
export class Tree {
    constructor(kind, frame, parent, leaves, ends, lines) {
        this.kind = kind;
        this.frame = frame;
        this.parent = parent;
        this.size = frame.length;
        this.leaves = leaves;
        this.ends = ends;
        this.lines = lines;
        this.children = null;
    }

    // Whether a node's frame is in none above it: a function that calls itself counts once.
    get outermost() {
        if (this.outer) return this.outer;
        this.outer = new Uint8Array(this.size);
        for (let node = 1; node < this.size; node++) {
            let above = this.parent[node];
            while (above > 0 && this.frame[above] !== this.frame[node]) above = this.parent[above];
            this.outer[node] = above > 0 ? 0 : 1;
        }
        return this.outer;
    }

    // Live bytes of a dump by node, and by leaf for what is made of two dumps.
    atLeaves(dump) {
        const held = new Map();
        if (dump) for (let i = 0; i < dump.nodes.length; i++) held.set(dump.nodes[i], dump.bytes[i]);
        return Float64Array.from(this.leaves, (leaf) => held.get(leaf) || 0);
    }

    sum(atLeaves) {
        const sums = new Float64Array(this.size);
        for (let i = 0; i < this.ends.length; i++) sums[this.ends[i]] += atLeaves[i];
        for (let node = this.size - 1; node > 0; node--) sums[this.parent[node]] += sums[node];
        return sums;
    }

    // In which order siblings stand: by what they hold at most. It does not change while one moves in time.
    arrange(dumps) {
        if (this.children) return;
        const most = new Float64Array(this.size);
        const step = Math.max(1, Math.floor(dumps.length / 12));
        for (let i = 0; i < dumps.length; i += step) {
            const sums = this.sum(this.atLeaves(dumps[i]));
            for (let node = 0; node < this.size; node++) if (sums[node] > most[node]) most[node] = sums[node];
        }
        const order = Array.from({ length: this.size - 1 }, (_, i) => i + 1);
        order.sort((a, b) => this.parent[a] - this.parent[b] || most[b] - most[a] || a - b);
        this.children = Int32Array.from(order);
        this.first = new Int32Array(this.size + 1);
        for (const node of order) this.first[this.parent[node] + 1]++;
        for (let node = 0; node < this.size; node++) this.first[node + 1] += this.first[node];
    }

    childrenOf(node) {
        return this.children.subarray(this.first[node], this.first[node + 1]);
    }
}

// Whether a change is more than sampling explains, as heap_compare judges: beyond the 95 % interval, and beyond what one
// sampled allocation stands for.
export function beyondChance(older, newer, interval, confidence) {
    const change = Math.abs(newer - older);
    return interval !== null && change >= 1 && change > confidence * Math.sqrt(interval * (older + newer)) + interval;
}

// Half of the 95 % interval of a size; infinite where nobody knows how it was sampled, and `interval` is null.
export function errorOf(live, interval, confidence) {
    if (interval === null) return Infinity;
    return interval > 1 ? confidence * Math.sqrt(interval * live) : 0;
}

// What the graph shows: widths by node, and the numbers behind them. `pair` is null, or the two dumps that are compared;
// `now` is one of them. What is grown or shrunk goes from `pair.older` to `pair.newer`.
export function measure(tree, now, pair, what, suspects) {
    const held = tree.atLeaves(now);
    const sums = tree.sum(held);
    const values = { what, now: sums, older: null, newer: null, width: sums };
    values.suspect = tree.sum(held.map((size, i) => (suspects.has(tree.leaves[i]) ? size : 0)));
    if (!pair) return values;
    const [older, newer] = [tree.atLeaves(pair.older), tree.atLeaves(pair.newer)];
    values.older = tree.sum(older);
    values.newer = tree.sum(newer);
    const sign = { grown: 1, shrunk: -1 }[what];
    if (sign) values.width = tree.sum(newer.map((size, i) => Math.max(sign * (size - older[i]), 0)));
    return values;
}
