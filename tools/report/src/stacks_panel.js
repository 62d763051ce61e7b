// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// The flame graph, or the call graph, with all that belongs to it: time, comparison, search, callers and callees, and the
// table of functions.

import { CallGraph } from "./call_graph_view.js";
import { against, direction, nameOf, numbered, ofTwoHosts } from "./comparison.js";
import { Flame } from "./flame.js";
import { bytes, count, h, moment, percent, signed } from "./format.js";
import { Functions } from "./functions.js";
import { ANSWERS } from "./lists.js";
import { gzipped, pprof } from "./pprof.js";
import { counted, searching } from "./search.js";
import { legend } from "./stack_view.js";
import { errorOf, measure } from "./stacks.js";
import { callPicture, foldedText, picture, save, stacksShown, stackText, toClipboard } from "./take_away.js";

const COUNTED = { live: "live", largest: "live", allocated: "allocated", grown: "mapped" };
const KINDS = { jit: "code made at run time", inlined: "inlined", unknown: "in no mapping" };

export class StacksPanel {
    // `go(change, remember)` changes the page's state; `step(by)` goes to a later dump.
    constructor(data, go, step) {
        const { frames } = data;
        Object.assign(this, { data, frames, go, step });
        this.el = {};
        this.functions = new Functions(frames, { sort: (sort) => go({ sort }), open: (frame) => this.open(frame) });
        this.tip = this.made("tip", "div", { role: "tooltip", hidden: true });
        this.element = this.made(
            "stacks",
            "section",
            { class: "panel" },
            h("h2", {}, "Stacks"),
            this.controls(),
            this.made("hiding", "p", { class: "detail" }),
            this.made("detail", "p", { class: "detail", "aria-live": "polite" }),
            this.graphs(),
            h("h3", {}, "Functions"),
            this.functions.element,
        );
        this.main = new Flame(this.el.graph, frames, this.events(() => this.main));
        this.up = new Flame(this.el.callers, frames, this.events(() => this.up));
        this.calls = new CallGraph(this.el.calls, this.el.left, frames, this.events(() => this.calls));
        this.shown = this.main;
    }

    made(name, tag, properties = {}, ...children) {
        this.el[name] = h(tag, { id: name, ...properties }, ...children);
        return this.el[name];
    }

    controls() {
        const { go } = this;
        const button = (name, text, onclick, more = {}) => this.made(name, "button", { type: "button", onclick, ...more }, text);
        const choice = (group, value, text) =>
            h("label", {}, h("input", { type: "radio", name: group, value, onchange: () => go({ [group]: value, zoom: "" }) }), h("span", {}, text));
        return h(
            "div",
            { class: "controls" },
            this.made(
                "time",
                "div",
                { class: "time" },
                button("earlier", "◀", () => this.step(-1), { "aria-label": "Earlier dump", title: "Earlier dump ( , )" }),
                this.made("slider", "input", { type: "range", min: 0, step: 1, "aria-label": "Time", oninput: () => go({ dump: String(Number(this.el.slider.value) + 1) }) }),
                button("later", "▶", () => this.step(1), { "aria-label": "Later dump", title: "Later dump ( . )" }),
                this.made("when", "output"),
            ),
            this.made("versus", "label", { class: "versus" }, "compared with ", this.made("base", "select", { onchange: () => go({ base: this.el.base.value, zoom: "" }) })),
            this.made("widths", "fieldset", { class: "views", "aria-label": "Width" }, choice("what", "live", "Live"), choice("what", "grown", "Grown"), choice("what", "shrunk", "Shrunk")),
            h("fieldset", { class: "views", "aria-label": "View" }, choice("from", "root", "From main"), choice("from", "leaf", "From malloc"), choice("from", "calls", "Call graph")),
            h(
                "div",
                { class: "finding" },
                h(
                    "label",
                    { class: "switch", title: "Show what lies in one library as one frame" },
                    this.made("fold", "input", { type: "checkbox", onchange: () => go({ fold: this.el.fold.checked ? "1" : "", zoom: "", around: "" }) }),
                    " Fold libraries",
                ),
                this.made("search", "input", { type: "search", placeholder: "Search, regexp  ( / )", "aria-label": "Search functions and libraries by regular expression", autocomplete: "off", spellcheck: "false", oninput: () => go({ find: this.el.search.value.trim() }) }),
                button("previous", "◀", () => this.match(-1), { "aria-label": "Previous match", title: "Previous match ( N )" }),
                button("next", "▶", () => this.match(1), { "aria-label": "Next match", title: "Next match ( n )" }),
                this.made("nth", "output", { "aria-live": "polite" }),
                this.made("found", "output"),
                button("reset", "Reset", () => go({ zoom: "", around: "", thread: "" }), { title: "Whole graph ( Esc )" }),
                button("copy", "Copy link", () => this.copy("copy", location.href, "It is in the address bar")),
                button("savesvg", "Save SVG", () => this.saveSvg(), { title: "The graph as it is shown, as a picture" }),
                button("savefolded", "Save folded", () => this.saveFolded(), { title: "What is shown, as folded stacks for other tools" }),
                button("savepprof", "Save pprof", () => this.savePprof(), { title: "What is shown, as a profile for pprof" }),
                this.made("files", "span", { class: "files" }),
            ),
        );
    }

