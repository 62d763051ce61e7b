// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// Two handles on the time in which what lives still was born, as memray has them: of what was born between them, how
// much lives at the end. What a program keeps from its start is so left out, and a burst is looked at alone.

import { bytes, h, moment } from "./format.js";

// The parts of the time that were chosen, as [first, end): "3-12" counts them from 1. All of them if that names none.
export function partsOf(wanted, count) {
    const [first, end] = (/^(\d+)-(\d+)$/.exec(wanted) || [0, 1, count]).slice(1).map(Number);
    return first >= 1 && first <= end && end <= count ? [first - 1, end] : [0, count];
}

export const bornIn = (lives, [first, end]) => lives.born.slice(first, end).reduce((sum, size) => sum + size, 0);

export class BirthsRange {
    // `changed` is told what partsOf understands, or "" for the whole time.
    constructor(changed) {
        const moved = (from) => {
            const [first, end] = [Number(this.from.value), Number(this.until.value)];
            const chosen = first < end ? [first, end] : from ? [end - 1, end] : [first, first + 1];
            changed(chosen[0] === 0 && chosen[1] === this.count ? "" : `${chosen[0] + 1}-${chosen[1]}`);
        };
        const handle = (name, from) => h("input", { type: "range", min: 0, step: 1, "aria-label": name, oninput: () => moved(from) });
        this.from = handle("Born from", true);
        this.until = handle("Born until", false);
        this.told = h("output", {});
        this.element = h("div", { class: "handles" }, h("span", { class: "two" }, this.from, this.until), this.told);
    }

    show(suspects, wanted) {
        const known = suspects.map((suspect) => suspect.lives).filter(Boolean);
        this.element.hidden = !known.length;
        if (!known.length) return null;
        const { born, began, now } = known[0];
        this.count = born.length;
        const parts = partsOf(wanted, this.count);
        const when = (part) => moment(began + ((now - began) * part) / this.count);
        for (const [input, part] of [[this.from, parts[0]], [this.until, parts[1]]]) {
            input.max = this.count;
            input.value = part;
            input.setAttribute("aria-valuetext", when(part));
        }
        const sum = known.reduce((all, lives) => all + bornIn(lives, parts), 0);
        this.told.textContent = `Born from ${when(parts[0])} to ${when(parts[1])}, and live still: ${bytes(sum)} in the suspects`;
        return parts;
    }
}
