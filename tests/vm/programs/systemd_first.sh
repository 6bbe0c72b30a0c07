#!/bin/sh
# SPDX-License-Identifier: MIT
# The guest's first process: becomes systemd, with the journal and nothing else of what the host's
# file system would have it start. What is removed here is removed in the guest's overlay alone.
set -e
[ $$ = 1 ] || exit 1
rm -rf /lib/systemd/system-generators /lib/systemd/system/*.wants /etc/systemd/system/*.wants
units=/run/systemd/system
mkdir -p $units
for target in sysinit basic multi-user; do
	printf '[Unit]\nDefaultDependencies=no\nWants=systemd-journald.service\n' >$units/$target.target
done
exec /lib/systemd/systemd --unit=multi-user.target --log-target=kmsg </dev/console >/dev/console 2>&1