    graphs() {
        const place = (name, about) => h("div", { class: "graph" }, this.made(name, "canvas", { tabindex: 0, role: "application", "aria-label": about }));
        return h(
            "div",
            {},
            this.made("legend", "p", { class: "legend" }),
            this.made("above", "h3", {}),
            place("callers", "Callers of the function; arrow keys move"),
            this.made("below", "h3", {}),
            place("graph", "Flame graph; arrow keys move, Enter zooms, s shows callers and callees"),
            this.made("calls", "div", { tabindex: 0, role: "application", "aria-label": "Call graph; arrow keys move to callers and callees, Enter chooses, s shows the stacks through a function alone" }),
            this.made("left", "p", { class: "note" }),
            this.made("empty", "p", { class: "note" }, "Nothing of this kind here."),
        );
    }

    events(which) {
        return {
            hover: (node, event) => this.hover(which(), node, event),
            select: (node) => this.select(which(), node),
            open: (node) => this.open(which().tree.frame[node]),
            hide: (node) => this.hide(this.frames.name[which().tree.frame[node]]),
            copy: (node, whole) => this.copyFrame(which(), node, whole),
        };
    }

    // Leave out all stacks through a function, or through a library whose name is in brackets.
    hide(name) {
        this.go({ hide: [...new Set([...this.hidden(), name])].join("\n"), zoom: "", around: "" }, true);
    }

    hidden() {
        return this.view.state.hide.split("\n").filter(Boolean);
    }

    // To the next of the frames that the search has found, the largest first, or to one before.
    match(by) {
        const found = this.shown.matching();
        if (!found.length) return;
        const at = found.indexOf(this.shown.zoom);
        const next = at < 0 ? (by > 0 ? 0 : found.length - 1) : (at + by + found.length) % found.length;
        this.shown.cursor = found[next];
        this.go({ zoom: String(found[next]) });
    }

    open(frame) {
        this.go({ around: String(frame + 1), zoom: "" }, true);
    }

