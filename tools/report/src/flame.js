// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// A flame graph on a canvas. Only what is at least a pixel wide is visited, so the number of frames in the tree does
// not matter while one moves, and a change of time is one pass over the sums.

import { colours, StackView } from "./stack_view.js";

const ROW = 21;
const LEAST = 0.8; // pixels
const WIDE = 14; // pixels: what is narrower does not make the graph deeper
const MOST_ROWS = 220;
const FONT = '12px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace';

export class Flame extends StackView {
    constructor(canvas, frames, events) {
        super(canvas, frames, events);
        this.canvas = canvas;
        this.context = canvas.getContext("2d");
        this.boxes = [];
        this.texts = new Map();
        new ResizeObserver(() => this.draw()).observe(canvas.parentElement);
    }

    // `zoom`: the node that fills the width; without one, what it was in the same tree.
    show(tree, values, zoom = this.tree === tree ? this.zoom : 0) {
        if (this.tree !== tree) this.cursor = 0;
        this.tree = tree;
        this.values = values;
        this.zoom = zoom > 0 && zoom < tree.size ? zoom : 0;
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
        for (const box of this.boxes) this.box(box, theme);
        if (document.activeElement === canvas) this.outline(theme);
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
            fill: this.colour(node, theme), color: found ? "#1a1a1a" : theme.text,
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

    at(event) {
        const place = this.canvas.getBoundingClientRect();
        const x = event.clientX - place.left;
        const row = Math.floor((event.clientY - place.top) / ROW);
        const box = this.boxes.find((one) => one.row === row && x >= one.x && x < one.x + Math.max(one.w, 1));
        return box ? box.node : null;
    }

    next(key) {
        const shown = new Set(this.boxes.map((box) => box.node));
        const parent = this.tree.parent[this.cursor];
        const step = (by) => {
            const all = parent < 0 ? [this.cursor] : [...this.tree.childrenOf(parent)].filter((node) => shown.has(node));
            return all[all.indexOf(this.cursor) + by];
        };
        const moves = {
            ArrowUp: () => (parent < 0 ? undefined : parent),
            ArrowDown: () => [...this.tree.childrenOf(this.cursor)].find((node) => shown.has(node)),
            ArrowLeft: () => step(-1),
            ArrowRight: () => step(1),
        };
        return moves[key]();
    }
}
