// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// What happened to a unit on a host, for its curves: restarts, new versions, and dumps that a trigger asked for.

import { h, moment } from "./format.js";

const MOST = 8;

// [{time, kind: "restart", "version" or "trigger", short, text}] in the order of time.
export function marksOf(host) {
    const { points, processes } = host;
    const first = new Map();
    points.process.forEach((process, at) => first.set(process, Math.min(points.time[at], first.get(process) ?? Infinity)));
    const last = new Map();
    points.process.forEach((process, at) => last.set(process, Math.max(points.time[at], last.get(process) ?? -Infinity)));
    const order = [...first.keys()].sort((a, b) => first.get(a) - first.get(b));
    const found = [];
    order.forEach((process, at) => {
        const before = order[at - 1];
        if (before === undefined || last.get(before) > first.get(process)) return; // runs beside the other
        const { start, version } = processes[process];
        const time = start > last.get(before) && start < first.get(process) ? start : first.get(process);
        const old = processes[before].version;
        if (version && version !== old) found.push({ time, kind: "version", short: version.replace(/^version /, ""), text: `restart into ${version}${old ? `, from ${old}` : ""}` });
        else found.push({ time, kind: "restart", short: "restart", text: "restart" });
    });
    (points.trigger || []).forEach((trigger, at) => {
        if (trigger) found.push({ time: points.time[at], kind: "trigger", short: trigger, text: `dump, triggered: ${trigger}` });
    });
    return found.sort((a, b) => a.time - b.time);
}

// The same in words: the newest of them.
export function markList(marks) {
    if (!marks.length) return "";
    const items = marks.slice(-MOST).map((mark) => h("li", { class: mark.kind }, h("span", { class: "when" }, moment(mark.time)), ` ${mark.text}`));
    const earlier = marks.length > MOST ? [h("li", {}, `and ${marks.length - MOST} earlier`)] : [];
    return h("ul", { class: "marks" }, ...items, ...earlier);
}
