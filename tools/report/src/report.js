// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// The page: reads its data, builds what is on it, and keeps all parts at the same unit, host and time.

import "uplot/dist/uPlot.min.css";
import "./report.css";
import * as address from "./address.js";
import { Curves } from "./curves.js";
import { Flame, darkness, legend } from "./flame.js";
import { bytes, count, h, moment, percent, replace, showSeconds, signed } from "./format.js";
import { waterfall } from "./memory.js";
import { Stacks, measure } from "./stacks.js";
import { ANSWERS, hostButtons, suspectItems, threadButtons } from "./lists.js";
import { card } from "./summary.js";
import { triage } from "./triage.js";

const data = JSON.parse(document.getElementById("data").textContent);
// Of a process's time, so much at its start is not compared with: trend.py does the same.
const SETTLED = 0.2;
const report = document.getElementById("report");
const frames = data.frames;
const stacksOf = new Map();

let state = address.read();
let unit, host, dump, base, pair, what, thread, stacks, tree, values;

// ---- the parts of the page that stay

const el = {};
function make(name, tag, properties = {}, ...children) {
    el[name] = h(tag, { id: name, ...properties }, ...children);
    return el[name];
}
const panel = (name, title, ...children) => make(name, "section", { class: "panel" }, h("h2", {}, title), ...children);
const button = (name, text, onclick, more = {}) => make(name, "button", { type: "button", onclick, ...more }, text);
const choice = (group, value, text) =>
    h("label", {}, h("input", { type: "radio", name: group, value, onchange: () => go({ [group]: value, zoom: "" }) }), h("span", {}, text));

function build() {
    report.append(
        h("header", {}, h("h1", {}, "Native memory"), h("p", { class: "scope" }, scope())),
        make("cards", "nav", { "aria-label": "Units" }),
        panel("hosts", "Hosts", make("hostlist", "div", { class: "hostlist" })),
        h(
            "div",
            { class: "pair" },
            panel("growth", "Growth", make("readout", "p", { class: "readout" }), make("plot", "div"), h("p", { class: "hint" }, "Each point is a dump. Click one to see its stacks below.")),
            panel("memory", "Where the resident memory is", make("reconciled", "div")),
        ),
        panel("suspected", "Suspects", make("suspects", "ol")),
        panel("stacks", "Stacks", controls(), make("detail", "p", { class: "detail", "aria-live": "polite" }), graphs()),
        panel("threads", "Threads", make("threadlist", "div")),
        ...(data.triage?.length ? [panel("triage", "Triage: growth by kind of memory", triage(data.triage))] : []),
        h("footer", {}, make("fineprint", "p"), h("p", {}, keys())),
        make("tip", "div", { role: "tooltip", hidden: true }),
    );
}

function scope() {
    if (data.from === null) return "There are no dumps.";
    const hosts = new Set(data.units.flatMap((each) => each.hosts.map((one) => one.host))).size;
    const dumps = data.units.reduce((sum, each) => sum + each.hosts.reduce((all, one) => all + one.points.time.length, 0), 0);
    const until = moment(data.to);
    return `${count(data.units.length, "unit")} on ${count(hosts, "host")}, ${count(dumps, "dump")}, ${moment(data.from).replace(" UTC", "")} to ${until}`;
}

function controls() {
    return h(
        "div",
        { class: "controls" },
        h(
            "div",
            { class: "time" },
            button("earlier", "◀", () => step(-1), { "aria-label": "Earlier dump", title: "Earlier dump ( , )" }),
            make("slider", "input", { type: "range", min: 0, step: 1, "aria-label": "Time", oninput: () => go({ dump: String(Number(el.slider.value) + 1) }) }),
            button("later", "▶", () => step(1), { "aria-label": "Later dump", title: "Later dump ( . )" }),
            make("when", "output"),
        ),
        h("label", { class: "versus" }, "compared with ", make("base", "select", { onchange: () => go({ base: el.base.value, zoom: "" }) })),
        h("fieldset", { class: "views", "aria-label": "Width" }, choice("what", "live", "Live"), choice("what", "grown", "Grown"), choice("what", "shrunk", "Shrunk")),
        h("fieldset", { class: "views", "aria-label": "Direction" }, choice("from", "root", "From main"), choice("from", "leaf", "From malloc")),
        make("search", "input", { type: "search", placeholder: "Search  ( / )", "aria-label": "Search functions and libraries", autocomplete: "off", spellcheck: "false", oninput: () => go({ find: el.search.value.trim() }) }),
        make("found", "output"),
        button("reset", "Reset", () => go({ zoom: "", around: "", thread: "" }), { title: "Whole graph ( Esc )" }),
        button("copy", "Copy link", copy),
    );
}

