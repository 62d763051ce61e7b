// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// What can be chosen from: hosts with their rates, suspects with what is known of them, threads.

import { bytes, count, h, moment, percent, since } from "./format.js";
import { holders } from "./holders.js";
import { lifeCurve } from "./lifecurve.js";
import { sparkline } from "./sparkline.js";

export const ANSWERS = { leak: "Leak", bursts: "In bursts", overflows: "Overflows", grew: "Grew", "cannot-tell": "Cannot tell", "fills-up": "Fills up", "no-leak": "No leak" };

const [LONG, TAIL] = [14, 6]; // characters of a name that is cut in the middle, and of its end that stays

// `all` are the hosts of the unit, `hosts` those that are wanted.
export function hostButtons(all, hosts, chosen, choose) {
    const most = widest(all);
    const shared = domain(all.map((host) => host.host));
    return hosts.map((host) => {
        const name = host.host.slice(0, host.host.length - shared);
        const end = name.length > LONG ? TAIL : 0;
        const leaks = host.answer === "leak";
        return h(
            "button",
            { type: "button", class: host.answer, "aria-pressed": String(host === chosen), onclick: () => choose(host), title: `${host.host}: ${host.reason}` },
            h("span", { class: "name" }, h("span", { class: end ? "head" : null }, name.slice(0, name.length - end)), end ? name.slice(-end) : null),
            h("span", { class: "rate" }, leaks ? `${bytes(host.growth)}/day` : ANSWERS[host.answer]),
            leaks ? whisker(host, most) : host.bound ? h("span", { class: "bound" }, `none above ${bytes(host.bound)}/day`) : null,
        );
    });
}

// Healthy hosts in a line: how many, and what is known of each of them.
export function healthyLine(hosts, showAll) {
    const bounds = hosts.map((host) => host.bound);
    const words = `${count(hosts.length, "host")} without a leak${Math.min(...bounds) > 0 ? `, none above ${bytes(Math.max(...bounds))}/day` : ""}. `;
    return h("p", { class: "healthy" }, words, h("button", { type: "button", class: "link", onclick: showAll }, "Show them"));
}

// How many characters of the names are the domain that all hosts share.
function domain(names) {
    if (names.length < 2 || names.some((name) => /^[\d.]+$/.test(name))) return 0; // of an address, each part tells
    const parts = names.map((name) => name.split(".").slice(1).reverse());
    let shared = 0;
    while (parts.every((one) => one[shared] !== undefined && one[shared] === parts[0][shared])) shared++;
    return parts[0].slice(0, shared).reduce((sum, part) => sum + part.length + 1, 0);
}

// What to check is said once, however many suspects it fits.
export function suspectItems({ suspects, others_lives: others }, curveOf, find, parts) {
    const most = widest(suspects);
    const told = new Set();
    const hint = (known) => {
        const more = told.has(known.title) ? [] : [`: ${known.check} `, link(known.link)];
        told.add(known.title);
        return h("p", { class: "more" }, "Perhaps ", h("b", {}, known.title), ...more);
    };
    return suspects.map((suspect) => {
        const from = !suspect.since ? "" : ` · ${since(suspect)} ${moment(suspect.since)}`;
        const share = suspect.share === undefined ? "" : ` · ${Math.round(100 * suspect.share)} % of the growth`;
        const freed = typeof suspect.freed !== "number" ? "" : ` · ${Math.round(100 * suspect.freed)} % of what it allocated meanwhile was freed`;
        const about = `${bytes(suspect.live)} live${share}${freed}${from}`;
        return h(
            "li",
            {},
            h(
                "button",
                { type: "button", title: "Show in the graph", onclick: () => find(suspect) },
                h("span", { class: "rate" }, `${bytes(suspect.growth)}/day`, h("span", { class: "error" }, ` ± ${bytes(suspect.error)}`)),
                whisker(suspect, most),
                sparkline(curveOf(suspect)),
                h("span", { class: "path" }, suspect.short),
                h("span", { class: "more" }, about),
                lifeCurve(suspect.lives, others, parts),
            ),
            suspect.held ? h("p", { class: "more" }, h("b", {}, "Who holds it"), `: ${suspect.held.text}. ${suspect.held.next}`) : null,
            suspect.held ? holders(suspect.held, suspect.path[0]) : null,
            ...suspect.hints.map(hint),
        );
    });
}

const link = (address) => (/^https?:/.test(address) ? h("a", { href: address, rel: "noreferrer" }, address) : address);

export function threadButtons(threads, chosen, choose) {
    const whole = threads.reduce((sum, thread) => sum + thread.live, 0);
    const most = Math.max(...threads.map((thread) => thread.live), 1);
    return threads.map((thread) => {
        const bar = h("span", { class: "bar" });
        bar.style.width = `${(100 * thread.live) / most}%`;
        return h(
            "button",
            { type: "button", "aria-pressed": String(thread === chosen), onclick: () => choose(thread) },
            h("span", { class: "name" }, thread.name, thread.count > 1 ? h("span", { class: "about" }, ` × ${thread.count}`) : null),
            h("span", { class: "whisker" }, bar),
            h("span", { class: "number" }, bytes(thread.live)),
            h("span", { class: "number share" }, percent(thread.live, whole)),
        );
    });
}

// A rate with its 95 % interval on a common scale.
function whisker(suspect, most) {
    const at = (value) => Math.max(0, Math.min(100, (100 * value) / most));
    const bar = h("span", { class: "bar" });
    const interval = h("span", { class: "interval" });
    bar.style.width = `${at(suspect.growth)}%`;
    interval.style.left = `${at(suspect.growth - suspect.error)}%`;
    interval.style.width = `${at(suspect.growth + suspect.error) - at(suspect.growth - suspect.error)}%`;
    return h("span", { class: "whisker", "aria-hidden": "true" }, bar, interval);
}

const widest = (suspects) => Math.max(1, ...suspects.map((suspect) => suspect.growth + suspect.error)) * 1.02;
