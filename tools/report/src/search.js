// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// What a search finds: a regular expression, whatever the case. The text as it stands is found, too, so names with "$",
// "(" or "*" need no care.

// {matches(text), problem}: `problem` says why the search is no regular expression, else it is empty.
export function searching(wanted) {
    if (!wanted) return { matches: null, problem: "" };
    const plain = wanted.toLowerCase();
    const asText = (text) => text.toLowerCase().includes(plain);
    try {
        const pattern = new RegExp(wanted, "i");
        return { matches: (text) => pattern.test(text) || asText(text), problem: "" };
    } catch (error) {
        const why = error.message.split(": ").at(-1).toLowerCase();
        return { matches: asText, problem: `not a regular expression (${why}), so searched as plain text` };
    }
}

// How many frames of a tree match, and what they hold; nested ones count once. `width`: bytes by node.
export function counted(tree, width, hits) {
    const found = { frames: 0, bytes: 0 };
    const inside = new Uint8Array(tree.size);
    for (let node = 1; node < tree.size; node++) {
        const nested = inside[tree.parent[node]];
        const hit = width[node] > 0 && hits[tree.frame[node]];
        if (hit) found.frames++;
        if (hit && !nested) found.bytes += width[node];
        inside[node] = nested || hit ? 1 : 0;
    }
    return found;
}
