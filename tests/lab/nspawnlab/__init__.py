# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Disposable systemd hosts with sshd: systemd-nspawn over an overlay, one network namespace and one cgroup each."""