    // `view`: what comparison.js takes, and {state, what, thread, stacks, printing}
    show(view) {
        this.view = view;
        const { el, frames } = this;
        const { state, host, unit, pair, what, thread, stacks } = view;
        this.showControls();
        const around = Number(state.around) - 1;
        const one = around >= 0 && around < frames.name.length;
        const calls = state.from === "calls";
        const sandwich = one && !calls;
        const folded = Boolean(state.fold);
        const hidden = this.hidden();
        const kind = one ? (calls ? "through" : "callees") : state.from === "leaf" ? "up" : "down";
        const tree = stacks.tree(kind, one ? around : -1, folded, hidden);
        const whole = stacks.tree("down", -1, folded, hidden);
        const shown = thread || view.dump;
        this.showHidden(hidden, shown.total - whole.sum(whole.atLeaves(shown))[0], shown.total);
        const suspects = new Set(host.suspects.flatMap((suspect) => suspect.nodes));
        const limits = { interval: unit.interval, confidence: this.data.confidence };
        const prepare = (which) => {
            which.arrange(stacks.dumps);
            return { ...measure(which, shown, pair, what, suspects), ...limits };
        };
        const values = prepare(tree);
        const { matches, problem } = searching(state.find);
        const hits = matches && frames.name.map((name, frame) => matches(name) || matches(frames.module[frame]));
        this.main.hits = this.up.hits = this.calls.hits = hits;
        this.shown = calls ? this.calls : this.main;
        el.graph.parentElement.hidden = calls;
        el.calls.hidden = el.left.hidden = !calls || !(values.width[0] > 0);
        this.shown.show(tree, values, Number(state.zoom) || 0, view.printing);
        el.callers.parentElement.hidden = el.below.hidden = !sandwich;
        el.above.hidden = !one;
        if (one) el.above.replaceChildren(sandwich ? "Callers of " : "Stacks through ", h("span", { class: "name" }, frames.name[around]));
        if (sandwich) {
            const callers = stacks.tree("callers", around, folded, hidden);
            this.up.show(callers, prepare(callers));
            el.below.replaceChildren("What ", h("span", { class: "name" }, frames.name[around]), " calls");
        }
        el.empty.hidden = values.width[0] > 0;
        const found = hits && counted(tree, values.width, hits);
        const words = found?.frames ? `${count(found.frames, "frame")}, ${bytes(found.bytes)}, ${percent(found.bytes, values.width[0])}` : "nothing found";
        const matching = this.shown.matching();
        const nth = matching.indexOf(this.shown.zoom) + 1;
        el.previous.disabled = el.next.disabled = !matching.length;
        el.nth.textContent = nth ? `${nth} of ${matching.length}` : "";
        el.found.textContent = hits ? [words, problem].filter(Boolean).join(" · ") : "";
        el.legend.replaceChildren(...legend(pair && direction(view), pair && ofTwoHosts(view)));
        el.stacks.querySelector("h2").replaceChildren(`Stacks on ${host.host}`, thread ? `, ${thread.name.startsWith("thread ") ? "" : "thread "}${thread.name}` : "");
        this.describe(this.shown, this.shown.zoom);
        this.functions.show({ tree: whole, dump: shown, pair, sort: state.sort, hits, ...limits });
    }

    showHidden(hidden, size, whole) {
        const { hiding } = this.el;
        hiding.hidden = !hidden.length;
        const text = `Hidden: ${bytes(size)}, ${percent(size, whole)}, all stacks through ${hidden.join(", ")}`;
        const again = h("button", { type: "button", title: "Show again ( u )", onclick: () => this.go({ hide: "", zoom: "" }) }, "Show again");
        hiding.replaceChildren(...(hidden.length ? [h("span", {}, text), again] : []));
    }

    showControls() {
        const { el, view } = this;
        const { state, unit, host, dump, base, pair, what, thread } = view;
        const index = host.dumps.indexOf(dump);
        el.slider.max = host.dumps.length - 1;
        el.slider.value = index;
        const when = nameOf(dump, view);
        el.slider.setAttribute("aria-valuetext", when);
        el.when.textContent = when;
        el.earlier.disabled = index === 0;
        el.later.disabled = index === host.dumps.length - 1;
        el.time.hidden = el.versus.hidden = Boolean(this.data.alone);
        el.widths.hidden = host.dumps.length < 2;
        this.showBases();
        el.base.disabled = Boolean(thread);
        for (const input of el.widths.querySelectorAll("input")) {
            input.checked = input.value === what;
            input.disabled = !pair && input.value !== "live";
        }
        for (const input of this.element.querySelectorAll("input[name=from]")) {
            input.checked = input.value === (["leaf", "calls"].includes(state.from) ? state.from : "root");
            input.disabled = Boolean(state.around) && input.value === "leaf";
        }
        el.fold.checked = Boolean(state.fold);
        if (document.activeElement !== el.search) el.search.value = state.find;
        const links = Object.entries(host.files || {}).map(([kind, path]) => h("a", { href: path }, kind));
        el.files.replaceChildren(...(links.length ? ["This host alone: ", ...links] : []));
        el.reset.disabled = !(state.zoom || state.around || thread);
    }

