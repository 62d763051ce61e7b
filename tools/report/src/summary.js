// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// What somebody reads who reads nothing else: one sentence for each unit, and the paths behind it.

import { bytes, count, h, moment } from "./format.js";

const WORDS = { leak: "leaks", "no-leak": "does not leak", "cannot-tell": "cannot be judged yet" };

export function headline(unit) {
    const hosts = count(unit.hosts.length, "host");
    const name = h("span", { class: "unit" }, unit.unit);
    if (unit.answer !== "leak") return [name, ` ${WORDS[unit.answer]} (${hosts})`];
    const each = unit.leaking > 1 ? " each" : "";
    const since = unit.since === null ? "" : `, since ${unit.since_before ? "before " : "about "}${moment(unit.since)}`;
    return [
        name,
        " leaks ",
        h("strong", {}, `${bytes(unit.growth)} a day`),
        h("span", { class: "error" }, ` ± ${bytes(unit.error)}`),
        `${each} on `,
        h("strong", {}, `${unit.leaking} of ${hosts}`),
        since,
    ];
}

export function card(unit, chosen, choose) {
    const several = unit.hosts.length > 1;
    const paths = unit.suspects.slice(0, 2).map((suspect) => {
        const rate = `${bytes(suspect.growth)}/day${several ? ` on ${count(suspect.hosts.length, "host")}` : ""}`;
        const label = suspect.label ? `, appeared with version ${suspect.label}` : "";
        return h("span", {}, h("span", { class: "path" }, suspect.short), h("span", { class: "about" }, rate + label));
    });
    const reason = unit.answer === "leak" ? paths : [h("span", { class: "reason" }, unit.hosts[0].reason)];
    return h(
        "button",
        { type: "button", class: `card ${unit.answer}`, "aria-pressed": String(chosen), onclick: choose },
        h("span", { class: "sentence" }, ...headline(unit)),
        ...reason,
    );
}
