// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// Own code against libraries: own is the program's file and what a runtime has named outside its standard library.

const SHARED = /\.so(\.|$)/;
const STANDARD = { java: [/^(java|javax|jdk|sun|com\.sun)\./, "[Java's own]"], js: [/^(node:|internal\/)/, "[Node's own]"] };

// The name under which a frame is folded, or "" for own code.
export function libraryOf(name, module, kind) {
    if (kind === "jit") return "[made at run time]"; // stubs of a JVM, or code without a name
    const [pattern, group] = STANDARD[kind] || [];
    if (pattern) return pattern.test(name) ? group : "";
    return SHARED.test(module) ? `[${module}]` : "";
}

// Adds a frame for each library at the end of the frames' columns, and gives by frame the one that it folds into.
export function folding(frames) {
    const numbers = new Map();
    const into = frames.name.map((name, frame) => {
        const library = libraryOf(name, frames.module[frame], frames.kind[frame]);
        if (!library) return frame;
        if (!numbers.has(library)) numbers.set(library, frames.name.length + numbers.size);
        return numbers.get(library);
    });
    frames.own = into.map((to, frame) => to === frame);
    for (const library of numbers.keys()) {
        frames.name.push(library);
        frames.module.push(library.slice(1, -1));
        frames.kind.push("");
        frames.own.push(false);
    }
    return Int32Array.from([...into, ...numbers.values()]);
}
