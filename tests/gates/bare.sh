#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
# bare.sh COMMAND...    run it as on a fresh machine: without our directories, in an empty home
#
# Our directories are absent, not empty: a test could depend on an empty one, too. A mount hides a directory's content,
# not the directory itself. So their parents are mounted anew with everything else in them, read-only, so that no test
# creates one.
set -eu
cd "$(dirname "$0")/../.."

fail() { printf 'bare.sh: %s\n' "$*" >&2; exit 1; }
can_mount() { "$@" mount -t tmpfs tmpfs /tmp 2>/dev/null; }

if [ "$1" != --hide ]; then
    if can_mount unshare --mount; then
        exec unshare --mount tests/gates/bare.sh --hide "$@"
    elif can_mount unshare --user --map-root-user --mount; then
        # Mounting needs root in there; the tests run as the user again.
        exec unshare --user --map-root-user --mount tests/gates/bare.sh --hide \
            unshare --user --map-user="$(id -u)" --map-group="$(id -g)" "$@"
    fi
    fail "hiding what earlier runs left on this machine needs root or user namespaces, but there is neither"
fi
shift

# Nothing that is hidden below lies there, nor does anybody's home.
stage=$(mktemp -d "/dev/shm/offheap-bare.$$.XXXXXX")
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
    mount -n --move "$stage" "$parent" # -n: without root it cannot write to /run/mount
done

if [ -d "${HOME:-}" ] && [ "$HOME" != / ]; then
    home=$(realpath "$HOME")
    # The checkout, its .venv and that one's Python may be in the home.
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

# Enter it again: the old working directory is the one below the mounts.
{ cd "$PWD" && [ -x tests/gates/bare.sh ]; } 2>/dev/null || fail "this checkout is hidden, too: move it elsewhere"
exec "$@"
