// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// The call graph as a picture: a box for each function, larger the more it allocated itself, and an arrow for each call,
// wider the more goes through it. Dagre says where they lie.

import { layout, graphlib } from "@dagrejs/dagre";
import { callGraph } from "./call_graph.js";
import { bytes, count, percent, shape } from "./format.js";
import { colours, StackView } from "./stack_view.js";

const NARROW = 640; // pixels
const MOST = { narrow: 24, wide: 80 }; // functions
const FONT = 'ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace';
const SMALLEST = 11; // pixels, of letters
const LARGER = 11; // by so much, where one function has all
const LINE = 1.3; // of the letters' size
const PAD = 7;
const MOST_LINES = 3;
const SHRINKS = 0.85; // to fit, where that is enough
// A long name is broken after what parts it.
const PIECE = /.{1,32}(?:[.:,<( ]|$)|.{1,32}/gu;

export class CallGraph extends StackView {
    // `left` is told what is left out.
    constructor(element, left, frames, events) {
        super(element, frames, events);
        this.left = left;
        this.context = document.createElement("canvas").getContext("2d");
        new ResizeObserver(() => this.graph && this.narrow !== this.isNarrow() && this.lay()).observe(element);
    }

    // `stacks` is the tree of the stacks, and `values` what it holds by node; `zoom` the chosen function. Paper is narrow.
    show(stacks, values, zoom, printing) {
        this.printing = printing;
        this.given = { stacks, values };
        this.zoom = zoom;
        this.lay();
    }

    isNarrow() {
        return this.printing || this.element.clientWidth < NARROW;
    }

    lay() {
        const { stacks, values } = this.given;
        this.narrow = this.isNarrow();
        const size = this.frames.name.length;
        this.graph = callGraph(stacks, values, size, this.narrow ? MOST.narrow : MOST.wide);
        this.tree = { kind: "calls", frame: Int32Array.from({ length: size + 1 }, (_, one) => (one ? one - 1 : stacks.frame[0])) };
        this.values = this.graph.values;
        this.flat = this.graph.flat;
        const graph = new graphlib.Graph();
        graph.setGraph({ nodesep: 18, edgesep: 12, ranksep: 30 });
        for (const one of this.graph.functions) graph.setNode(one, this.box(one));
        for (const call of this.graph.calls) graph.setEdge(call.from, call.to, this.line(call));
        layout(graph);
        this.laid = graph;
        const largest = this.graph.functions[0] || 0;
        if (!this.laid.hasNode(this.zoom)) this.zoom = 0;
        if (!this.laid.hasNode(this.cursor)) this.cursor = this.zoom || largest;
        this.element.replaceChildren(...(largest ? [this.picture()] : []));
        this.left.textContent = this.note;
        this.comeIntoView(this.zoom || largest);
    }

    box(one) {
        const { name, own } = this.frames;
        const whole = this.values.width[0];
        const font = SMALLEST + LARGER * Math.sqrt(this.flat[one] / whole);
        const pieces = name[one - 1].match(PIECE) || [""];
        if (pieces.length > MOST_LINES) pieces.splice(MOST_LINES - 1, Infinity, `${pieces[MOST_LINES - 1].slice(0, 31)}…`);
        const sized = (kind, size) => `${kind} ${bytes(size)}${size ? `, ${percent(size, whole)}` : ""}`;
        const lines = [...pieces, sized("flat", this.flat[one]), sized("cum", this.values.width[one])];
        const bold = Boolean(own[one - 1]);
        this.context.font = `${bold ? "bold " : ""}${font}px ${FONT}`;
        const width = Math.max(...lines.map((line) => this.context.measureText(line).width));
        return { lines, named: pieces.length, bold, font, width: width + 2 * PAD, height: lines.length * font * LINE + 2 * PAD };
    }

    line(call) {
        const share = call.size / this.values.width[0];
        this.context.font = `${SMALLEST}px ${FONT}`;
        const text = bytes(call.size);
        const about = { width: this.context.measureText(text).width, height: SMALLEST * LINE, labelpos: "r", labeloffset: 4 };
        return { ...call, ...about, text, thick: 1 + 5 * Math.sqrt(share), weight: 1 + Math.round(20 * share) };
    }

    // Only what the focus changes: a box that is replaced while the mouse is down is never clicked.
    draw() {
        const theme = this.theme();
        for (const box of this.element.querySelectorAll("[data-function]")) {
            for (const [name, value] of Object.entries(this.border(Number(box.dataset.function), theme))) box.querySelector("rect").setAttribute(name, value);
        }
    }

    theme() {
        const style = getComputedStyle(this.element);
        const [line, background, chosen] = ["--muted", "--panel", "--accent"].map((name) => style.getPropertyValue(name));
        return { ...colours(), line, background, chosen };
    }

    border(one, theme) {
        const looked = one === this.cursor && document.activeElement === this.element;
        const stroke = looked ? theme.focus : one === this.zoom ? theme.chosen : theme.line;
        return { stroke, "stroke-width": stroke === theme.line ? 1 : 3 };
    }

    // An SVG that needs no style sheet. `title(function)`: what is said of it besides.
    picture(title) {
        const theme = this.theme();
        const calls = this.laid.edges().map((edge) => this.laid.edge(edge));
        const { x, y, w, h } = this.bounds;
        const scale = title ? 1 : this.scale(w);
        const svg = shape("svg", { width: Math.floor(w * scale), height: Math.floor(h * scale), viewBox: `${x} ${y} ${w} ${h}`, "font-family": title ? "monospace" : FONT });
        svg.append(...calls.map((call) => this.arrow(call, theme)), ...calls.map((call) => this.size(call, theme)));
        for (const one of this.graph.functions) svg.append(this.drawn(one, theme, title));
        return svg;
    }

    scale(width) {
        const fits = this.element.clientWidth / width;
        return fits < SHRINKS ? 1 : Math.min(fits, 1);
    }

    // Dagre's own leave out what bends around the outermost boxes.
    get bounds() {
        const { laid } = this;
        const lines = laid.edges().map((edge) => laid.edge(edge));
        const boxes = [...laid.nodes().map((one) => laid.node(one)), ...lines];
        const points = lines.flatMap((one) => one.points);
        const [left, right] = [-1, 1].map((side) => [...boxes.map((one) => one.x + (side * one.width) / 2), ...points.map((one) => one.x)]);
        const [top, bottom] = [-1, 1].map((side) => [...boxes.map((one) => one.y + (side * one.height) / 2), ...points.map((one) => one.y)]);
        const [x, y] = [left, top].map((all) => Math.floor(Math.min(...all)) - PAD);
        return { x, y, w: Math.ceil(Math.max(...right)) + PAD - x, h: Math.ceil(Math.max(...bottom)) + PAD - y };
    }

    arrow({ from, to, thick, indirect, points }, theme) {
        const chosen = this.zoom === from || this.zoom === to;
        const stroke = chosen ? theme.chosen : theme.line;
        const [before, end] = points.slice(-2);
        const angle = Math.atan2(end.y - before.y, end.x - before.x);
        const long = 6 + thick;
        const at = (back, side) => `${(end.x - back * Math.cos(angle) - side * Math.sin(angle)).toFixed(1)} ${(end.y - back * Math.sin(angle) + side * Math.cos(angle)).toFixed(1)}`;
        const middle = (a, b) => `${((a.x + b.x) / 2).toFixed(1)} ${((a.y + b.y) / 2).toFixed(1)}`;
        // Smooth through the middles between the points.
        const bends = points.slice(1, -1).map((point, i) => `Q${point.x.toFixed(1)} ${point.y.toFixed(1)} ${i === points.length - 3 ? at(long, 0) : middle(point, points[i + 2])}`);
        const line = shape("path", {
            d: `M${points[0].x.toFixed(1)} ${points[0].y.toFixed(1)}${bends.join("") || `L${at(long, 0)}`}`,
            fill: "none", stroke, "stroke-width": thick.toFixed(1), ...(indirect ? { "stroke-dasharray": "5 4" } : {}),
        });
        const head = shape("path", { d: `M${at(0, 0)}L${at(long, long / 2)}L${at(long, -long / 2)}Z`, fill: stroke });
        const both = shape("g", { "data-call": `${from} ${to}` });
        both.append(line, head);
        return both;
    }

    // On the panel's colour, where it lies on another line.
    size({ x, y, text }, theme) {
        const halo = { stroke: theme.background, "stroke-width": 4, "stroke-linejoin": "round", "paint-order": "stroke" };
        const told = shape("text", { x: x.toFixed(1), y: (y + 4).toFixed(1), "text-anchor": "middle", "font-size": SMALLEST, fill: theme.text, ...halo });
        told.textContent = text;
        return told;
    }

    drawn(one, theme, title) {
        const { x, y, width, height, lines, named, bold, font } = this.laid.node(one);
        const [left, top] = [x - width / 2, y - height / 2];
        const group = shape("g", { "data-function": one });
        if (title) {
            const told = shape("title", {});
            told.textContent = title(one);
            group.append(told);
        }
        group.append(shape("rect", { x: left.toFixed(1), y: top.toFixed(1), width: width.toFixed(1), height: height.toFixed(1), rx: 4, fill: this.colour(one, theme), ...this.border(one, theme) }));
        lines.forEach((line, i) => {
            const text = shape("text", {
                x: (left + PAD).toFixed(1), y: (top + PAD + font * (LINE * i + 1)).toFixed(1), "font-size": font.toFixed(1),
                fill: this.matches(one) ? "#1a1a1a" : theme.text, ...(bold && i < named ? { "font-weight": "bold" } : {}),
            });
            text.textContent = line;
            group.append(text);
        });
        return group;
    }

    // What is left out, in words.
    get note() {
        const { functions, calls, left } = this.graph;
        const parts = [
            left.functions && `${count(left.functions, "function")}, none with more than ${bytes(left.largest)}`,
            left.calls && count(left.calls, "call"),
        ].filter(Boolean);
        const dashed = calls.some((call) => call.indirect) ? " A dashed arrow leads through functions that are left out." : "";
        return `${count(functions.length, "function")}, ${count(calls.length, "call")}.${parts.length ? ` Left out as too small: ${parts.join("; ")}.` : ""}${dashed}`;
    }

    sites(one) {
        const { frame, lines } = this.given.stacks;
        return new Set([...lines].flatMap(([node, seen]) => (frame[node] === this.tree.frame[one] ? [...seen] : [])));
    }

    matching() {
        return super.matching().filter((one) => this.laid.hasNode(one));
    }

    comeIntoView(one) {
        const { element } = this;
        const place = one && this.laid.node(one);
        if (!place) return;
        const { x, y, w } = this.bounds;
        const scale = this.scale(w);
        const seen = (now, middle, size, room) => (scale * (middle - size / 2) >= now && scale * (middle + size / 2) <= now + room ? now : scale * middle - room / 2);
        element.scrollLeft = seen(element.scrollLeft, place.x - x, place.width, element.clientWidth);
        element.scrollTop = seen(element.scrollTop, place.y - y, place.height, element.clientHeight);
    }

    at(event) {
        const one = event.target.closest("[data-function]");
        return one ? Number(one.dataset.function) : null;
    }

    // Up to the caller through which most goes, down to the callee, aside to what stands beside it.
    next(key) {
        const next = this.beside(key);
        this.comeIntoView(next);
        return next;
    }

    beside(key) {
        const { functions, calls } = this.graph;
        const here = this.laid.node(this.cursor);
        if (!here) return undefined;
        if (key === "ArrowUp") return calls.find(({ from, to }) => to === this.cursor && from !== to)?.from;
        if (key === "ArrowDown") return calls.find(({ from, to }) => from === this.cursor && from !== to)?.to;
        const row = functions.filter((one) => Math.abs(this.laid.node(one).y - here.y) < 1).sort((a, b) => this.laid.node(a).x - this.laid.node(b).x);
        return row[row.indexOf(this.cursor) + (key === "ArrowRight" ? 1 : -1)];
    }
}
