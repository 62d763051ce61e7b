#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
set -u
status=0
ruff check . || status=1
ruff format --check --diff . || status=1
exit $status
