# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The operator's console: looks at hosts over SSH, without a playbook. fabfile.py has its commands."""
