// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// Bundles the report's script and style with uPlot and dagre, and their licences, into the collection, or into a
// directory given.

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

// Whose code is in it.
const libraries = await Promise.all(
    ["uplot", "@dagrejs/dagre", "@dagrejs/graphlib"].map(async (name) => {
        const about = JSON.parse(await readFile(`node_modules/${name}/package.json`, "utf8"));
        const licence = await readFile(`node_modules/${name}/LICENSE`, "utf8");
        return `${name} ${about.version} (${about.license})\n${licence.replaceAll("*/", "* /").trim()}`;
    }),
);
const head = `/*
SPDX-License-Identifier: GPL-3.0-or-later AND MIT
SPDX-FileCopyrightText: Offheap contributors

Made by tools/report/build.mjs: do not edit. It holds Offheap's report and these libraries:

${libraries.join("\n\n")}
*/
`;
await mkdir(target, { recursive: true });
for (const file of bundle.outputFiles) {
    const name = file.path.endsWith(".css") ? "page.css" : "page.js";
    await writeFile(new URL(name, target), head + file.text);
}
