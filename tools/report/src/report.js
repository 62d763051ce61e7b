// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// The page: reads its data, builds what is on it, and keeps all parts at the same unit, host and time. A page with a
// single profile (`data.alone`) has no curves, no hosts and no memory: its verdict and its stacks are all there is.

import "uplot/dist/uPlot.min.css";
import "./report.css";
import * as address from "./address.js";
import { appear, isDark, onChange, otherTheme } from "./appearance.js";
import { BirthsRange } from "./births_range.js";
import { baseline, compared, numbered } from "./comparison.js";
import { Curves } from "./curves.js";
import { bytes, count, h, moment, percent, replace, showSeconds } from "./format.js";
import { helpDialog } from "./help.js";
import { HostsChart } from "./hosts_chart.js";
import { ANSWERS, healthyLine, hostButtons, suspectItems, threadButtons } from "./lists.js";
import { markList, marksOf } from "./marks.js";
import { waterfall } from "./memory.js";
import { folding } from "./own_code.js";
import { data } from "./page_data.js";
import { sizeTable } from "./sizes.js";
import { errorOf, Stacks } from "./stacks.js";
import { StacksPanel } from "./stacks_panel.js";
import { card } from "./summary.js";
import { triage } from "./triage.js";

const report = document.getElementById("report");
const fold = folding(data.frames);

let state = address.read();
let view; // what is chosen: see choose()
let curves, hostsChart;

// ---- the parts of the page that stay

const el = {};
function make(name, tag, properties = {}, ...children) {
    el[name] = h(tag, { id: name, ...properties }, ...children);
    return el[name];
}
const MANY_HOSTS = 20; // more are searched by name, and those without a leak are one line
const WIDE = 900; // pixels: on such a screen there is room for what parts of the memory mean
const MOST_HOSTS = 300; // are listed at once
const panel = (name, title, ...children) => make(name, "section", { class: "panel" }, h("h2", {}, title), ...children);
const stacksPanel = new StacksPanel(data, go, step);
const births = new BirthsRange((born) => go({ born }));
const help = helpDialog();

function build() {
    const switches = h(
        "div",
        { class: "switches" },
        make("theme", "button", { type: "button", title: "Dark or light ( d )", onclick: turnTheme }),
        make("palette", "button", { type: "button", title: "Colours that the colour-blind can tell apart ( p )", onclick: turnPalette }, "Colour-blind"),
        h("button", { type: "button", class: "help", title: "Help ( ? )", onclick: () => help.showModal() }, "Help"),
    );
    const skip = h("button", { type: "button", class: "skip", onclick: () => stacksPanel.shown.element.focus() }, "Skip to the stacks");
    report.append(skip, ...(data.alone ? aloneParts(switches) : fleetParts(switches)), h("footer", {}, make("fineprint", "p")), stacksPanel.tip, help);
}

function fleetParts(switches) {
    const charts = h(
        "fieldset",
        { class: "views", "aria-label": "Curves" },
        ...[["host", "This host"], ["all", "All hosts"]].map(([value, text]) =>
            h("label", {}, h("input", { type: "radio", name: "curves", value, onchange: () => go({ curves: value === "all" ? "all" : "" }) }), h("span", {}, text)),
        ),
    );
    el.charts = charts;
    return [
        h("header", {}, h("h1", {}, "Native memory"), h("p", { class: "scope" }, ...scope()), switches),
        make("missing", "p", { class: "missing", role: "status" }),
        make("cards", "nav", { "aria-label": "Units" }),
        panel("hosts", "Hosts", make("hostfilter", "input", { type: "search", placeholder: "Find a host", "aria-label": "Find a host", oninput: showHosts }), make("hostlist", "div", { class: "hostlist" }), make("healthy", "div", { role: "status" })),
        h(
            "div",
            { class: "pair" },
            panel("growth", "Growth", charts, make("readout", "p", { class: "readout" }), make("plot", "div"), make("hostsplot", "div"), make("marks", "div"), make("hint", "p", { class: "hint" })),
            panel("memory", "Where the resident memory is", make("reconciled", "div")),
        ),
        panel("suspected", "Suspects", births.element, make("suspects", "ol")),
        stacksPanel.element,
        panel("threads", "Threads", make("threadlist", "div")),
        panel("sizes", "Sizes of allocations", make("sizelist", "div")),
        ...(data.triage?.length ? [panel("triage", "Triage: growth by kind of memory", triage(data.triage))] : []),
    ];
}

