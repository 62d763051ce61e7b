// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// A flame graph on a canvas. Only what is at least a pixel wide is visited, so the number of frames in the tree does
// not matter while one moves, and a change of time is one pass over the sums.

import { hue, isDark } from "./appearance.js";
import { h } from "./format.js";
import { beyondChance } from "./stacks.js";

const ROW = 21;
const LEAST = 0.8; // pixels
const WIDE = 14; // pixels: what is narrower does not make the graph deeper
const MOST_ROWS = 220;
const FONT = '12px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace';
const OVER_TIME = { grown: "grown", shrunk: "shrunk", fresh: "new" };
const ACROSS = { grown: "more here", shrunk: "less here", fresh: "only here" };
const MANAGED = ["java", "python", "js"];

export class Flame {
    // `events`: hover(node, event or null), select(node), open(node), hide(node), copy(node, whole)
    constructor(canvas, frames, events) {
        this.canvas = canvas;
        this.frames = frames;
        this.events = events;
        this.context = canvas.getContext("2d");
        this.boxes = [];
        this.texts = new Map();
        this.zoom = 0;
        this.cursor = 0;
        this.hits = null; // or whether a frame is searched for, by frame
        canvas.addEventListener("mousemove", (event) => events.hover(this.at(event), event));
        canvas.addEventListener("mouseleave", () => events.hover(null, null));
        canvas.addEventListener("click", (event) => {
            const node = this.at(event);
            if (node === null) return;
            this.cursor = node;
            if (!event.altKey) events.select(node);
            else if (node) events.hide(node);
        });
        canvas.addEventListener("dblclick", (event) => {
            const node = this.at(event);
            if (node) events.open(node);
        });
        canvas.addEventListener("keydown", (event) => this.key(event));
        canvas.addEventListener("focus", () => this.draw());
        canvas.addEventListener("blur", () => this.draw());
        new ResizeObserver(() => this.draw()).observe(canvas.parentElement);
    }

    show(tree, values) {
        if (this.tree !== tree) {
            this.zoom = 0;
            this.cursor = 0;
        }
        this.tree = tree;
        this.values = values;
        this.draw();
    }

    ancestors(node) {
        const path = [];
        for (let at = this.tree.parent[node]; at >= 0; at = this.tree.parent[at]) path.push(at);
        return path.reverse();
    }

    layout(width) {
        const { tree, values } = this;
        this.boxes = [];
        let rows = 1;
        const above = this.ancestors(this.zoom);
        above.forEach((node, row) => this.boxes.push({ node, x: 0, w: width, row, above: true }));
        const whole = values.width[this.zoom];
        if (!(whole > 0)) return above.length + 1;
        const scale = width / whole;
        const pending = [[this.zoom, 0, above.length]];
        while (pending.length) {
            const [node, x, row] = pending.pop();
            this.boxes.push({ node, x, w: values.width[node] * scale, row, above: false });
            if (values.width[node] * scale >= WIDE) rows = Math.max(rows, row + 1);
            if (row >= MOST_ROWS) continue;
            let at = x;
            for (const child of tree.childrenOf(node)) {
                const w = values.width[child] * scale;
                if (w >= LEAST) pending.push([child, at, row + 1]);
                at += w;
            }
        }
        return rows;
    }

    draw() {
        if (!this.tree) return;
        const { canvas, context } = this;
        const width = canvas.parentElement.clientWidth;
        if (!width) return;
        const rows = this.layout(width);
        const ratio = devicePixelRatio || 1;
        const height = Math.max(rows, 4) * ROW + 2;
        canvas.width = Math.round(width * ratio);
        canvas.height = Math.round(height * ratio);
        canvas.style.height = `${height}px`;
        context.setTransform(ratio, 0, 0, ratio, 0, 0);
        context.clearRect(0, 0, width, height);
        context.textBaseline = "middle";
        const theme = colours();
        this.found = { frames: 0, bytes: 0 };
        for (const box of this.boxes) this.box(box, theme);
        if (document.activeElement === canvas) this.outline(theme);
        this.count();
    }

