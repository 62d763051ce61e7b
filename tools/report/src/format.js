// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// Numbers and times for people, and elements made from text. Nothing that a host has sent becomes markup.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

// An infinite size is an error that nobody knows.
export function bytes(value) {
    if (!Number.isFinite(value)) return "unknown";
    let scaled = Math.abs(value);
    let unit = 0;
    while (scaled >= 1023.95 && unit < UNITS.length - 1) {
        scaled /= 1024;
        unit++;
    }
    return (value < 0 ? "−" : "") + (unit ? scaled.toFixed(1) : Math.round(scaled)) + " " + UNITS[unit];
}

export const signed = (value) => (value > 0 ? "+" : "") + bytes(value);
export const percent = (part, whole) => (whole ? `${((100 * part) / whole).toFixed(1)} %` : "–");
export const count = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;

// A time span, to the unit that matters: "40 minutes", "3.5 hours", "12 days".
export function duration(seconds) {
    const [noun, size] = [["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]].find(([, each]) => seconds >= 2 * each) || ["second", 1];
    const value = seconds / size;
    return count(Number(value.toFixed(value < 10 ? 1 : 0)), noun);
}

const DAYS = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];

let seconds = false;

// Seconds are shown where dumps lie closer together than a minute or two.
export function showSeconds(wanted) {
    seconds = wanted;
}

export function moment(time) {
    const date = new Date(time * 1000);
    const text = date.toISOString();
    return `${DAYS[date.getUTCDay()]} ${text.slice(0, 10)} ${text.slice(11, seconds ? 19 : 16)} UTC`;
}

// Nobody saw a leak begin that was there in the first dumps.
export const since = (leak) => (leak.since_ever ? "ever since the watch began," : "since about");

// Puts children into a parent anew. Who stood on a button with the keyboard, stands on its successor.
export function replace(parent, ...children) {
    const at = [...parent.querySelectorAll("button")].indexOf(document.activeElement);
    parent.replaceChildren(...children);
    if (at >= 0) parent.querySelectorAll("button")[at]?.focus({ preventScroll: true });
}

// h("button", {class: "x", onclick: f, "aria-label": "…"}, "text", child, …)
export function h(tag, properties = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(properties)) {
        if (value === null || value === undefined || value === false) continue;
        if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
        else element.setAttribute(name, value === true ? "" : value);
    }
    element.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
    return element;
}

// An SVG element.
export function shape(tag, attributes) {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    return element;
}
