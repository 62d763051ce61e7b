// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// What somebody reads who reads nothing else: one sentence for each unit, and the paths behind it.

import { bytes, count, duration, h, moment, signed, since } from "./format.js";

const NAMED = 3; // hosts
const WORDS = { leak: "leaks", bursts: "grows in bursts", overflows: "fills up beyond its limit", grew: "grew, and has stood since", "cannot-tell": "cannot be judged yet", "fills-up": "fills up", "no-leak": "does not leak" };

export function headline(unit) {
    const hosts = count(unit.hosts.length, "host");
    const name = h("span", { class: "unit" }, unit.unit);
    if (unit.answer !== "leak") return [name, ` ${WORDS[unit.answer]} (${hosts})`];
    const leaking = unit.hosts.filter((host) => host.answer === "leak").sort((a, b) => a.growth - b.growth);
    const from = unit.since === null ? [] : [`, ${since(unit)} `, h("span", { class: "unbroken" }, moment(unit.since))];
    const error = (host) => h("span", { class: "error" }, ` ± ${bytes(host.error)}`);
    const [least, most] = [leaking[0], leaking.at(-1)];
    const lower = leaking.length > 1 ? [h("strong", {}, bytes(least.growth)), error(least), " to "] : [];
    return [
        name,
        " leaks ",
        ...lower,
        h("strong", {}, bytes(most.growth)),
        error(most),
        h("strong", {}, " a day"),
        " on ",
        h("strong", {}, `${unit.leaking} of ${hosts}`),
        h("span", { class: "which" }, ` (${named(leaking)})`),
        ...from,
        h("span", { class: "about" }, watched(leaking)),
    ];
}

// The hosts that leak most, by name.
function named(leaking) {
    const first = leaking.slice(-NAMED).reverse().map((host) => host.host);
    const left = leaking.length - first.length;
    return left > 0 ? `${first.join(", ")} and ${left} more` : first.join(", ");
}

// How long the leaking processes were watched, and what that is at their rate. What live memory gained meanwhile would be
// another number: start-up and paths that do not leak are part of it.
function watched(hosts) {
    const spans = hosts.map((host) => {
        const own = host.points.time.filter((_time, at) => host.processes[host.points.process[at]].key === host.process);
        const seconds = Math.max(...own) - Math.min(...own);
        return { seconds, gained: (host.growth * seconds) / 86400 };
    });
    const range = (values, text) => {
        const [low, high] = [Math.min(...values), Math.max(...values)].map(text);
        return low === high ? low : `${low} to ${high}`;
    };
    return `${range(spans.map((one) => one.gained), signed)} in the ${range(spans.map((one) => one.seconds), duration)} watched`;
}

export function card(unit, chosen, choose) {
    const several = unit.hosts.length > 1;
    const paths = unit.suspects.slice(0, 2).map((suspect) => {
        const rate = `${bytes(suspect.growth)}/day${several ? ` on ${count(suspect.hosts.length, "host")}` : ""}`;
        const label = suspect.label ? `, appeared with version ${suspect.label}` : "";
        return h("span", {}, h("span", { class: "path" }, suspect.short), h("span", { class: "about" }, rate + label));
    });
    const [first] = unit.hosts; // what it has found is not what others have
    const reason = unit.answer === "leak" ? paths : [h("span", { class: "reason" }, (several ? `on ${first.host}: ` : "") + first.reason)];
    return h(
        "button",
        { type: "button", class: `card ${unit.answer}`, "aria-pressed": String(chosen), onclick: choose },
        h("span", { class: "sentence" }, ...headline(unit)),
        ...reason,
    );
}