    box(box, theme) {
        const { context } = this;
        const { x, y, w, h: height, fill, color, text, bold } = this.looks(box, theme);
        context.globalAlpha = box.above ? 0.55 : 1;
        context.fillStyle = fill;
        context.fillRect(x, y, w, height);
        context.globalAlpha = 1;
        if (!text) return;
        context.font = bold ? `bold ${FONT}` : FONT;
        context.fillStyle = color;
        context.fillText(text, x + 4, y + ROW / 2);
    }

    looks({ node, x, w, row }, theme) {
        const frame = this.tree.frame[node];
        const found = this.matches(node);
        return {
            node, x, y: row * ROW, w: Math.max(w - (w > 3 ? 1 : 0), 0.6), h: ROW - 1,
            fill: found ? theme.found : this.colour(node, theme), color: found ? "#1a1a1a" : theme.text,
            text: w < 28 ? "" : this.fitted(this.frames.name[frame], w - 9), bold: this.frames.own[frame] && node > 0,
        };
    }

    // What is drawn, for a picture.
    drawn() {
        const theme = colours();
        return this.boxes.map((box) => this.looks(box, theme));
    }

    fitted(name, width) {
        let whole = this.texts.get(name);
        if (whole === undefined) {
            whole = this.context.measureText(name).width;
            this.texts.set(name, whole);
        }
        if (whole <= width) return name;
        const fits = Math.floor((width / whole) * name.length) - 1;
        return fits < 2 ? "" : name.slice(0, fits) + "…";
    }

    outline(theme) {
        const box = this.boxes.find((candidate) => candidate.node === this.cursor) || this.boxes[0];
        if (!box) return;
        this.context.strokeStyle = theme.focus;
        this.context.lineWidth = 2;
        this.context.strokeRect(box.x + 1, box.row * ROW + 1, Math.max(box.w - 3, 2), ROW - 3);
    }

    colour(node, theme) {
        const { values, tree } = this;
        const now = values.now[node];
        if (values.older) {
            const change = values.newer[node] - values.older[node];
            if (!this.significant(node)) return theme.same;
            if (values.older[node] === 0) return theme.fresh;
            const strength = Math.sqrt(Math.min(Math.abs(change) / Math.max(values.older[node], values.newer[node]), 1));
            return change > 0 ? theme.grown(strength) : theme.shrunk(strength);
        }
        const share = now > 0 ? Math.min(values.suspect[node] / now, 1) : 0;
        if (share > 0.005) return theme.suspect(Math.sqrt(share));
        const frame = tree.frame[node];
        return theme.calm(MANAGED.includes(this.frames.kind[frame]) ? 150 : tint(this.frames.module[frame]));
    }

    significant(node) {
        const { older, newer, interval, confidence } = this.values;
        return beyondChance(older[node], newer[node], interval, confidence);
    }

    matches(node) {
        return this.hits !== null && node > 0 && this.hits[this.tree.frame[node]];
    }

    // The nodes that match and hold something, the largest first.
    matching() {
        const { width } = this.values;
        const found = [];
        if (this.hits) for (let node = 1; node < this.tree.size; node++) if (width[node] > 0 && this.matches(node)) found.push(node);
        return found.sort((a, b) => width[b] - width[a] || a - b);
    }

    // All frames of the tree that match, whether they are wide enough to be seen or not; nested ones count once.
    count() {
        this.found = { frames: 0, bytes: 0 };
        if (!this.hits) return;
        const inside = new Uint8Array(this.tree.size);
        for (let node = 1; node < this.tree.size; node++) {
            const nested = inside[this.tree.parent[node]];
            const hit = this.values.width[node] > 0 && this.matches(node);
            if (hit) this.found.frames++;
            if (hit && !nested) this.found.bytes += this.values.width[node];
            inside[node] = nested || hit ? 1 : 0;
        }
    }

