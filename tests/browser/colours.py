# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What colours the flame graph has."""

from __future__ import annotations

from playwright.sync_api import Page


def share(page: Page, *kinds: str) -> float:
    """The share of the graph that has the colours of these words of the legend, by pixels."""
    return float(
        page.evaluate(
            """kinds => {
                const graph = document.querySelector("#graph");
                const probe = document.createElement("canvas");
                [probe.width, probe.height] = [graph.width, graph.height];
                const context = probe.getContext("2d", {willReadFrequently: true});
                context.drawImage(graph, 0, 0);
                const pixels = context.getImageData(0, 0, graph.width, graph.height).data;
                const colour = kind => {
                    const style = getComputedStyle(document.querySelector(`#legend .${kind}`));
                    context.fillStyle = style.backgroundColor;
                    context.fillRect(0, 0, 1, 1);
                    return context.getImageData(0, 0, 1, 1).data.join();
                };
                const wanted = kinds.map(colour);
                let [hits, all] = [0, 0];
                for (let at = 0; at < pixels.length; at += 4) {
                    if (pixels[at + 3] < 255) continue;
                    all++;
                    if (wanted.includes(pixels.slice(at, at + 4).join())) hits++;
                }
                return hits / all;
            }""",
            list(kinds),
        )
    )
