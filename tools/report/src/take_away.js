// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// What can be taken from the graph: a stack as text, and all that is shown as folded stacks or as a picture.

import { shape } from "./format.js";

const XML = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
const escaped = (text) => String(text).replace(/[&<>"]/g, (sign) => XML[sign]);
// Trees of these kinds have the function that allocates on top.
const TURNED = ["up", "callers"];

// The nodes from `all` to this one.
function down(tree, node) {
    const path = [];
    for (let at = node; at >= 0; at = tree.parent[at]) path.push(at);
    return path.reverse();
}

// A line for each frame, the function that allocates first, with its library and what `source` says of a node.
export function stackText({ tree, frames }, node, about, source) {
    const path = down(tree, node).slice(tree.kind === "callees" ? 0 : 1);
    if (!TURNED.includes(tree.kind)) path.reverse();
    const line = (at) => {
        const [frame, where] = [tree.frame[at], source(at)];
        const known = [frames.module[frame], where].filter(Boolean).join(", ");
        return frames.name[frame] + (known && `  (${known})`);
    };
    return [about, ...path.map((at) => `    ${line(at)}`)].join("\n");
}

// The stacks through the node that is zoomed to, as the widths have them: [{path, size}]. A path has nodes, the function that
// allocates last; none if the stack is not known.
export function stacksShown({ tree, values, zoom }) {
    const own = Float64Array.from(values.width);
    for (let node = 1; node < tree.size; node++) own[tree.parent[node]] -= values.width[node];
    const within = new Uint8Array(tree.size);
    within[zoom] = 1;
    const found = [];
    for (let node = zoom; node < tree.size; node++) {
        if (node !== zoom) within[node] = within[tree.parent[node]];
        if (!within[node] || own[node] < 0.5) continue;
        const path = down(tree, node).slice(tree.kind === "callees" ? 0 : 1);
        if (TURNED.includes(tree.kind)) path.reverse();
        found.push({ path, size: Math.round(own[node]) });
    }
    return found;
}

// main;read;inflate 1048576
export function foldedText(stacks, nameOf) {
    const names = (path) => path.map((node) => nameOf(node).replaceAll(";", ":")).join(";") || "[no stack]";
    return stacks.map(({ path, size }) => `${names(path)} ${size}\n`).join("");
}

// `boxes`: [{x, y, w, h, fill, text, title, color, bold}] as they are drawn.
export function picture(boxes, width, height, background, title) {
    const box = (one) =>
        `<g><title>${escaped(one.title)}</title><rect x="${one.x.toFixed(1)}" y="${one.y}" width="${one.w.toFixed(1)}" height="${one.h}" fill="${escaped(one.fill)}"/>` +
        (one.text ? `<text x="${(one.x + 4).toFixed(1)}" y="${one.y + one.h - 6}" fill="${escaped(one.color)}"${one.bold ? ' font-weight="bold"' : ""}>${escaped(one.text)}</text>` : "") +
        "</g>";
    return [
        `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" font-family="monospace" font-size="12">`,
        `<title>${escaped(title)}</title><rect width="100%" height="100%" fill="${escaped(background)}"/>`,
        ...boxes.map(box),
        "</svg>\n",
    ].join("\n");
}

// The call graph with its title and a background, as a file.
export function callPicture(svg, background, title) {
    const [told, behind] = [shape("title", {}), shape("rect", { width: "100%", height: "100%", fill: background })];
    told.textContent = title;
    svg.prepend(told, behind);
    return `${new XMLSerializer().serializeToString(svg)}\n`;
}

export async function toClipboard(text) {
    try {
        await navigator.clipboard.writeText(text);
        return true;
    } catch {
        return false;
    }
}

// Has the browser save a file.
export function save(name, type, content) {
    const address = URL.createObjectURL(new Blob([content], { type }));
    const link = document.createElement("a");
    link.href = address;
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(address), 1000);
}
