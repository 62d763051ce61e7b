// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// Reads the data, and then builds the page from it.

import { read } from "./page_data.js";

read().then(
    () => import("./report.js"),
    (error) => document.getElementById("report").append(error.message),
);
