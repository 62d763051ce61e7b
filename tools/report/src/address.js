// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// What is on the screen, as the part of the page's address behind "#", so that a view can be sent to somebody.

const NAMES = ["unit", "host", "dump", "base", "what", "from", "around", "zoom", "find", "thread", "fold", "sort", "curves", "born", "hide", "theme", "palette"];

export function read() {
    const given = new URLSearchParams(location.hash.slice(1));
    return Object.fromEntries(NAMES.map((name) => [name, given.get(name) || ""]));
}

export function write(state, remember) {
    const given = new URLSearchParams();
    for (const name of NAMES) if (state[name]) given.set(name, state[name]);
    const address = `#${given}`;
    if (address === location.hash) return;
    if (remember) history.pushState(null, "", address);
    else history.replaceState(null, "", address);
}
