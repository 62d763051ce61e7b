// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// Stacks as pprof's profile.proto, whose field numbers these are: github.com/google/pprof, proto/profile.proto.

// What live and other memory is called there: as in export/pprof.py.
const NAMES = { live: "inuse_space", allocated: "alloc_space", largest: "largest_space", grown: "grown_space" };
const NUMBER = 0; // how a field is written
const BYTES = 2;

class Message {
    constructor() {
        this.bytes = [];
    }

    // Below 2^63; beyond 2^53, as times are, it is as exact as a double.
    varint(value) {
        let rest = value;
        for (; rest >= 128; rest = Math.floor(rest / 128)) this.bytes.push((rest % 128) + 128);
        this.bytes.push(rest);
    }

    number(field, value) {
        if (!value) return;
        this.varint(field * 8 + NUMBER);
        this.varint(value);
    }

    put(field, bytes) {
        this.varint(field * 8 + BYTES);
        this.varint(bytes.length);
        for (const one of bytes) this.bytes.push(one);
    }

    // `fill` writes the message within.
    message(field, fill) {
        const within = new Message();
        fill(within);
        this.put(field, within.bytes);
    }

    numbers(field, values) {
        this.message(field, (packed) => values.forEach((value) => packed.varint(value)));
    }
}

// Numbers from 1 on, by what they stand for, which is a text. `write` is called with each new one.
class Numbers {
    known = new Map();

    of(text, write = () => {}) {
        if (!this.known.has(text)) {
            this.known.set(text, this.known.size + 1);
            write(this.known.get(text));
        }
        return this.known.get(text);
    }
}

// `stacks`: [{frames: [{name, module, file, line}], size}], the function that allocates first; `measure`: what the sizes
// are, "live" or another, and `change`: "", or "grown" or "shrunk" where they are only that. `program` is its path, `time`
// in seconds (0: unknown), `interval` in bytes (0 or null: unknown).
export function pprof(stacks, { measure, change, program, time, interval, comment }) {
    const profile = new Message();
    const [texts, mappings, functions, locations] = Array.from({ length: 4 }, () => new Numbers());
    const text = (one) => texts.of(one) - 1;
    text("");
    const type = (field, name) =>
        profile.message(field, (one) => {
            one.number(1, text(name));
            one.number(2, text("bytes"));
        });
    const mapping = (file) =>
        mappings.of(file, (number) =>
            profile.message(3, (one) => {
                one.number(1, number);
                one.number(5, text(file));
                one.number(7, 1); // has names: pprof need not look for the file
            }),
        );
    const called = ({ name, file }) =>
        functions.of(JSON.stringify([name, file]), (number) =>
            profile.message(5, (one) => {
                one.number(1, number);
                one.number(2, text(name)); // and no system_name, as in export/pprof.py
                one.number(4, text(file));
            }),
        );
    const location = (frame) =>
        locations.of(JSON.stringify(frame), (number) =>
            profile.message(4, (one) => {
                one.number(1, number);
                one.number(2, frame.module && mapping(program.endsWith(`/${frame.module}`) ? program : frame.module));
                one.message(4, (line) => {
                    line.number(1, called(frame));
                    line.number(2, frame.line);
                });
            }),
        );
    type(1, [NAMES[measure], change].filter(Boolean).join("_"));
    mapping(program); // pprof calls the profile by the first
    for (const { frames, size } of stacks) {
        const at = frames.map(location);
        profile.message(2, (sample) => {
            sample.numbers(1, at);
            sample.numbers(2, [size]);
        });
    }
    profile.number(9, Math.round(time * 1e9));
    if (interval) {
        type(11, "space");
        profile.number(12, interval);
    }
    profile.numbers(13, [text(comment)]);
    for (const one of texts.known.keys()) profile.put(6, new TextEncoder().encode(one));
    return Uint8Array.from(profile.bytes);
}

export function gzipped(bytes) {
    return new Response(new Blob([bytes]).stream().pipeThrough(new CompressionStream("gzip"))).blob();
}
