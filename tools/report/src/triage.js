// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// What a look without any profiler has said of each unit: where its memory grows, and what to do next.

import { bytes, h, signed } from "./format.js";

export function triage(findings) {
    const cell = (text, properties = {}) => h("td", properties, text);
    const rows = findings.map((one) =>
        h(
            "tr",
            {},
            cell(one.unit, { class: "name" }),
            cell(one.host, { class: "name" }),
            cell(h("b", { class: one.verdict }, one.verdict)),
            cell(one.rss === null ? "–" : bytes(one.rss), { class: "number" }),
            cell(one.watched ? `${signed(one.growth_bytes_per_hour)}/h` : "–", { class: "number" }),
            h(
                "td",
                { class: "why" },
                h("p", {}, one.reason),
                one.verdict !== "not-growing" && h("p", { class: "note" }, `Next: ${one.next_step}`),
                ...one.notes.map((note) => h("p", { class: "note" }, note)),
            ),
        ),
    );
    const head = ["Unit", "Host", "Verdict", "RSS", "Growth", "Why"].map((name) => h("th", { scope: "col" }, name));
    return h("div", { class: "scroll" }, h("table", { class: "triage" }, h("thead", {}, h("tr", {}, ...head)), h("tbody", {}, ...rows)));
}