function graphs() {
    const events = (which) => ({
        hover: (node, event) => hover(which, node, event),
        select: (node) => select(which, node),
        open: (node) => go({ around: String(which().tree.frame[node] + 1), zoom: "" }, true),
    });
    const place = (name, about) => h("div", { class: "graph" }, make(name, "canvas", { tabindex: 0, role: "application", "aria-label": about }));
    const parts = [
        make("legend", "p", { class: "legend" }),
        make("above", "h3", {}),
        place("callers", "Callers of the function; arrow keys move"),
        make("below", "h3", {}),
        place("graph", "Flame graph; arrow keys move, Enter zooms, s shows callers and callees"),
        make("empty", "p", { class: "note" }, "Nothing of this kind here."),
    ];
    el.main = new Flame(el.graph, frames, events(() => el.main));
    el.up = new Flame(el.callers, frames, events(() => el.up));
    return h("div", {}, ...parts);
}

const keys = () =>
    "Keys: / search · , and . earlier and later dump · i turn the graph over · g live or grown · in the graph: arrows move, Enter zooms, s shows callers and callees · Esc back.";

// ---- what is chosen

function go(change, remember = false) {
    state = { ...state, ...change };
    address.write(state, remember);
    show();
}

function step(by) {
    const next = Math.min(Math.max(host.dumps.indexOf(dump) + by, 0), host.dumps.length - 1);
    go({ dump: String(next + 1) });
}

function choose() {
    unit = data.units.find((each) => each.unit === state.unit) || data.units[0];
    host = unit.hosts.find((each) => each.host === state.host) || unit.hosts[0];
    if (!stacksOf.has(unit)) {
        stacksOf.clear();
        if (!unit.stacks) unit.stacks = new Stacks(unit, frames);
        stacksOf.set(unit, unit.stacks);
    }
    stacks = stacksOf.get(unit);
    dump = host.dumps[Number(state.dump) - 1] || host.dumps[host.dumps.length - 1];
    thread = dump === host.dumps[host.dumps.length - 1] ? host.threads[Number(state.thread) - 1] : undefined;
    base = thread ? null : baseline();
    pair = base && compared();
    const wanted = state.what || (host.answer === "leak" && host.dumps.includes(base) ? "grown" : "live");
    what = pair ? wanted : "live";
}

// "HOST.DUMP" by number, "none", or by default the first dump of the same process after its start has settled, if the
// chosen one is newer.
function baseline() {
    if (state.base === "none") return null;
    const [hostNumber, dumpNumber] = state.base.split(".").map(Number);
    const named = unit.hosts[hostNumber - 1]?.dumps[dumpNumber - 1];
    if (named) return named === dump ? null : named;
    const own = host.dumps.filter((one) => one.process === dump.process);
    const settled = own[0].time + SETTLED * (own[own.length - 1].time - own[0].time);
    const first = own.find((one) => one.time >= settled);
    return first.time < dump.time ? first : null;
}

// Of one host, from the older dump to the newer; of two, from the other host to the one that is shown.
function compared() {
    const turned = host.dumps.includes(base) && base.time > dump.time;
    return turned ? { older: dump, newer: base } : { older: base, newer: dump };
}

// In words, how the shown dump stands to the one that it is compared with, and which of them is older.
function against() {
    if (host.dumps.includes(base)) return base.time < dump.time ? `since ${nameOf(base)}` : `until ${nameOf(base)}, which is later`;
    return `against ${nameOf(base)}, the ${base.time < dump.time ? "older" : "newer"} of the two`;
}

