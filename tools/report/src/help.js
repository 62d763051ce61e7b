// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// The help dialog: what the keys do, and how to read the graph.

import { h } from "./format.js";

const KEYS = [
    ["/", "search: a regular expression, over functions and libraries"],
    ["n N", "next and previous frame that the search has found, the largest first"],
    [", .", "earlier and later dump"],
    ["Shift", "and a click on a curve: compare with that time"],
    ["g", "live memory, or only what has grown"],
    ["i", "turn the graph over: from malloc, or from main"],
    ["w", "call graph: who calls whom; again for the flame graph"],
    ["f", "fold libraries, or show them"],
    ["arrows", "move in the graph, once it has the focus (Tab)"],
    ["Enter", "zoom to the frame; again on an upper one zooms out"],
    ["s", "callers and callees of the frame"],
    ["h", "hide all stacks through the frame, as Alt and a click do"],
    ["u", "show again all that is hidden"],
    ["c C", "copy the frame's name, or its whole stack"],
    ["d", "dark or light"],
    ["p", "the palette for the colour-blind, or the usual one"],
    ["Esc", "back: tooltip, search, zoom, what is hidden"],
    ["?", "this help"],
];
const READING = [
    ["flat, cum", "what a function allocated itself, and itself plus everything it called."],
    ["±", "95 % confidence interval of the sampling. Grey: any change is within it."],
    ["call graph", "the larger a box, the more its function allocated itself; the wider an arrow, the more goes through the call."],
    ["width", "live bytes in the dump that is shown, or what has grown or shrunk between two dumps."],
    ["bold", "your code: functions in the service's executable, and Java, Python or Node functions outside the standard library."],
];

export function helpDialog() {
    const list = (entries, tag) => h("dl", {}, ...entries.flatMap(([term, text]) => [h("dt", {}, h(tag, {}, term)), h("dd", {}, text)]));
    const dialog = h("dialog", { id: "help", "aria-labelledby": "help-title" });
    dialog.append(
        h("h2", { id: "help-title" }, "Help"),
        h("h3", {}, "Keys"),
        list(KEYS, "kbd"),
        h("h3", {}, "Reading it"),
        list(READING, "b"),
        h("button", { type: "button", autofocus: true, onclick: () => dialog.close() }, "Close"),
    );
    return dialog;
}
