// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// Draws the page that export/flamegraph.py writes. Whatever a host has sent is put into the page as text, never as
// markup; styles are set through the CSSOM, since the page's policy allows no inline ones.

import flamegraph from "d3-flame-graph";
import { select } from "d3-selection";

const data = JSON.parse(document.getElementById("profile").textContent);
const byId = (id) => document.getElementById(id);
const chartElement = byId("chart");
const tip = byId("tip");
const CONFIDENCE = 1.96;
const CELL = 20;

function bytes(value) {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let scaled = Math.abs(value);
    let unit = 0;
    while (scaled >= 1023.95 && unit < units.length - 1) {
        scaled /= 1024;
        unit++;
    }
    return (value < 0 ? "−" : "") + (unit ? scaled.toFixed(1) : Math.round(scaled)) + " " + units[unit];
}

const error = (value) => CONFIDENCE * Math.sqrt(Math.max(data.interval > 1 ? data.interval : 0, 0) * Math.abs(value));
const withError = (value) => `${bytes(value)} ± ${bytes(error(value))}`;
const percent = (part, whole) => (whole ? `${((100 * part) / whole).toFixed(1)} %` : "–");

// The tree comes as columns in preorder; a view shows one of them (live bytes, or bytes that came) as widths.
function tree(widths) {
    const nodes = data.parents.map((parent, index) => ({
        index,
        frame: data.frames[data.frame[index]],
        name: data.frames[data.frame[index]].name,
        value: widths[index],
        children: [],
    }));
    nodes.forEach((node, index) => {
        if (index && node.value > 0) nodes[data.parents[index]].children.push(node);
    });
    for (const node of nodes) node.children.sort((a, b) => b.value - a.value);
    return nodes;
}

const views = {
    live: { widths: data.live, total: data.live[0], nodes: null },
    grown: { widths: data.grown, total: data.grown[0], nodes: null },
};
let view = views.live;
let chart = null;
let root = null;

function hue(text) {
    let hash = 7;
    for (let i = 0; i < text.length; i++) hash = (hash * 31 + text.charCodeAt(i)) >>> 0;
    return 190 + (hash % 90); // blues to violets: red is for what grows
}

const dark = matchMedia("(prefers-color-scheme: dark)");

function color(node) {
    const { index, frame } = node.data;
    if (node.highlight) return dark.matches ? "#f5d547" : "#ffe14d";
    const share = data.live[index] > 0 ? Math.min(data.suspect[index] / data.live[index], 1) : 0;
    if (share > 0.005) {
        const strength = Math.sqrt(share);
        return dark.matches
            ? `hsl(${36 - 30 * strength} ${45 + 20 * strength}% ${34 + 9 * strength}%)`
            : `hsl(${42 - 32 * strength} ${70 + 20 * strength}% ${84 - 18 * strength}%)`;
    }
    const strong = frame.bare || frame.kind === "unknown" ? 0.35 : 1;
    const tint = MANAGED.includes(frame.kind) ? 150 : hue(frame.module);
    return dark.matches
        ? `hsl(${tint} ${Math.round(22 * strong)}% 33%)`
        : `hsl(${tint} ${Math.round(42 * strong)}% 86%)`;
}

function line(text, kind) {
    const element = document.createElement("div");
    element.textContent = text;
    if (kind) element.className = kind;
    return element;
}

const KINDS = { jit: "code made at run time", inlined: "inlined", unknown: "in no mapping" };
const MANAGED = ["java", "python", "js"];

function describe(node) {
    const { index, frame } = node.data;
    const where = [frame.module, KINDS[frame.kind], frame.file].filter(Boolean).join(" · ");
    const lines = [line(frame.name, "name")];
    if (where) lines.push(line(where, "where"));
    lines.push(line(`${withError(data.live[index])} live, ${percent(data.live[index], data.live[0])} of all`));
    if (data.baseline) {
        const change = data.change[index];
        lines.push(line(`${change < 0 ? "" : "+"}${withError(change)} since ${data.baseline}`));
    }
    if (data.suspect[index] > 0) {
        lines.push(line(`on a suspected path with ${percent(data.suspect[index], data.live[index])} of it`, "hot"));
    }
    return lines;
}

