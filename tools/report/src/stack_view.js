// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// What the flame graph and the call graph have in common: the colours of what they draw, what a search finds in it, and
// what the mouse and the keys do.

import { hue, isDark } from "./appearance.js";
import { h } from "./format.js";
import { beyondChance } from "./stacks.js";

const OVER_TIME = { grown: "grown", shrunk: "shrunk", fresh: "new" };
const ACROSS = { grown: "more here", shrunk: "less here", fresh: "only here" };
const MANAGED = ["java", "python", "js"];
const ARROWS = ["ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight"];

// A subclass has `tree` (the frame of each node), `values` by node (stacks.js), `zoom` (the chosen node), draw(),
// at(event) and next(key): the node under the mouse, and that to which an arrow key leads. Node 0 is the whole.
export class StackView {
    // `events`: hover(node, event or null), select(node), open(node), hide(node), copy(node, whole)
    constructor(element, frames, events) {
        this.element = element;
        this.frames = frames;
        this.events = events;
        this.zoom = 0;
        this.cursor = 0;
        this.hits = null; // or whether a frame is searched for, by frame
        element.addEventListener("mousemove", (event) => events.hover(this.at(event), event));
        element.addEventListener("mouseleave", () => events.hover(null, null));
        element.addEventListener("click", (event) => {
            const node = this.at(event);
            if (node === null) return;
            this.cursor = node;
            if (!event.altKey) events.select(node);
            else if (node) events.hide(node);
        });
        element.addEventListener("dblclick", (event) => {
            const node = this.at(event);
            if (node) events.open(node);
        });
        element.addEventListener("keydown", (event) => this.key(event));
        element.addEventListener("focus", () => this.draw());
        element.addEventListener("blur", () => this.draw());
    }

    key(event) {
        const { key } = event;
        if (ARROWS.includes(key)) {
            event.preventDefault();
            const next = this.next(key);
            if (next === undefined) return;
            this.cursor = next;
            this.draw();
            this.events.hover(next, null);
        } else if (key === "Enter" || key === " ") {
            event.preventDefault();
            this.events.select(this.cursor);
        } else if (key === "s") {
            if (this.cursor) this.events.open(this.cursor);
        } else if (key === "h") {
            if (this.cursor) this.events.hide(this.cursor);
        } else if (key === "c" || key === "C") {
            this.events.copy(this.cursor, key === "C");
        }
    }

    colour(node, theme) {
        const { values, tree } = this;
        if (this.matches(node)) return theme.found;
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

    // The sites of a node.
    sites(node) {
        return this.tree.lines.get(node);
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
        if (this.hits) for (let node = 1; node < width.length; node++) if (width[node] > 0 && this.matches(node)) found.push(node);
        return found.sort((a, b) => width[b] - width[a] || a - b);
    }
}

function tint(text) {
    let hash = 7;
    for (let i = 0; i < text.length; i++) hash = (hash * 31 + text.charCodeAt(i)) >>> 0;
    return 195 + (hash % 75); // blues to violets: red is for what grows
}

export function colours() {
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
        ? [h("span", {}, `${pair}:`), own, ...Object.entries(twoHosts ? ACROSS : OVER_TIME).map(([kind, text]) => entry(kind, text)), entry("same", "no more than sampling explains")]
        : [own, entry("suspect", "on a suspected path"), entry("calm", "other code, by library")];
}