    showBases() {
        const { view } = this;
        const { unit, host, dump, base } = view;
        const option = (one, text) => h("option", { value: numbered(one, view), selected: one === base }, text);
        const own = host.dumps.filter((one) => one !== dump).map((one) => option(one, `${moment(one.time)} (${bytes(one.total)})`));
        const others = unit.hosts.filter((each) => each !== host && each.dumps.length).slice(0, 200).map((each) => option(each.dumps.at(-1), `${each.host} (${ANSWERS[each.answer].toLowerCase()})`));
        const versions = new Map();
        for (const each of unit.hosts) {
            for (const one of each.dumps) {
                const version = each.processes[one.process].version;
                if (version && version !== host.processes[dump.process].version) versions.set(version, one);
            }
        }
        const labels = [...versions].map(([version, one]) => option(one, `${version} (${nameOf(one, view)})`));
        const group = (text, options) => (options.length ? h("optgroup", { label: text }, ...options) : null);
        this.el.base.replaceChildren(
            ...[h("option", { value: "none" }, "nothing"), group("Another time", own), group("Another host, newest dump", others), group("Another version", labels)].filter(Boolean),
        );
        this.el.base.value = base ? numbered(base, view) : "none";
    }

    source(flame, node) {
        return this.view.stacks.source(flame.sites(node));
    }

    lines(flame, node) {
        const { view, frames } = this;
        const { host, base, pair } = view;
        const { tree, values } = flame;
        const frame = tree.frame[node];
        const now = values.now[node];
        const where = [frames.module[frame], KINDS[frames.kind[frame]]].filter(Boolean).join(" · ");
        const found = [["name", frames.name[frame]]];
        if (where) found.push(["where", where]);
        const source = this.source(flame, node);
        if (source) found.push(["where", source]);
        found.push(["", `${bytes(now)} ± ${bytes(errorOf(now, values.interval, values.confidence))} ${COUNTED[view.unit.measure]}, ${percent(now, values.now[0])}`]);
        if (pair) {
            const [older, newer] = [values.older[node], values.newer[node]];
            const words = older === 0 ? "new" : newer === 0 ? "gone" : signed(newer - older);
            const doubt = flame.significant(node) ? "" : ", no more than sampling explains";
            const then = `(${bytes(pair.older === base ? older : newer)} ${host.dumps.includes(base) ? "then" : "there"})`;
            found.push([newer > older ? "grown" : "", `${words} ${against(view)} ${then}${doubt}`]);
            if (values.what !== "live") found.push(["", `${bytes(values.width[node])} ${values.what}`]);
        }
        if (flame.flat && node) found.push(["", `${bytes(flame.flat[node])} flat`]);
        if (values.suspect[node] > 0) found.push(["hot", `${percent(values.suspect[node], now)} of it on a suspected path`]);
        return found;
    }

    hover(flame, node, event) {
        const { tip } = this;
        tip.hidden = node === null || event === null;
        if (node === null) return;
        if (event === null) {
            this.describe(flame, node);
            return;
        }
        tip.replaceChildren(...this.lines(flame, node).map(([kind, text]) => h("div", { class: kind || null }, text)));
        const box = tip.getBoundingClientRect();
        tip.style.left = `${Math.max(8, Math.min(event.clientX + 14, innerWidth - box.width - 8))}px`;
        tip.style.top = `${event.clientY + 18 + box.height > innerHeight ? event.clientY - box.height - 12 : event.clientY + 18}px`;
    }

    describe(flame, node) {
        if (!flame.tree) return;
        const text = this.lines(flame, node).map(([, line]) => line).join(" · ");
        const frame = flame.tree.frame[node];
        const { name, module } = this.frames;
        const library = module[frame] && `[${module[frame]}]`;
        const button = (label, title, onclick) => h("button", { type: "button", title, onclick }, label);
        const buttons = [
            button("Callers and callees", "All that leads to it, and all that it calls ( s )", () => this.open(frame)),
            button("Hide", "Leave out all stacks through it ( h, or Alt and a click )", () => this.hide(name[frame])),
            library && library !== name[frame] && button("Hide library", `Leave out all stacks through ${module[frame]}`, () => this.hide(library)),
            button("Copy name", "Copy its name ( c )", () => this.copyFrame(flame, node, false)),
            flame !== this.calls && button("Copy stack", "Copy its name and those of all that lead to it ( C )", () => this.copyFrame(flame, node, true)),
        ];
        this.el.detail.replaceChildren(h("span", {}, text), ...(node === 0 ? [] : [h("span", { class: "buttons" }, ...buttons.filter(Boolean))]));
    }

