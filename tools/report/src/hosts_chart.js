// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// Live memory of all hosts of a unit in one chart, a line for each process. Which line is nearest to the pointer is said,
// and a click chooses its host.

import uPlot from "uplot";
import { axes, chartColour, resized } from "./curves.js";
import { bytes, moment } from "./format.js";

const NEAR = 24; // pixels

export class HostsChart {
    // `readout(when, parts)` shows what the pointer is at; `choose(host)` is called on a click.
    constructor(element, readout, choose) {
        Object.assign(this, { element, readout, choose });
        resized(element, () => this.plot);
    }

    show(unit, chosen, about) {
        this.chosen = chosen;
        this.about = about;
        if (this.unit === unit && this.plot) {
            this.plot.redraw(false);
            this.tell(null);
            return;
        }
        this.unit = unit;
        if (this.plot) this.plot.destroy();
        this.lines = unit.hosts.flatMap((host) => linesOf(host));
        const times = [...new Set(this.lines.flatMap((line) => line.time))].sort((a, b) => a - b);
        const most = this.lines.reduce((top, line) => Math.max(top, ...line.live), 1);
        this.plot = new uPlot(
            {
                width: this.element.clientWidth || 300,
                height: innerWidth < 600 ? 220 : 330,
                tzDate: (time) => uPlot.tzDate(new Date(time * 1000), "Etc/UTC"),
                legend: { show: false },
                cursor: { drag: { x: false, y: false }, points: { show: false } },
                scales: { y: { range: [0, most * 1.06] } },
                axes: axes(),
                series: [{}, { stroke: "transparent", points: { show: false } }],
                hooks: { draw: [(plot) => this.draw(plot)], setCursor: [() => this.tell(this.nearest())] },
            },
            [times, times.map(() => null)],
            this.element,
        );
        this.plot.over.addEventListener("click", () => {
            const line = this.nearest();
            if (line) this.choose(line.host);
        });
        this.tell(null);
    }

    draw(plot) {
        const { ctx } = plot;
        ctx.save();
        const rank = (line) => (line.host === this.chosen ? 2 : line.host.answer === "leak" ? 1 : 0);
        for (const line of [...this.lines].sort((a, b) => rank(a) - rank(b))) {
            ctx.strokeStyle = chartColour(["rss", "live", "accent"][rank(line)]);
            ctx.globalAlpha = [0.45, 0.75, 1][rank(line)];
            ctx.lineWidth = [1, 1.5, 3][rank(line)] * devicePixelRatio;
            ctx.beginPath();
            line.time.forEach((time, at) => ctx.lineTo(plot.valToPos(time, "x", true), plot.valToPos(line.live[at], "y", true)));
            ctx.stroke();
        }
        ctx.restore();
    }

    nearest() {
        const { plot } = this;
        const { left, top } = plot.cursor;
        if (left === undefined || left < 0) return null;
        let best = null;
        let least = NEAR;
        for (const line of this.lines) {
            const at = between(line, plot.posToVal(left, "x"));
            if (at === null) continue;
            const distance = Math.abs(plot.valToPos(at, "y") - top);
            if (distance < least) [best, least] = [line, distance];
        }
        return best;
    }

    tell(line) {
        const host = line ? line.host : this.chosen;
        const time = line ? this.plot.posToVal(this.plot.cursor.left, "x") : this.unit.hosts.reduce((last, one) => Math.max(last, ...one.points.time), 0);
        const live = line ? between(line, time) : linesOf(host).at(-1)?.live.at(-1);
        if (live !== undefined && live !== null) this.readout(moment(time), [[host === this.chosen ? "accent" : host.answer === "leak" ? "live" : "rss", host.host, `${bytes(live)} live, ${this.about(host)}`]]);
    }
}

function linesOf(host) {
    const lines = new Map();
    const { points } = host;
    const order = points.time.map((_time, at) => at).sort((a, b) => points.time[a] - points.time[b]);
    for (const at of order) {
        const process = points.process[at];
        if (!lines.has(process)) lines.set(process, { host, time: [], live: [] });
        lines.get(process).time.push(points.time[at]);
        lines.get(process).live.push(points.live[at]);
    }
    return [...lines.values()];
}

// The line's value at a time, or null beside its ends.
function between(line, time) {
    const { time: times, live } = line;
    if (time < times[0] || time > times.at(-1)) return null;
    const next = times.findIndex((one) => one >= time);
    if (next <= 0) return live[0];
    const part = (time - times[next - 1]) / (times[next] - times[next - 1]);
    return live[next - 1] + part * (live[next] - live[next - 1]);
}