function direction() {
    const age = (one, other) => (one.time < other.time ? "older" : "newer");
    const { older, newer } = pair;
    return `from ${nameOf(older)} (${age(older, newer)}) to ${nameOf(newer)} (${age(newer, older)}):`;
}

const nameOf = (one) => {
    const owner = unit.hosts.find((each) => each.dumps.includes(one));
    return owner === host ? moment(one.time) : `${owner.host}, ${moment(one.time)}`;
};

// ---- showing it

function show() {
    if (!data.units.length) return;
    choose();
    showSummary();
    showHost();
    showStacks();
    showThreads();
}

function showSummary() {
    replace(
        el.cards,
        ...data.units.map((each) =>
            card(each, each === unit, () => go({ unit: each.unit, host: "", dump: "", base: "", zoom: "", around: "", thread: "" }, true)),
        ),
    );
    el.hosts.hidden = unit.hosts.length < 2;
    const pick = (one) => go({ unit: unit.unit, host: one.host, dump: "", base: "", zoom: "", thread: "" }, true);
    const list = hostButtons(unit.hosts, host, pick);
    replace(el.hostlist, ...list);
}

let curves;
function showHost() {
    const process = host.processes[dump.process];
    document.title = `${unit.unit} on ${host.host}: native memory`;
    const about = [process.exe, `process ${process.pid}`, process.version && `version ${process.version}`].filter(Boolean).join(" · ");
    el.growth.querySelector("h2").replaceChildren("Growth on ", h("span", { class: "name" }, host.host), h("span", { class: "about" }, about));
    curves ||= new Curves(el.plot, showReadout, (index) => go({ dump: String(index + 1) }));
    curves.show(host, { now: dump.time, base: base && host.dumps.includes(base) ? base.time : null });
    const distance = (one) => Math.abs(one.time - dump.time);
    const known = host.dumps.filter((one) => one.memory && one.process === dump.process).sort((a, b) => distance(a) - distance(b))[0];
    el.memory.querySelector("h2").replaceChildren("Where the resident memory is", h("span", { class: "about" }, known ? moment(known.time) : ""));
    el.reconciled.replaceChildren(...waterfall(known && known.memory));
    const items = suspectItems(host.suspects, curveOf, find);
    const nothing = h("li", { class: "note" }, `${host.headline}: ${host.reason}.`);
    replace(el.suspects, ...(items.length ? items : [nothing]));
}

function showReadout(when, parts) {
    const shown = parts.map(([kind, name, value]) => h("span", { class: "key" }, h("i", { class: `swatch ${kind}` }), `${name} `, h("b", {}, value)));
    el.readout.replaceChildren(...shown, h("span", { class: "when" }, when));
}

function showControls() {
    const index = host.dumps.indexOf(dump);
    el.slider.max = host.dumps.length - 1;
    el.slider.value = index;
    el.slider.setAttribute("aria-valuetext", moment(dump.time));
    el.when.textContent = moment(dump.time);
    el.earlier.disabled = index === 0;
    el.later.disabled = index === host.dumps.length - 1;
    const value = (one) => `${unit.hosts.findIndex((each) => each.dumps.includes(one)) + 1}.${unit.hosts.find((each) => each.dumps.includes(one)).dumps.indexOf(one) + 1}`;
    const option = (one, text) => h("option", { value: value(one), selected: one === base }, text);
    const own = host.dumps.filter((one) => one !== dump).map((one) => option(one, `${moment(one.time)} (${signed(one.total)})`.replace("(+", "(")));
    const others = unit.hosts.filter((each) => each !== host).slice(0, 200).map((each) => option(each.dumps.at(-1), `${each.host} (${ANSWERS[each.answer].toLowerCase()})`));
    const versions = new Map();
    for (const each of unit.hosts) {
        for (const one of each.dumps) {
            const version = each.processes[one.process].version;
            if (version && version !== host.processes[dump.process].version) versions.set(version, one);
        }
    }
    const labels = [...versions].map(([version, one]) => option(one, `version ${version} (${nameOf(one)})`));
    const group = (text, options) => (options.length ? h("optgroup", { label: text }, ...options) : null);
    el.base.replaceChildren(
        ...[h("option", { value: "none" }, "nothing"), group("Another time", own), group("Another host, newest dump", others), group("Another version", labels)].filter(Boolean),
    );
    el.base.value = base ? value(base) : "none";
    el.base.disabled = Boolean(thread);
    for (const input of document.querySelectorAll("input[name=what]")) {
        input.checked = input.value === what;
        input.disabled = !base && input.value !== "live";
    }
    for (const input of document.querySelectorAll("input[name=from]")) {
        input.checked = input.value === (state.from === "leaf" ? "leaf" : "root");
        input.disabled = Boolean(state.around);
    }
    if (document.activeElement !== el.search) el.search.value = state.find;
    el.reset.disabled = !(state.zoom || state.around || thread);
}

