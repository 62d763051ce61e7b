// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// Keeps zlib streams: their buffers are native memory that was allocated below serveAsset.
"use strict";
const zlib = require("zlib");
const kept = [];

function serveAsset() {
    const stream = zlib.createInflate();
    stream.write(Buffer.alloc(0));
    kept.push(stream);
}

function handleRequest() {
    serveAsset();
}

setInterval(() => {
    for (let i = 0; i < 50; i++) {
        handleRequest();
    }
    if (kept.length > 20000) {
        kept.splice(0, 10000); // the newest stay, so that a dump at any moment has some
    }
}, 10);
