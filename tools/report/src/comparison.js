// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// Which two dumps are compared, and how that is said. A view is {unit, host, dump, base, pair}.

import { moment } from "./format.js";

// Of a process's time, so much at its start is not compared with: trend.py does the same.
const SETTLED = 0.2;

// The dump to compare with. `wanted` is "HOST.DUMP" by number, "none", or "" for the first dump of the same process after
// its start has settled, if the shown one is newer.
export function baseline(wanted, { unit, host, dump }) {
    if (wanted === "none") return null;
    const [hostNumber, dumpNumber] = wanted.split(".").map(Number);
    const named = unit.hosts[hostNumber - 1]?.dumps[dumpNumber - 1];
    if (named) return named === dump ? null : named;
    if (host.answer === "no-leak") return null; // what grew by chance would be all red
    const own = host.dumps.filter((one) => one.process === dump.process);
    const settled = own[0].time + SETTLED * (own[own.length - 1].time - own[0].time);
    const first = own.length === 2 ? own[0] : own.find((one) => one.time >= settled);
    return first.time < dump.time ? first : null;
}

// Of one host, from the older dump to the newer; of two, from the other host to the one that is shown.
export function compared({ host, dump, base }) {
    const turned = host.dumps.includes(base) && base.time > dump.time;
    return turned ? { older: dump, newer: base } : { older: base, newer: dump };
}

const ownerOf = (one, { unit }) => unit.hosts.find((each) => each.dumps.includes(one));

// A dump as `baseline` wants it.
export function numbered(one, view) {
    const owner = ownerOf(one, view);
    return `${view.unit.hosts.indexOf(owner) + 1}.${owner.dumps.indexOf(one) + 1}`;
}

export function nameOf(one, view) {
    const owner = ownerOf(one, view);
    const when = one.name || moment(one.time);
    return owner === view.host ? when : `${owner.host}, ${when}`;
}

// Of two hosts, their ages mean nothing.
export const ofTwoHosts = ({ host, base }) => !host.dumps.includes(base);

// In words, how the shown dump stands to the one that it is compared with.
export function against(view) {
    const { dump, base } = view;
    if (ofTwoHosts(view)) return `against ${nameOf(base, view)}`;
    return base.time < dump.time ? `since ${nameOf(base, view)}` : `until ${nameOf(base, view)}, which is later`;
}

export function direction(view) {
    const { older, newer } = view.pair;
    if (ofTwoHosts(view)) return `${view.host.host}, ${nameOf(view.dump, view)}, against ${nameOf(view.base, view)}`;
    const age = (one, other) => (one.time < other.time ? "older" : "newer");
    return `from ${nameOf(older, view)} (${age(older, newer)}) to ${nameOf(newer, view)} (${age(newer, older)})`;
}
