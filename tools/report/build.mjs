// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// Bundles the report's script and style with uPlot, and its licence, into the collection, or into a directory given.

import { build } from "esbuild";
import { mkdir, readFile, writeFile } from "node:fs/promises";
import { pathToFileURL } from "node:url";

const target = process.argv[2]
    ? pathToFileURL(process.argv[2] + "/")
    : new URL("../../plugins/plugin_utils/export/assets/", import.meta.url);

const bundle = await build({
    entryPoints: ["src/start.js"],
    bundle: true,
    minify: true,
    write: false,
    outdir: "out",
    format: "iife",
    target: ["es2021", "chrome100", "firefox100", "safari15"],
    charset: "utf8",
    legalComments: "none",
});

const about = JSON.parse(await readFile("node_modules/uplot/package.json", "utf8"));
const licence = (await readFile("node_modules/uplot/LICENSE", "utf8")).replaceAll("*/", "* /").trim();
const head = `/*
SPDX-License-Identifier: GPL-3.0-or-later AND MIT
SPDX-FileCopyrightText: Offheap contributors

Made by tools/report/build.mjs: do not edit. It holds Offheap's report and this library:

uplot ${about.version} (${about.license})
${licence}
*/
`;
await mkdir(target, { recursive: true });
for (const file of bundle.outputFiles) {
    const name = file.path.endsWith(".css") ? "page.css" : "page.js";
    await writeFile(new URL(name, target), head + file.text);
}