function showStacks() {
    showControls();
    const around = Number(state.around) - 1;
    const sandwich = around >= 0 && around < frames.name.length;
    tree = stacks.tree(sandwich ? "callees" : state.from === "leaf" ? "up" : "down", sandwich ? around : -1);
    const shown = thread || dump;
    const suspects = new Set(host.suspects.flatMap((suspect) => suspect.nodes));
    const prepare = (which) => {
        which.arrange(stacks.dumps);
        return { ...measure(which, shown, pair, what, suspects), interval: unit.interval, confidence: data.confidence };
    };
    values = prepare(tree);
    const needle = state.find.toLowerCase();
    el.main.search = el.up.search = needle;
    el.main.show(tree, values);
    const zoom = Number(state.zoom) || 0;
    el.main.zoom = zoom > 0 && zoom < tree.size ? zoom : 0;
    el.main.draw();
    el.callers.parentElement.hidden = el.above.hidden = el.below.hidden = !sandwich;
    if (sandwich) {
        const callers = stacks.tree("callers", around);
        el.up.show(callers, prepare(callers));
        const name = frames.name[around];
        el.above.replaceChildren("Callers of ", h("span", { class: "name" }, name));
        el.below.replaceChildren("What ", h("span", { class: "name" }, name), " calls");
    }
    el.empty.hidden = values.width[0] > 0;
    const { found } = el.main;
    el.found.textContent = !needle ? "" : found.frames ? `${count(found.frames, "frame")}, ${bytes(found.bytes)}, ${percent(found.bytes, values.width[0])}` : "nothing found";
    el.legend.replaceChildren(...legend(pair && direction()));
    const title = [`Stacks on ${host.host}`];
    if (thread) title.push(`, thread ${thread.name}`);
    el.stacks.querySelector("h2").replaceChildren(...title);
    describe(el.main, el.main.zoom);
    const rest = unit.left_out > 0 ? ` Of each dump the largest stacks are here; none that is left out, and shown as [smaller stacks], makes up more than ${percent(unit.left_out, 1)} of a dump.` : "";
    el.fineprint.textContent = unit.sizes + rest;
}

function showThreads() {
    el.threads.hidden = host.threads.length < 2;
    const pick = (one) => go({ thread: one === thread ? "" : String(host.threads.indexOf(one) + 1), dump: "", zoom: "" }, true);
    replace(el.threadlist, h("p", { class: "hint" }, "By the thread that allocated, in the newest dump. Choose one to see its stacks alone."), ...threadButtons(host.threads, thread, pick));
}

// ---- frames

const KINDS = { jit: "code made at run time", inlined: "inlined", unknown: "in no mapping" };

const errorOf = (live) => (unit.interval > 1 ? data.confidence * Math.sqrt(unit.interval * live) : 0);

function lines(flame, node) {
    const { tree: of, values: at } = flame;
    const frame = of.frame[node];
    const now = at.now[node];
    const where = [frames.module[frame], KINDS[frames.kind[frame]]].filter(Boolean).join(" · ");
    const found = [["name", frames.name[frame]]];
    if (where) found.push(["where", where]);
    found.push(["", `${bytes(now)} ± ${bytes(errorOf(now))} live, ${percent(now, at.now[0])}`]);
    if (pair) {
        const [older, newer] = [at.older[node], at.newer[node]];
        const words = older === 0 ? "new" : newer === 0 ? "gone" : signed(newer - older);
        const doubt = flame.significant(node) ? "" : ", no more than sampling explains";
        const then = `(${bytes(pair.older === base ? older : newer)} ${host.dumps.includes(base) ? "then" : "there"})`;
        found.push([newer > older ? "grown" : "", `${words} ${against()} ${then}${doubt}`]);
        if (at.what !== "live") found.push(["", `${bytes(at.width[node])} ${at.what}`]);
    }
    if (at.suspect[node] > 0) found.push(["hot", `${percent(at.suspect[node], now)} of it on a suspected path`]);
    return found;
}

