// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//! Nothing: cargo wants a target where it fetches the sources of others.
