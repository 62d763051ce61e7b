// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// The table of functions: flat is what a function allocated itself, cum itself plus everything it called, growth how
// either has changed between the two dumps that are compared.

import { bytes, h, percent, signed } from "./format.js";
import { beyondChance } from "./stacks.js";

const SHOWN = 30;
const MOST = 1000;

// {frame, flat, cum} for each function in the tree, each {now, older, newer}; of one that calls itself only the outermost
// counts for cum.
function rowsOf(tree, dump, pair) {
    const { outermost } = tree;
    const rows = new Map();
    const add = (frame, column, when, size) => {
        if (!size) return;
        const none = () => ({ now: 0, older: 0, newer: 0 });
        if (!rows.has(frame)) rows.set(frame, { frame, flat: none(), cum: none() });
        rows.get(frame)[column][when] += size;
    };
    for (const [when, which] of Object.entries({ now: dump, ...pair })) {
        const atLeaves = tree.atLeaves(which);
        tree.ends.forEach((node, i) => add(tree.frame[node], "flat", when, atLeaves[i]));
        const sums = tree.sum(atLeaves);
        for (let node = 1; node < tree.size; node++) if (outermost[node]) add(tree.frame[node], "cum", when, sums[node]);
    }
    return [...rows.values()];
}

const grown = ({ older, newer }) => newer - older;
const VALUES = {
    flat: (row) => row.flat.now,
    flatgrowth: (row) => grown(row.flat),
    cum: (row) => row.cum.now,
    cumgrowth: (row) => grown(row.cum),
};

export class Functions {
    // `sort(column)` and `open(frame)` are called on a click
    constructor(frames, { sort, open }) {
        this.frames = frames;
        this.events = { sort, open };
        this.all = false;
        this.table = h("table", { class: "functions" });
        this.more = h("button", { type: "button", class: "link", onclick: () => this.showAll() });
        this.element = h("div", {}, h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Functions" }, this.table), this.more);
    }

    // `view`: {tree, dump, pair, sort, hits (by frame, or null), interval, confidence}
    show(view) {
        this.view = view;
        const { frames } = this;
        const known = view.pair ? ["name", ...Object.keys(VALUES)] : ["name", "flat", "cum"];
        const turned = view.sort.startsWith("-"); // from the other end
        const named = view.sort.slice(turned ? 1 : 0);
        const sort = known.includes(named) ? named : view.pair ? "flatgrowth" : "flat";
        const rows = rowsOf(view.tree, view.dump, view.pair);
        const total = view.dump.total;
        const byName = (a, b) => frames.name[a.frame].localeCompare(frames.name[b.frame]);
        const by = (value) => (a, b) => value(b) - value(a);
        const bySize = (a, b) => by(VALUES[sort])(a, b) || by(VALUES.cumgrowth)(a, b) || by(VALUES.cum)(a, b) || byName(a, b);
        rows.sort(sort === "name" ? byName : bySize);
        if (turned) rows.reverse();
        const rises = (sort === "name") !== turned;
        const wanted = view.hits ? rows.filter((row) => view.hits[row.frame]) : rows;
        const shown = wanted.slice(0, this.all ? MOST : SHOWN);
        const head = (column, text, about) =>
            h(
                "th",
                { scope: "col", class: column === "name" ? null : "number", "aria-sort": sort === column ? (rises ? "ascending" : "descending") : null },
                h("button", { type: "button", title: about, onclick: () => this.events.sort(sort === column && !turned ? `-${column}` : column) }, text, h("span", { "aria-hidden": "true" }, sort === column ? (turned ? " ▴" : " ▾") : "")),
            );
        const share = (text) => h("th", { scope: "col", class: "number share" }, text);
        const heads = [
            head("flat", "flat", "allocated by the function itself"),
            share("flat%"),
            view.pair && head("flatgrowth", "growth", "change of flat between the two dumps"),
            head("cum", "cum", "allocated by the function and all that it called"),
            share("cum%"),
            view.pair && head("cumgrowth", "growth", "change of cum between the two dumps"),
            head("name", "function", "by name"),
        ];
        const cell = (text, kind = "number") => h("td", { class: kind }, text);
        const cells = (values) => {
            const growth = grown(values);
            const sure = view.pair && beyondChance(values.older, values.newer, view.interval, view.confidence);
            const kind = sure ? (growth > 0 ? "more" : "less") : "same";
            return [
                cell(bytes(values.now)),
                cell(percent(values.now, total), "number share"),
                view.pair && h("td", { class: `number ${kind}`, title: sure ? null : "no more than sampling explains" }, signed(growth)),
            ];
        };
        const line = (row) =>
            h(
                "tr",
                {},
                ...cells(row.flat),
                ...cells(row.cum),
                h(
                    "td",
                    {},
                    h("button", { type: "button", class: `link name${frames.own[row.frame] ? " own" : ""}`, title: "Callers and callees", onclick: () => this.events.open(row.frame) }, frames.name[row.frame]),
                    h("span", { class: "where" }, frames.kind[row.frame] && frames.module[row.frame]),
                ),
            );
        const at = document.activeElement?.closest("th") && [...this.table.querySelectorAll("th")].indexOf(document.activeElement.closest("th"));
        this.table.replaceChildren(h("caption", { class: "hidden" }, "Functions of the dump that is shown"), h("thead", {}, h("tr", {}, ...heads)), h("tbody", {}, ...shown.map(line)));
        if (at >= 0 && at !== null) this.table.querySelectorAll("th")[at]?.querySelector("button").focus({ preventScroll: true });
        const left = Math.min(wanted.length, MOST) - shown.length;
        this.more.hidden = left <= 0;
        this.more.textContent = `Show ${left} more`;
    }

    showAll() {
        this.all = true;
        this.show(this.view);
    }
}