function hover(which, node, event) {
    const flame = which();
    el.tip.hidden = node === null || event === null;
    if (node === null) return;
    if (event === null) {
        describe(flame, node);
        return;
    }
    el.tip.replaceChildren(...lines(flame, node).map(([kind, text]) => h("div", { class: kind || null }, text)));
    const box = el.tip.getBoundingClientRect();
    el.tip.style.left = `${Math.max(8, Math.min(event.clientX + 14, innerWidth - box.width - 8))}px`;
    el.tip.style.top = `${event.clientY + 18 + box.height > innerHeight ? event.clientY - box.height - 12 : event.clientY + 18}px`;
}

function describe(flame, node) {
    if (!flame.tree) return;
    const text = lines(flame, node).map(([, line]) => line).join(" · ");
    const frame = flame.tree.frame[node];
    const open = h("button", { type: "button", onclick: () => go({ around: String(frame + 1), zoom: "" }, true) }, "Callers and callees");
    el.detail.replaceChildren(h("span", {}, text), node === 0 ? "" : open);
}

function select(which, node) {
    const flame = which();
    if (flame === el.up) {
        el.up.zoom = node;
        el.up.draw();
        describe(el.up, node);
        return;
    }
    go({ zoom: node ? String(node) : "" }, true);
}

// Zoom to the frame that allocates, in the largest of the suspect's stacks.
function find(suspect) {
    const newest = host.dumps[host.dumps.length - 1];
    const held = new Map(newest.nodes.map((node, index) => [node, newest.bytes[index]]));
    const leaf = suspect.nodes.reduce((best, node) => ((held.get(node) || 0) > (held.get(best) || 0) ? node : best), suspect.nodes[0]);
    const path = stacks.pathOf(leaf);
    go({ zoom: String(path[0] || 0), around: "", from: "root", thread: "", dump: "" }, true);
    el.stacks.scrollIntoView({ behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
}

// What a suspect's stacks held, dump by dump, in the process that was judged.
function curveOf(suspect) {
    const nodes = new Set(suspect.nodes);
    const judged = host.dumps.filter((one) => host.processes[one.process].key === host.process);
    return judged.map((one) => {
        const live = one.nodes.reduce((sum, node, index) => sum + (nodes.has(node) ? one.bytes[index] : 0), 0);
        return { time: one.time, live, error: errorOf(live) };
    });
}

async function copy() {
    let text = "Copied";
    try {
        await navigator.clipboard.writeText(location.href);
    } catch {
        text = "It is in the address bar";
    }
    el.copy.textContent = text;
    setTimeout(() => (el.copy.textContent = "Copy link"), 2000);
}

document.addEventListener("keydown", (event) => {
    const typing = ["INPUT", "SELECT"].includes(document.activeElement.tagName) && document.activeElement.type !== "radio";
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") {
        el.tip.hidden = true;
        if (state.find) {
            el.search.value = "";
            go({ find: "" });
        } else if (state.zoom || state.around || state.thread) go({ zoom: "", around: "", thread: "" });
        return;
    }
    if (typing) return;
    const actions = {
        "/": () => el.search.focus(),
        ",": () => step(-1),
        ".": () => step(1),
        i: () => go({ from: state.from === "leaf" ? "" : "leaf", zoom: "" }),
        g: () => pair && go({ what: what === "grown" ? "live" : "grown", zoom: "" }),
    };
    if (event.key in actions) {
        event.preventDefault();
        actions[event.key]();
    }
});
addEventListener("popstate", () => {
    state = address.read();
    show();
});
addEventListener("hashchange", () => {
    state = address.read();
    show();
});
darkness.addEventListener("change", () => {
    if (curves) curves.host = null;
    show();
});

showSeconds(data.to - data.from < 7200);
build();
show();