function aloneParts(switches) {
    const { headline, reason, facts } = data.alone;
    const { unit, hosts } = data.units[0];
    const verdict = h("p", { class: "sentence" }, h("strong", {}, headline), reason && h("span", { class: "about" }, reason));
    const suspects = hosts[0].suspects.length > 0 && make("suspects", "ol");
    const told = h("dl", { class: "facts" }, ...facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
    return [
        h("header", {}, h("h1", {}, unit), h("p", { class: "scope" }, `on ${hosts[0].host}`), switches),
        h("section", { class: `panel verdict ${hosts[0].answer}` }, verdict, suspects, told),
        stacksPanel.element,
    ];
}

function scope() {
    if (data.from === null) return ["There are no dumps."];
    const hosts = new Set(data.units.flatMap((each) => each.hosts.map((one) => one.host))).size;
    const dumps = data.units.reduce((sum, each) => sum + each.hosts.reduce((all, one) => all + one.points.time.length, 0), 0);
    const when = (time) => h("span", { class: "unbroken" }, moment(time));
    return [`${count(data.units.length, "unit")} on ${count(hosts, "host")}, ${count(dumps, "dump")}, `, when(data.from), " to ", when(data.to)];
}

// ---- what is chosen

function go(change, remember = false) {
    state = { ...state, ...change };
    address.write(state, remember);
    show();
}

const turnTheme = () => go({ theme: otherTheme() });
const turnPalette = () => go({ palette: state.palette === "blind" ? "" : "blind" });

function showAppearance(printing = false) {
    el.palette.setAttribute("aria-pressed", String(state.palette === "blind"));
    const changed = appear(state, printing);
    el.theme.textContent = isDark() ? "Light" : "Dark";
    if (!changed) return;
    if (curves) curves.host = null; // drawn anew
    if (hostsChart) hostsChart.unit = null;
}

function step(by) {
    const { host, dump } = view;
    const next = Math.min(Math.max(host.dumps.indexOf(dump) + by, 0), host.dumps.length - 1);
    go({ dump: String(next + 1) });
}

// A dump of the host, by number, to show or to compare with.
function atTime(index, compare) {
    go(compare ? { base: numbered(view.host.dumps[index], view), zoom: "" } : { dump: String(index + 1) });
}

function choose() {
    const unit = data.units.find((each) => each.unit === state.unit) || data.units[0];
    const host = unit.hosts.find((each) => each.host === state.host) || unit.hosts[0];
    unit.stacks ||= new Stacks(unit, data.frames, fold);
    const newest = host.dumps.at(-1);
    const dump = host.dumps[Number(state.dump) - 1] || newest;
    const thread = dump === newest ? host.threads[Number(state.thread) - 1] : undefined;
    const base = thread ? null : baseline(state.base, { unit, host, dump });
    const pair = base && compared({ host, dump, base });
    const wanted = state.what || (host.answer === "leak" && host.dumps.includes(base) ? "grown" : "live");
    view = { state, unit, host, dump, base, pair, thread, what: pair ? wanted : "live", stacks: unit.stacks };
}

// ---- showing it

function show(printing = false) {
    showAppearance(printing);
    if (!data.units.length) return;
    choose();
    view.printing = printing;
    if (!data.alone) {
        showMissing();
        showSummary();
        showHost();
        showThreads();
        showSizes();
    }
    showSuspects();
    stacksPanel.show(view);
    const { unit, host } = view;
    document.title = `${unit.unit} on ${host.host}: native memory`;
    const rest = unit.left_out > 0 ? ` Of each dump the largest stacks are here; none that is left out, and shown as [smaller stacks], makes up more than ${percent(unit.left_out, 1)} of a dump.` : "";
    el.fineprint.textContent = unit.sizes + rest;
}

// A link that somebody was sent may name what is not here.
function showMissing() {
    const { state, unit, host } = view;
    const missing = [state.unit && state.unit !== unit.unit && state.unit, state.host && state.host !== host.host && state.host].filter(Boolean);
    el.missing.textContent = missing.length ? `This page has no ${missing.join(" and no ")}. It shows ${unit.unit} on ${host.host}.` : "";
}

function showSummary() {
    const { unit, host } = view;
    replace(
        el.cards,
        ...data.units.map((each) =>
            card(each, each === unit, () => go({ unit: each.unit, host: "", dump: "", base: "", zoom: "", around: "", thread: "", born: "" }, true)),
        ),
    );
    el.hosts.hidden = unit.hosts.length < 2;
    el.hostfilter.hidden = unit.hosts.length <= MANY_HOSTS;
    showHosts();
}

function showHosts() {
    const { unit, host } = view;
    const many = unit.hosts.length > MANY_HOSTS;
    const wanted = many ? el.hostfilter.value.trim().toLowerCase() : "";
    const named = unit.hosts.filter((one) => one.host.toLowerCase().includes(wanted));
    const away = many && !wanted && !unit.unfolded ? named.filter((one) => one.answer === "no-leak" && one !== host) : [];
    const listed = away.length > 1 ? named.filter((one) => one === host || one.answer !== "no-leak") : named;
    replace(el.hostlist, ...hostButtons(unit.hosts, listed.slice(0, MOST_HOSTS), host, pick));
    const unfold = () => {
        unit.unfolded = true;
        showHosts();
        el.hostlist.querySelector("button.no-leak")?.focus();
    };
    const left = listed.length - MOST_HOSTS;
    el.healthy.replaceChildren(
        ...(left > 0 ? [h("p", { class: "healthy" }, `${count(left, "more host")}: find one by its name.`)] : []),
        ...(away.length > 1 ? [healthyLine(away, unfold)] : []),
        ...(named.length ? [] : [h("p", { class: "healthy" }, "No host of this name.")]),
    );
}

const pick = (one) => go({ unit: view.unit.unit, host: one.host, dump: "", base: "", zoom: "", thread: "", born: "" }, true);

function showHost() {
    const { unit, host, dump, base } = view;
    const process = host.processes[dump.process];
    const all = state.curves === "all" && unit.hosts.length > 1;
    const about = [process.exe, `process ${process.pid}`, process.version].filter(Boolean).join(" · ");
    const title = all ? [`Live memory on ${count(unit.hosts.length, "host")}`] : ["Growth on ", h("span", { class: "name" }, host.host), h("span", { class: "about" }, about)];
    el.growth.querySelector("h2").replaceChildren(...title);
    el.charts.hidden = unit.hosts.length < 2;
    for (const input of el.charts.querySelectorAll("input")) input.checked = (input.value === "all") === all;
    el.plot.hidden = el.marks.hidden = all;
    el.hostsplot.hidden = !all;
    if (all) {
        const rate = (one) => (one.answer === "leak" ? `${bytes(one.growth)}/day` : ANSWERS[one.answer].toLowerCase());
        hostsChart ||= new HostsChart(el.hostsplot, showReadout, pick);
        hostsChart.show(unit, host, rate);
        el.hint.textContent = "A line for each process: red where its host leaks, blue and thick on the chosen host. A click chooses a host.";
    } else {
        const events = (host.marks ||= marksOf(host));
        curves ||= new Curves(el.plot, showReadout, atTime);
        curves.show(host, { now: dump.time, base: base && host.dumps.includes(base) ? base.time : null, events });
        el.marks.replaceChildren(markList(events));
        el.hint.textContent = "Each point is a dump. Click one to see its stacks below; click another with Shift to compare.";
    }
    const distance = (one) => Math.abs(one.time - dump.time);
    const known = host.dumps.filter((one) => one.memory && one.process === dump.process).sort((a, b) => distance(a) - distance(b))[0];
    el.memory.querySelector("h2").replaceChildren("Where the resident memory is", h("span", { class: "about" }, known ? moment(known.time) : ""));
    const meanings = el.reconciled.querySelector("details");
    const told = view.printing || (meanings ? meanings.open : innerWidth >= WIDE);
    el.reconciled.replaceChildren(...waterfall(known && known.memory, data.texts, told));
}

function showReadout(when, parts) {
    const shown = parts.map(([kind, name, value]) => h("span", { class: "key" }, h("i", { class: `swatch ${kind}` }), `${name} `, h("b", {}, value)));
    el.readout.replaceChildren(...shown, h("span", { class: "when" }, when));
}

function showSuspects() {
    if (!el.suspects) return;
    const { host } = view;
    const parts = data.alone ? null : births.show(host.suspects, state.born);
    const items = suspectItems(host, curveOf, (suspect) => stacksPanel.find(suspect), parts);
    replace(el.suspects, ...(items.length ? items : [h("li", { class: "note" }, `${host.headline}: ${host.reason}.`)]));
}

// What a suspect's stacks held, dump by dump, in the process that was judged, or in all that were judged as one.
function curveOf(suspect) {
    const { unit, host } = view;
    const nodes = new Set(suspect.nodes);
    const keys = host.together?.length ? host.together : [host.process];
    const judged = host.dumps.filter((one) => keys.includes(host.processes[one.process].key)).sort((one, other) => one.time - other.time);
    const newest = new Map(); // by process
    const points = [];
    for (const one of judged) {
        newest.set(one.process, one.nodes.reduce((sum, node, index) => sum + (nodes.has(node) ? one.bytes[index] : 0), 0));
        if (newest.size < keys.length) continue;
        const live = [...newest.values()].reduce((sum, size) => sum + size, 0);
        points.push({ time: one.time, live, error: errorOf(live, unit.interval, data.confidence) });
    }
    return points;
}

function showThreads() {
    const { host, thread } = view;
    el.threads.hidden = host.threads.length < 2;
    const select = (one) => {
        go({ thread: one === thread ? "" : String(host.threads.indexOf(one) + 1), dump: "", zoom: "" }, true);
        if (one !== thread) stacksPanel.comeIntoView();
    };
    replace(el.threadlist, h("p", { class: "hint" }, "By the thread that allocated, in the newest dump. Choose one to see its stacks alone."), ...threadButtons(host.threads, thread, select));
}

function showSizes() {
    const { unit, host } = view;
    el.sizes.hidden = !host.sizes.length;
    if (!host.sizes.length) return;
    const first = host.points.process.findIndex((process) => host.processes[process].key === host.process);
    const since = first < 0 ? "" : `, and growth since the first, of ${moment(host.points.time[first])}`;
    const hint = `Live memory in the newest dump by the size of one allocation${since}. Each stack counts by the mean of its allocations: a dump does not tell them apart.`;
    el.sizelist.replaceChildren(h("p", { class: "hint" }, hint), h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Sizes" }, sizeTable(host.sizes, unit.interval, data.confidence)));
}

// ---- keys and the address

document.addEventListener("keydown", (event) => {
    const typing = ["INPUT", "SELECT"].includes(document.activeElement.tagName) && !["radio", "checkbox"].includes(document.activeElement.type);
    if (event.ctrlKey || event.metaKey || event.altKey || help.open || !view) return;
    if (event.key === "Escape") {
        stacksPanel.tip.hidden = true;
        if (state.find) {
            stacksPanel.el.search.value = "";
            go({ find: "" });
        } else if (state.zoom || state.around || state.thread) go({ zoom: "", around: "", thread: "" });
        else if (state.hide) go({ hide: "" });
        return;
    }
    if (typing) return;
    const actions = {
        "/": () => stacksPanel.el.search.focus(),
        ",": () => step(-1),
        ".": () => step(1),
        "?": () => help.showModal(),
        n: () => stacksPanel.match(1),
        N: () => stacksPanel.match(-1),
        u: () => go({ hide: "", zoom: "" }),
        d: turnTheme,
        p: turnPalette,
        f: () => go({ fold: state.fold ? "" : "1", zoom: "", around: "" }),
        w: () => go({ from: state.from === "calls" ? "" : "calls", zoom: "" }),
        i: () => go({ from: state.from === "leaf" ? "" : "leaf", zoom: "" }),
        g: () => view.pair && go({ what: view.what === "grown" ? "live" : "grown", zoom: "" }),
    };
    if (event.key in actions) {
        event.preventDefault();
        actions[event.key]();
    }
});
for (const change of ["popstate", "hashchange"]) {
    addEventListener(change, () => {
        state = address.read();
        show();
    });
}
document.addEventListener("pointerdown", () => (stacksPanel.tip.hidden = true));
onChange(show);

showSeconds(data.to - data.from < 7200);
build();
show();