    select(flame, node) {
        this.tip.hidden = true;
        if (flame === this.up) {
            flame.zoom = node;
            flame.draw();
            this.describe(flame, node);
            return;
        }
        this.go({ zoom: node ? String(node) : "" }, true);
    }

    // Zoom to the frame that allocates, in the largest of the suspect's stacks.
    find(suspect) {
        const { host, stacks } = this.view;
        const newest = host.dumps.at(-1);
        const held = new Map(newest.nodes.map((node, index) => [node, newest.bytes[index]]));
        const leaf = suspect.nodes.reduce((best, node) => ((held.get(node) || 0) > (held.get(best) || 0) ? node : best), suspect.nodes[0]);
        const path = stacks.pathOf(leaf);
        this.go({ zoom: String(path[0] || 0), around: "", from: "root", fold: "", hide: "", thread: "", dump: "" }, true);
        this.comeIntoView();
    }

    comeIntoView() {
        this.element.scrollIntoView({ behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
    }

    // A function of the call graph is in many stacks, so only its name is copied.
    async copyFrame(flame, node, stack) {
        const whole = stack && flame !== this.calls;
        const name = this.frames.name[flame.tree.frame[node]];
        const about = `${this.view.unit.unit} on ${this.view.host.host}: ${this.lines(flame, node).slice(1).map(([, line]) => line).join(" · ")}`;
        const copied = await toClipboard(whole ? stackText(flame, node, about, (at) => this.source(flame, at)) : name);
        this.el.found.textContent = copied ? `Copied ${whole ? "the stack of " : ""}${name}` : "The browser lets nothing be copied";
    }

    async copy(which, text, otherwise) {
        const button = this.el[which];
        const label = button.textContent;
        button.textContent = (await toClipboard(text)) ? "Copied" : otherwise;
        setTimeout(() => (button.textContent = label), 2000);
    }

    // The tree of which the picture is, with its widths, and the node that fills it.
    seen() {
        const { shown, calls, main } = this;
        return shown === calls ? { tree: calls.given.stacks, values: calls.given.values, zoom: 0 } : main;
    }

    save(ending, type, content) {
        const { unit, host } = this.view;
        save(`${unit.unit}-${host.host}.${ending}`.replace(/[^\w.@-]/g, "_"), type, content);
    }

    title() {
        return `${this.el.stacks.querySelector("h2").textContent}, ${nameOf(this.view.dump, this.view)}`;
    }

    saveFolded() {
        const seen = this.seen();
        this.save("folded", "text/plain", foldedText(stacksShown(seen), (node) => this.frames.name[seen.tree.frame[node]]));
    }

    saveSvg() {
        const { main, calls, shown, el } = this;
        const about = (node) => this.lines(shown, node).map(([, line]) => line).join(" · ");
        const background = getComputedStyle(el.stacks).backgroundColor;
        const drawn = () => main.drawn().map((box) => ({ ...box, title: about(box.node) }));
        const made = shown === calls ? callPicture(calls.picture(about), background, `${this.title()}. ${calls.note}`) : picture(drawn(), el.graph.clientWidth, el.graph.clientHeight, background, this.title());
        this.save("svg", "image/svg+xml", made);
    }

    async savePprof() {
        const { frames, view } = this;
        const { unit, host, dump, pair, what } = view;
        const { tree, values, zoom } = this.seen();
        const frame = (node) => {
            const one = tree.frame[node];
            const [file, line] = view.stacks.siteOf(tree.lines.get(node));
            return { name: frames.name[one], module: frames.module[one], file, line };
        };
        const stacks = stacksShown({ tree, values, zoom }).map(({ path, size }) => ({ frames: path.reverse().map(frame), size }));
        const change = what === "live" ? "" : what;
        const profile = pprof(stacks, {
            measure: unit.measure,
            change,
            program: host.processes[dump.process].exe || "",
            time: this.data.alone ? 0 : dump.time,
            interval: unit.interval,
            comment: `${unit.unit}. ${this.title()}${change && `. ${change} ${direction(view)}`}`,
        });
        this.save("pb.gz", "application/gzip", await gzipped(profile));
    }
}
