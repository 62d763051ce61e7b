// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// How large the allocations are that make up the live memory: a bar for each power of two.

import { bytes, h, percent, signed } from "./format.js";
import { beyondChance } from "./stacks.js";

const power = (value) => bytes(value).replace(".0 ", " ");

export function sizeTable(sizes, interval, confidence) {
    const whole = sizes.reduce((sum, one) => sum + one.live, 0);
    const most = Math.max(...sizes.map((one) => one.live), 1);
    const head = (text, kind = "number") => h("th", { scope: "col", class: kind }, text);
    const cell = (text, kind = "number", title = null) => h("td", { class: kind, title }, text);
    const line = ({ least, older, live, count }) => {
        const bar = h("span", { class: "bar" });
        bar.style.width = `${(100 * live) / most}%`;
        const sure = beyondChance(older, live, interval, confidence);
        const kind = sure ? (live > older ? "more" : "less") : "same";
        return h(
            "tr",
            {},
            h("th", { scope: "row" }, `${power(least)} to ${power(2 * least)}`),
            h("td", { class: "wide" }, h("span", { class: "whisker", "aria-hidden": "true" }, bar)),
            cell(bytes(live)),
            cell(percent(live, whole), "number share"),
            cell(signed(live - older), `number ${kind}`, sure ? null : "no more than sampling explains"),
            cell(Math.round(count).toLocaleString("en"), "number share"),
        );
    };
    return h(
        "table",
        { class: "sizes" },
        h("thead", {}, h("tr", {}, head("each", null), h("td", { class: "wide" }), head("live"), head("live%", "number share"), head("growth"), head("allocations", "number share"))),
        h("tbody", {}, ...sizes.map(line)),
    );
}
