// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// Resident memory as a waterfall: each part begins where the one before ends, and the last ends at RSS, or beyond
// it, which a note explains. Texts are numbers of `texts` (report/page.py). What the parts mean is told where `open`.

import { bytes, h, percent } from "./format.js";

export function waterfall(memory, texts, open) {
    if (!memory) {
        return [h("p", { class: "note" }, "No memory statistics came with the dumps of this process: the agent writes them beside each of its own.")];
    }
    let sum = 0;
    const parts = memory.parts.map(([name, origin, meaning, size]) => ({ name: texts[name], origin: texts[origin], meaning: texts[meaning], size }));
    const spans = parts.map((part) => ({ ...part, from: sum, to: (sum += part.size) }));
    const at = (value) => (100 * value) / Math.max(memory.rss, sum, 1);
    const row = (name, kind, from, to, size, meaning) => {
        const bar = h("span", { class: `fall ${kind}` });
        bar.style.left = `${at(from)}%`;
        bar.style.width = `${Math.max(at(to) - at(from), 0.4)}%`;
        return h(
            "tr",
            {},
            h("th", { scope: "row", title: meaning }, name),
            h("td", { class: "track" }, h("span", { class: "rail" }, bar)),
            h("td", { class: "number" }, bytes(size)),
            h("td", { class: "number share" }, percent(size, memory.rss)),
        );
    };
    const rows = spans.map((part) => row(part.name, part.origin, part.from, part.to, part.size, part.meaning));
    const head = row("RSS", "total", 0, memory.rss, memory.rss, "resident memory of the process");
    const meanings = parts
        .filter((part) => part.size > 0.02 * memory.rss && part.meaning)
        .map((part) => h("li", {}, h("b", {}, part.name), `: ${part.meaning}`));
    return [
        h("table", { class: "waterfall" }, h("tbody", {}, head, ...rows)),
        h("details", { open }, h("summary", {}, "What these mean"), h("ul", {}, ...meanings)),
        ...memory.notes.map((note) => h("p", { class: "note" }, texts[note])),
    ];
}
