#!/bin/sh
# SPDX-License-Identifier: MIT
# The first process of a Debian in the folder $1: becomes its systemd. To be run in mount, process,
# cgroup, UTS and IPC namespaces of its own. As systemd asks of containers
# (https://systemd.io/CONTAINER_INTERFACE): /sys and /proc/sys are read-only, /dev has the devices
# that every program may use.
set -e
[ $$ = 1 ] || exit 1
mount --make-rprivate /
mount --bind "$1" "$1"
cd "$1"
mount -t proc proc proc
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount -t sysfs -o ro sysfs sys
mount -t tmpfs cgroup sys/fs/cgroup
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 run run
mount -t tmpfs -o mode=755 dev dev
for device in null zero full random urandom tty; do
	touch dev/$device
	mount --bind /dev/$device dev/$device
done
mkdir dev/shm dev/pts
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts dev/pts
ln -s pts/ptmx dev/ptmx
# Not chroot: there, programs may not make user namespaces, as units with PrivateUsers= do.
pivot_root . mnt
umount -l mnt
exec env -i container=lxc PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 \
	/lib/systemd/systemd --unit=multi-user.target --log-target=console --show-status=no
