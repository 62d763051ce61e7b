// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// Bundles the flame graph page's script with the libraries it uses, and their licences, into the collection.

import { build } from "esbuild";
import { mkdir, readFile, readdir, writeFile } from "node:fs/promises";

const target = new URL("../../plugins/plugin_utils/export/assets/", import.meta.url);

const bundle = await build({
    entryPoints: ["flamegraph.js"],
    bundle: true,
    minify: true,
    write: false,
    metafile: true,
    format: "iife",
    target: ["es2020"],
    charset: "utf8",
    legalComments: "none",
    keepNames: true, // d3-flame-graph asks for the name of a constructor
    loader: { ".css": "empty" },
});

const used = new Set();
for (const path of Object.keys(bundle.metafile.inputs)) {
    const name = /node_modules\/([^/]+)\//.exec(path);
    if (name) used.add(name[1]);
}

let notices = "";
for (const name of [...used].sort()) {
    const directory = `node_modules/${name}/`;
    const about = JSON.parse(await readFile(directory + "package.json", "utf8"));
    const file = (await readdir(directory)).find((entry) => /^licen[cs]e/i.test(entry));
    const licence = (await readFile(directory + file, "utf8")).replaceAll("*/", "* /").trim();
    // Apache-2.0 asks for a copy of the licence to go along: it lies beside the script, once.
    const text = about.license === "Apache-2.0" ? "Copyright Martin Spier and contributors. See LICENSE-Apache-2.0.txt." : licence;
    if (about.license === "Apache-2.0") await writeFile(new URL("LICENSE-Apache-2.0.txt", target), licence + "\n");
    notices += `${name} ${about.version} (${about.license})\n${text}\n\n`;
}

const head = `/*
SPDX-License-Identifier: GPL-3.0-or-later AND Apache-2.0 AND ISC AND BSD-3-Clause
SPDX-FileCopyrightText: Offheap contributors

Made by tools/flamegraph/build.mjs: do not edit. It holds Offheap's flamegraph.js and these libraries:

${notices.trim()}
*/
`;
await mkdir(target, { recursive: true });
await writeFile(new URL("flamegraph.js", target), head + bundle.outputFiles[0].text);
