// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// How the objects of one path live, beside those of all other paths: what leaks is the line that does not fall. Below
// it, when those were born that live still.

import { bornIn } from "./births_range.js";
import { bytes, duration, h, shape } from "./format.js";

const WIDTH = 160;
const HEIGHT = 34;

// Both: {ages (seconds), alive (the share that reaches each), born (bytes that live still, by equal parts of the time)}.
// `parts` are those of the births that were chosen, as [first, end); null: none were.
export function lifeCurve(path, others, parts) {
    if (!path || path.ages.length < 3) return null;
    const first = path.ages[1];
    const last = path.ages.at(-1);
    // Ages double from one to the next.
    const x = (age) => ((WIDTH * Math.log2(Math.max(age, first) / first)) / Math.max(Math.log2(last / first), 1)).toFixed(1);
    const y = (share) => (HEIGHT * (1 - share)).toFixed(1);
    const line = (curve) => curve.ages.map((age, at) => `${x(age)},${y(curve.alive[at])}`).slice(1).join(" ");
    const age = path.ages.filter((one) => one <= last / 2).at(-1);
    const reaching = (curve) => percent(curve.alive[Math.max(curve.ages.findLastIndex((one) => one <= age), 0)]);
    const svg = shape("svg", { viewBox: `0 -2 ${WIDTH} ${HEIGHT + 4}`, preserveAspectRatio: "none", "aria-hidden": "true" });
    if (others) svg.append(shape("polyline", { class: "others", points: line(others) }));
    svg.append(shape("polyline", { points: line(path) }));
    const elsewhere = others ? `, of all else ${reaching(others)}` : "";
    const chosen = !parts || parts[1] - parts[0] === path.born.length ? "" : `: ${bytes(bornIn(path, parts))} of it in the chosen time`;
    const words = `${reaching(path)} of it lives for ${duration(age)} or longer${elsewhere}; beside it, what lives still by its time of birth${chosen}`;
    return h("span", { class: "lifecurve" }, h("span", { class: "pictures" }, svg, births(path, parts)), h("span", { class: "number" }, words));
}

function births({ born, began, now }, parts) {
    const most = Math.max(...born, 1);
    const svg = shape("svg", { class: "births", viewBox: `0 0 ${born.length} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" });
    born.forEach((size, at) => {
        const height = (HEIGHT * size) / most;
        const kind = parts && (at < parts[0] || at >= parts[1]) ? "out" : "in";
        svg.append(shape("rect", { class: kind, x: at, y: (HEIGHT - height).toFixed(1), width: 0.8, height: height.toFixed(1) }));
    });
    const title = shape("title", {});
    title.textContent = `What lives still, by when it was born, over ${duration(now - began)}: ${bytes(born.reduce((sum, size) => sum + size, 0))}`;
    svg.prepend(title);
    return svg;
}

const percent = (share) => `${Math.round(100 * share)} %`;
