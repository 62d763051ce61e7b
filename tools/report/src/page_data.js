// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// The page's data: JSON, or where that is large, JSON packed by gzip in base64 (export/embedding.py).

export let data;

export async function read() {
    const element = document.getElementById("data");
    data = JSON.parse(element.dataset.packed ? await unpacked(element.textContent) : element.textContent);
}

function unpacked(text) {
    if (!globalThis.DecompressionStream) throw new Error("This browser cannot open a page of this size. Chrome 100, Firefox 113, Safari 16.4 and later can.");
    const packed = new Blob([Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0))]);
    return new Response(packed.stream().pipeThrough(new DecompressionStream("gzip"))).text();
}
