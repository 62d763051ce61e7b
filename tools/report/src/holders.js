// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// By which way a path's blocks are held, from the root to them, a line for each part: the sentence above says the same.

import { h } from "./format.js";

const NOBODY = { lost: "nothing", unseen: "unclear", otherwise: "other ways" };

export function holders(held, function_) {
    const line = ({ kind, share, way }) => {
        const steps = way.length ? way : [NOBODY[kind]];
        const boxes = [...steps, `what ${function_} made`].map((words) => h("span", { class: "box" }, words));
        return h("div", { class: kind }, h("span", { class: "share" }, `${Math.round(100 * share)} %`), ...boxes);
    };
    return h("div", { class: "holders", "aria-hidden": "true" }, ...held.parts.map(line));
}
