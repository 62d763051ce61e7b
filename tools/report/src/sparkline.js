// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// One path's live memory over time with its 95 % interval, on a scale of its own: a small leak in a large heap is a
// line that climbs, which the curve of all memory cannot show.

import { bytes, h, shape } from "./format.js";

const WIDTH = 160;
const HEIGHT = 34;

// `points`: {time, live, error} in the order of time.
export function sparkline(points) {
    if (points.length < 2 || !Number.isFinite(points[0].error)) return null;
    const low = Math.min(...points.map((point) => Math.max(point.live - point.error, 0)));
    const high = Math.max(...points.map((point) => point.live + point.error), low + 1);
    const [start, end] = [points[0].time, points.at(-1).time];
    const x = (point) => ((WIDTH * (point.time - start)) / Math.max(end - start, 1)).toFixed(1);
    const y = (value) => (HEIGHT - (HEIGHT * (Math.max(value, low) - low)) / (high - low)).toFixed(1);
    const line = (value) => points.map((point) => `${x(point)},${y(value(point))}`);
    const band = [...line((point) => point.live + point.error), ...line((point) => point.live - point.error).reverse()];
    const words = `${bytes(points[0].live)} → ${bytes(points.at(-1).live)}`;
    const svg = shape("svg", { viewBox: `0 -2 ${WIDTH} ${HEIGHT + 4}`, preserveAspectRatio: "none", "aria-hidden": "true" });
    svg.append(shape("polygon", { points: band.join(" ") }), shape("polyline", { points: line((point) => point.live).join(" ") }));
    return h("span", { class: "sparkline" }, svg, h("span", { class: "number" }, words));
}
