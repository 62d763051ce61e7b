// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// Light or dark, and the palette. The style sheet reads both from the root element and has every colour; what is drawn
// on a canvas takes it from there.

const root = document.documentElement;
const system = matchMedia("(prefers-color-scheme: dark)");

export const isDark = () => root.dataset.theme === "dark";
export const hue = (name) => Number(getComputedStyle(root).getPropertyValue(`--${name}-hue`));

// The theme that is not shown; "" where that is the system's, which is followed from then on.
export function otherTheme() {
    const other = isDark() ? "light" : "dark";
    return (other === "dark") === system.matches ? "" : other;
}

// `theme`: "light", "dark", or anything else for the system's. Says whether that changed what is drawn.
export function appear({ theme, palette }, printing = false) {
    const wanted = printing ? "light" : ["light", "dark"].includes(theme) ? theme : system.matches ? "dark" : "light";
    const before = `${root.dataset.theme} ${root.dataset.palette}`;
    root.dataset.theme = wanted;
    root.dataset.palette = palette === "blind" ? "blind" : "usual";
    return before !== `${wanted} ${root.dataset.palette}`;
}

// Calls `changed(printing)` when the system's scheme changes, and around printing: paper is light.
export function onChange(changed) {
    system.addEventListener("change", () => changed(false));
    addEventListener("beforeprint", () => changed(true));
    addEventListener("afterprint", () => changed(false));
}
