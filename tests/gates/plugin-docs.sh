#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
# Documentation of plugins, modules and roles, and whether everything it refers to exists.
set -eu
antsibull-docs lint-collection-docs --plugin-docs --skip-rstcheck --validate-collection-refs self --check-extra-docs-refs .
