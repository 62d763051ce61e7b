// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// Resident and live memory over time, with the dumps as points. A click goes to the nearest dump, one with Shift compares
// with it.

import uPlot from "uplot";
import { bytes, moment } from "./format.js";

const KIB = [];
for (let power = 0; power < 50; power++) KIB.push(2 ** power);

export class Curves {
    constructor(element, readout, choose) {
        this.element = element;
        this.readout = readout;
        this.choose = choose;
        resized(element, () => this.plot);
    }

    show(host, marks) {
        this.marks = marks;
        if (this.host === host && this.plot) {
            this.plot.redraw(false);
            return;
        }
        this.host = host;
        if (this.plot) this.plot.destroy();
        const data = columns(host.points);
        this.places = data.places;
        const colour = chartColour;
        const line = (label, name, points) => ({
            label, stroke: colour(name), width: 2, spanGaps: false,
            points: { show: points, size: 6, fill: colour("panel"), width: 2 },
        });
        const all = [data.live, data.high, data.low, data.rss, data.heap];
        const has = (values) => values.some((value) => value !== null);
        this.names = [["Live, sampled", "live", data.live], ["RSS", "rss", data.rss], ["Java heap", "heap", data.heap]]
            .filter(([, , values]) => has(values));
        this.plot = new uPlot(
            {
                width: this.element.clientWidth || 300,
                height: innerWidth < 600 ? 220 : 330,
                tzDate: (time) => uPlot.tzDate(new Date(time * 1000), "Etc/UTC"),
                legend: { show: false },
                cursor: { drag: { x: false, y: false }, points: { size: 8 } },
                scales: { y: { range: (_plot, _low, high) => [0, (high || 1) * 1.06] } },
                axes: axes(),
                series: [
                    {},
                    line("live", "live", true),
                    { stroke: "transparent", points: { show: false } },
                    { stroke: "transparent", points: { show: false } },
                    line("rss", "rss", false),
                    line("heap", "heap", has(data.heap) && data.heap.filter((value) => value !== null).length < 3),
                ],
                bands: [{ series: [2, 3], fill: colour("live-band") }],
                hooks: { draw: [(plot) => this.drawMarks(plot, colour)], setCursor: [(plot) => this.tell(plot)] },
            },
            [data.time, ...all],
            this.element,
        );
        this.plot.over.addEventListener("mousedown", (event) => event.shiftKey && event.preventDefault()); // selects no text
        this.plot.over.addEventListener("click", (event) => this.click(event.shiftKey));
        this.tell(this.plot);
    }

    click(compare) {
        const time = this.plot.posToVal(this.plot.cursor.left, "x");
        let best = null;
        this.host.dumps.forEach((dump, index) => {
            if (best === null || Math.abs(dump.time - time) < Math.abs(this.host.dumps[best].time - time)) best = index;
        });
        if (best !== null) this.choose(best, compare);
    }

    drawMarks(plot, colour) {
        const { ctx } = plot;
        ctx.save();
        ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
        ctx.textBaseline = "top";
        ctx.textAlign = "left";
        let free = -Infinity; // up to where labels have been written
        for (const mark of this.marks.events) {
            const x = Math.round(plot.valToPos(mark.time, "x", true));
            const wide = ctx.measureText(mark.short).width;
            ctx.fillStyle = ctx.strokeStyle = colour(mark.kind === "trigger" ? "unsure" : "muted");
            ctx.lineWidth = devicePixelRatio;
            ctx.setLineDash([2 * devicePixelRatio, 2 * devicePixelRatio]);
            ctx.beginPath();
            ctx.moveTo(x, plot.bbox.top);
            ctx.lineTo(x, plot.bbox.top + plot.bbox.height);
            ctx.stroke();
            ctx.setLineDash([]);
            ctx.beginPath();
            ctx.moveTo(x, plot.bbox.top);
            ctx.lineTo(x - 5 * devicePixelRatio, plot.bbox.top - 8 * devicePixelRatio);
            ctx.lineTo(x + 5 * devicePixelRatio, plot.bbox.top - 8 * devicePixelRatio);
            ctx.fill();
            const left = Math.min(x + 5 * devicePixelRatio, plot.bbox.left + plot.bbox.width - wide);
            if (left < free) continue;
            ctx.fillText(mark.short, left, plot.bbox.top + 2 * devicePixelRatio);
            free = left + wide + 8 * devicePixelRatio;
        }
        for (const [time, name, dash] of [[this.marks.base, "muted", [4, 4]], [this.marks.now, "accent", []]]) {
            if (time === null) continue;
            const x = Math.round(plot.valToPos(time, "x", true));
            ctx.strokeStyle = colour(name);
            ctx.lineWidth = 2 * devicePixelRatio;
            ctx.setLineDash(dash.map((length) => length * devicePixelRatio));
            ctx.beginPath();
            ctx.moveTo(x, plot.bbox.top);
            ctx.lineTo(x, plot.bbox.top + plot.bbox.height);
            ctx.stroke();
        }
        ctx.restore();
    }

    tell(plot) {
        const last = plot.data[0].length - 1;
        const at = plot.cursor.idx === null || plot.cursor.idx === undefined ? last : plot.cursor.idx;
        const parts = this.names.map(([name, kind, values]) => {
            let known = at; // what was asked for with some dumps only stands until it is asked for again
            while (known > 0 && values[known] === null) known--;
            return [kind, name, values[known] === null ? "–" : bytes(values[known])];
        });
        this.readout(moment(plot.data[0][at]), parts);
    }
}

// Keeps a chart as wide as its place.
export function resized(element, plot) {
    new ResizeObserver(() => {
        if (plot() && element.clientWidth) plot().setSize({ width: element.clientWidth, height: plot().height });
    }).observe(element);
}

export const chartColour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

// Time below, bytes on the left.
export function axes() {
    const grid = { stroke: chartColour("line"), width: 1 };
    const axis = { stroke: chartColour("muted"), grid, ticks: grid, font: "12px system-ui, sans-serif" };
    return [
        { ...axis, space: 70, values: times },
        { ...axis, size: 68, incrs: KIB, space: 36, values: (_plot, splits) => splits.map((value) => short(value)) },
    ];
}

// One process after the other, with a gap between them.
function columns(points) {
    const data = { time: [], live: [], high: [], low: [], rss: [], heap: [], places: [] };
    const order = points.time.map((_time, index) => index).sort((a, b) => points.time[a] - points.time[b]);
    let before = null;
    for (const index of order) {
        const process = points.process[index];
        if (before !== null && before !== process) {
            data.time.push(points.time[index] - 0.001);
            for (const name of ["live", "high", "low", "rss", "heap"]) data[name].push(null);
        }
        before = process;
        const live = points.live[index];
        data.time.push(points.time[index]);
        data.live.push(live);
        const error = points.error[index]; // null: nobody knows it
        data.high.push(error === null ? null : live + error);
        data.low.push(error === null ? null : Math.max(live - error, 0));
        data.rss.push(points.rss[index]);
        data.heap.push(points.heap[index]);
    }
    return data;
}

const short = (value) => (value ? bytes(value).replace(".0 ", " ") : "0");

function times(_plot, splits, _axis, _space, step) {
    return splits.map((time) => {
        const text = new Date(time * 1000).toISOString();
        if (step >= 86400) return text.slice(5, 10);
        const clock = step < 60 ? text.slice(11, 19) : text.slice(11, 16);
        return step >= 3600 && text.slice(11, 16) === "00:00" ? text.slice(5, 10) : clock;
    });
}
