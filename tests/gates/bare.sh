#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
# bare.sh COMMAND...    run it as on a machine that never ran any of this: without our directories, in an empty home
#
# Our directories are absent, not empty, since a test can lean on an empty one too. A mount hides what is in a
# directory, not the directory, so their parents are mounted anew with all else in them; read-only: no test makes one.
set -eu
cd "$(dirname "$0")/../.."

fail() { printf 'bare.sh: %s\n' "$*" >&2; exit 1; }
can_mount() { "$@" mount -t tmpfs tmpfs /tmp 2>/dev/null; }

if [ "$1" != --hide ]; then
    if can_mount unshare --mount; then
        exec unshare --mount tests/gates/bare.sh --hide "$@"
    elif can_mount unshare --user --map-root-user --mount; then
        # Who mounts is root there; who tests is the user again.
        exec unshare --user --map-root-user --mount tests/gates/bare.sh --hide \
            unshare --user --map-user="$(id -u)" --map-group="$(id -g)" "$@"
    fi
    fail "hiding what earlier runs left on this machine needs root or user namespaces, and there is neither"
fi
shift

stage=$(mktemp -d /tmp/offheap-bare.XXXXXX)
for hidden in /var/lib/offheap /opt/offheap /run/offheap /var/cache/offheap-lab; do
    parent=${hidden%/*}
    mount -t tmpfs -o mode=755 tmpfs "$stage"
    for entry in "$parent"/* "$parent"/.[!.]*; do
        again=$stage/${entry##*/}
        if [ "$entry" = "$hidden" ]; then
            continue
        elif [ -L "$entry" ]; then
            cp -P "$entry" "$again"
        elif [ -d "$entry" ]; then
            mkdir "$again"
            mount --rbind "$entry" "$again"
        elif [ -e "$entry" ]; then
            : >"$again"
            mount --bind "$entry" "$again"
        fi
    done
    mount -o remount,bind,ro "$stage"
    mount -n --move "$stage" "$parent" # -n: without root it cannot keep notes in /run
done

if [ -d "${HOME:-}" ] && [ "$HOME" != / ]; then
    home=$(realpath "$HOME")
    # A checkout, its .venv and the Python of that may lie in the home.
    needed=$(.venv/bin/python -c 'import os, sys; print(os.getcwd(), sys.prefix, sys.base_prefix, sep="\n")' |
        xargs -d '\n' realpath)
    mount -t tmpfs -o "mode=$(stat -c %a "$home")" tmpfs "$stage"
    printf '%s\n' "$needed" | while IFS= read -r path; do
        case $path in
            "$home"/*)
                mkdir -p "$stage${path#"$home"}"
                mount --rbind "$path" "$stage${path#"$home"}"
                ;;
        esac
    done
    mount -n --move "$stage" "$home"
fi
rmdir "$stage"

# Anew, since the old working directory is that below the mounts.
{ cd "$PWD" && [ -x .venv/bin/python ]; } 2>/dev/null || fail "this checkout is hidden too: it must lie elsewhere"
exec "$@"