    at(event) {
        const place = this.canvas.getBoundingClientRect();
        const x = event.clientX - place.left;
        const row = Math.floor((event.clientY - place.top) / ROW);
        const box = this.boxes.find((one) => one.row === row && x >= one.x && x < one.x + Math.max(one.w, 1));
        return box ? box.node : null;
    }

    key(event) {
        const shown = new Set(this.boxes.map((box) => box.node));
        const siblings = () => {
            const parent = this.tree.parent[this.cursor];
            return parent < 0 ? [this.cursor] : [...this.tree.childrenOf(parent)].filter((node) => shown.has(node));
        };
        const step = (by) => {
            const all = siblings();
            return all[all.indexOf(this.cursor) + by];
        };
        const moves = {
            ArrowUp: () => this.tree.parent[this.cursor],
            ArrowDown: () => [...this.tree.childrenOf(this.cursor)].find((node) => shown.has(node)),
            ArrowLeft: () => step(-1),
            ArrowRight: () => step(1),
        };
        if (event.key in moves) {
            event.preventDefault();
            const next = moves[event.key]();
            if (next === undefined || next < 0) return;
            this.cursor = next;
            this.draw();
            this.events.hover(next, null);
        } else if (event.key === "Enter" || event.key === " ") {
            event.preventDefault();
            this.events.select(this.cursor);
        } else if (event.key === "s") {
            if (this.cursor) this.events.open(this.cursor);
        } else if (event.key === "h") {
            if (this.cursor) this.events.hide(this.cursor);
        } else if (event.key === "c" || event.key === "C") {
            this.events.copy(this.cursor, event.key === "C");
        }
    }
}

function tint(text) {
    let hash = 7;
    for (let i = 0; i < text.length; i++) hash = (hash * 31 + text.charCodeAt(i)) >>> 0;
    return 195 + (hash % 75); // blues to violets: red is for what grows
}

function colours() {
    const mix = (hueOf, low, high) => (s) => `hsl(${hueOf} ${low[0] + (high[0] - low[0]) * s}% ${low[1] + (high[1] - low[1]) * s}%)`;
    const [grown, shrunk, fresh] = ["grown", "shrunk", "fresh"].map(hue);
    if (isDark()) {
        return {
            text: "#f0f1f2", found: "#f5d547", focus: "#ffffff", fresh: `hsl(${fresh} 62% 45%)`,
            grown: mix(grown, [6, 28], [58, 42]), shrunk: mix(shrunk, [6, 28], [45, 32]), suspect: mix(14, [40, 33], [62, 43]),
            calm: (tint) => `hsl(${tint} 20% 32%)`, same: "hsl(220 5% 30%)",
        };
    }
    return {
        text: "#16181b", found: "#ffe14d", focus: "#111111", fresh: `hsl(${fresh} 90% 79%)`,
        grown: mix(grown, [10, 91], [88, 70]), shrunk: mix(shrunk, [10, 91], [46, 66]), suspect: mix(20, [75, 84], [90, 68]),
        calm: (tint) => `hsl(${tint} 40% 87%)`, same: "hsl(220 8% 89%)",
    };
}

// `pair` names the two dumps that are compared, or is null; `twoHosts`: they are of two hosts.
export function legend(pair, twoHosts) {
    const entry = (kind, text) => h("span", {}, h("i", { class: `swatch ${kind}` }), text);
    const own = h("span", {}, h("b", {}, "bold"), " own code");
    return pair
        ? [h("span", {}, pair), own, ...Object.entries(twoHosts ? ACROSS : OVER_TIME).map(([kind, text]) => entry(kind, text)), entry("same", "no more than sampling explains")]
        : [own, entry("suspect", "on a suspected path"), entry("calm", "other code, by library")];
}

