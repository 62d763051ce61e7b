#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
#
# Make a fresh Debian tree ($1) an image that hosts boot from: users, sshd, and no identity of its own.
set -eu
root=$1

# an unprivileged SSH user with sudo, so that become is really exercised, and a service account
chroot "$root" useradd -m -s /bin/bash -u 1000 deploy
chroot "$root" useradd -r -m -d /srv/app -s /usr/sbin/nologin -u 990 app
echo 'deploy ALL=(ALL) NOPASSWD: ALL' > "$root/etc/sudoers.d/deploy"
chmod 440 "$root/etc/sudoers.d/deploy"

# keys, machine-id and names are written per host when it starts
rm -f "$root"/etc/ssh/ssh_host_* "$root/var/lib/dbus/machine-id" "$root/etc/resolv.conf"
: > "$root/etc/machine-id"
: > "$root/etc/default/locale"
ln -s /etc/machine-id "$root/var/lib/dbus/machine-id"
cat > "$root/etc/ssh/sshd_config.d/lab.conf" <<'END'
UseDNS no
PasswordAuthentication no
MaxStartups 100:30:200
MaxSessions 100
HostKey /etc/ssh/ssh_host_ed25519_key
END

# nothing that waits for hardware or a network, and no timers that change files under a test
for unit in console-getty.service getty@.service container-getty@.service apt-daily.timer apt-daily-upgrade.timer \
    e2scrub_all.timer e2scrub_reap.service fstrim.timer dpkg-db-backup.timer man-db.timer logrotate.timer \
    systemd-update-utmp.service systemd-update-utmp-runlevel.service systemd-networkd.service \
    systemd-networkd-wait-online.service systemd-resolved.service systemd-timesyncd.service rsync.service; do
    ln -sf /dev/null "$root/etc/systemd/system/$unit"
done
ln -sf /lib/systemd/system/multi-user.target "$root/etc/systemd/system/default.target"
mkdir -p "$root/etc/systemd/journald.conf.d"
printf '[Journal]\nStorage=volatile\nRuntimeMaxUse=16M\n' > "$root/etc/systemd/journald.conf.d/lab.conf"

rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/*.bin "$root"/var/cache/apt/archives/*.deb