function place(event) {
    const box = tip.getBoundingClientRect();
    const x = Math.min(event.clientX + 14, innerWidth - box.width - 8);
    const y = event.clientY + 18 + box.height > innerHeight ? event.clientY - box.height - 12 : event.clientY + 18;
    tip.style.left = `${Math.max(8, x)}px`;
    tip.style.top = `${Math.max(8, y)}px`;
}

function tooltip() {}
tooltip.show = (event, node) => {
    tip.replaceChildren(...describe(node));
    tip.hidden = false;
    place(event);
};
tooltip.hide = () => {
    tip.hidden = true;
};
chartElement.addEventListener("mousemove", (event) => {
    if (!tip.hidden) place(event);
});

function matches(node, term) {
    const needle = term.toLowerCase();
    return Boolean(needle) && `${node.data.frame.name} ${node.data.frame.module}`.toLowerCase().includes(needle);
}

function draw() {
    if (!view.nodes) view.nodes = tree(view.widths);
    for (const node of view.nodes) {
        node.fade = false;
        node.hide = false;
    }
    chartElement.replaceChildren();
    byId("empty").hidden = view.total > 0;
    if (!(view.total > 0)) return;
    chart = flamegraph()
        .width(chartElement.clientWidth)
        .cellHeight(CELL)
        .minFrameSize(1.5)
        .inverted(true)
        .selfValue(false)
        .transitionDuration(0)
        .tooltip(tooltip)
        .setColorMapper(color)
        .setSearchMatch(matches)
        .setSearchHandler((results, sum) => {
            byId("found").textContent = results.length
                ? `${results.length} frame${results.length === 1 ? "" : "s"}, ${bytes(sum)}, ${percent(sum, view.total)}`
                : "nothing found";
        })
        .onClick((node) => {
            byId("reset").disabled = !node.parent;
        });
    const selection = select(chartElement).datum(view.nodes[0]);
    selection.call(chart);
    root = selection.datum();
    if (!matchMedia("(prefers-reduced-motion: reduce)").matches) chart.transitionDuration(220);
    byId("reset").disabled = true;
    search();
}

function search() {
    const term = byId("search").value.trim();
    if (!chart) return;
    if (term) {
        chart.search(term);
    } else {
        chart.clear();
        byId("found").textContent = "";
    }
}

function zoomToIndex(index) {
    if (!root || !(view.widths[index] > 0)) return;
    const node = root.descendants().find((candidate) => candidate.data.index === index);
    if (node) chart.zoomTo(node);
}

for (const option of document.querySelectorAll("input[name=view]")) {
    option.addEventListener("change", () => {
        view = views[option.value];
        draw();
    });
}
for (const button of document.querySelectorAll("button[data-node]")) {
    button.addEventListener("click", () => zoomToIndex(Number(button.dataset.node)));
}
byId("search").addEventListener("input", search);
byId("reset").addEventListener("click", () => {
    chart.resetZoom();
    byId("reset").disabled = true;
});
document.addEventListener("keydown", (event) => {
    if (event.key === "/" && document.activeElement !== byId("search")) {
        event.preventDefault();
        byId("search").focus();
    } else if (event.key === "Escape") {
        if (byId("search").value) {
            byId("search").value = "";
            search();
        } else if (!byId("reset").disabled) {
            byId("reset").click();
        }
    }
});
dark.addEventListener("change", () => chart && chart.update());
let pending = 0;
let width = chartElement.clientWidth;
addEventListener("resize", () => {
    clearTimeout(pending);
    pending = setTimeout(() => {
        if (chart && chartElement.clientWidth !== width) {
            width = chartElement.clientWidth;
            chart.width(width).update();
        }
    }, 100);
});
draw();
