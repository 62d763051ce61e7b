// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// Who calls whom, over all stacks of a tree: functions with what they hold, and calls with what goes through them. The
// smallest are left out, by the same shares as in heap_analyze's graph (export/graph.py).

const FUNCTION_SHARE = 0.005;
const CALL_SHARE = 0.001;
const MOST_CALLS = 8; // of a function, into it and out of it

// A function's number is its frame's + 1; 0 is the whole. `values`: by node of the tree, as measure() gives them; `frames`:
// how many there are. Gives {values (by function), flat, functions (numbers, the largest first), calls: [{from, to,
// size, indirect}], left: what is left out}. `indirect`: all of it goes through functions that are left out.
export function callGraph(tree, values, frames, most) {
    const byFunction = (sums) => {
        const cum = new Float64Array(frames + 1);
        cum[0] = sums[0];
        for (let node = 1; node < tree.size; node++) if (tree.outermost[node]) cum[tree.frame[node] + 1] += sums[node];
        return cum;
    };
    const found = { ...values };
    for (const name of ["now", "older", "newer", "suspect", "width"]) found[name] = values[name] && byFunction(values[name]);
    const whole = found.width[0];
    const held = [...found.width.keys()].filter((one) => one && found.width[one] > 0).sort((a, b) => found.width[b] - found.width[a] || a - b);
    const functions = held.slice(0, most).filter((one) => found.width[one] > FUNCTION_SHARE * whole);
    const all = callsOf(tree, values.width, new Set(functions));
    const calls = largest(all, CALL_SHARE * whole);
    const left = {
        functions: held.length - functions.length,
        largest: found.width[held[functions.length]] || 0,
        calls: all.length - calls.length,
    };
    return { values: found, flat: flatOf(tree, values.width, frames), functions, calls, left };
}

function flatOf(tree, width, frames) {
    const own = Float64Array.from(width);
    for (let node = 1; node < tree.size; node++) own[tree.parent[node]] -= width[node];
    const flat = new Float64Array(frames + 1);
    for (let node = 1; node < tree.size; node++) flat[tree.frame[node] + 1] += Math.max(own[node], 0);
    return flat;
}

// The calls between these functions, the largest first. What goes through one that is not among them leads on from the
// next above that is. A call that a stack has several times counts once.
function callsOf(tree, width, functions) {
    const from = new Int32Array(tree.size); // the next function above, by node
    const found = new Map();
    for (let node = 1; node < tree.size; node++) {
        const above = tree.parent[node];
        const caller = functions.has(tree.frame[above] + 1) && above ? tree.frame[above] + 1 : from[above];
        from[node] = caller;
        const callee = tree.frame[node] + 1;
        const indirect = caller !== tree.frame[above] + 1;
        if (!caller || !functions.has(callee) || !(width[node] > 0) || (indirect && caller === callee)) continue;
        let outer = above;
        while (outer > 0 && !(tree.frame[outer] + 1 === callee && from[outer] === caller)) outer = tree.parent[outer];
        if (outer > 0) continue;
        const key = `${caller} ${callee}`;
        if (!found.has(key)) found.set(key, { from: caller, to: callee, size: 0, indirect: true });
        const call = found.get(key);
        call.size += width[node];
        call.indirect &&= indirect;
    }
    return [...found.values()].sort((a, b) => b.size - a.size || a.from - b.from || a.to - b.to);
}

// The largest call to a function always stays, or nothing would lead to it.
function largest(calls, least) {
    const out = new Map();
    const into = new Map();
    const number = (counts, one) => counts.get(one) || 0;
    return calls.filter(({ from, to, size }) => {
        const first = !into.has(to);
        if (!first && (size <= least || number(out, from) >= MOST_CALLS || number(into, to) >= MOST_CALLS)) return false;
        out.set(from, number(out, from) + 1);
        into.set(to, number(into, to) + 1);
        return true;
    });
}
