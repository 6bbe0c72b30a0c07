#!/bin/sh
# SPDX-License-Identifier: MIT
# Run the daemon as the service does: another user with the unit's capabilities and no more, and
# a socket that everybody may connect to. Arguments: capabilities, joined by commas, and the command.
set -e
capabilities=$1
shift
# What this user may run lies in a checkout; what is changed here is changed in the guest's overlay.
for path in "$PWD" "$(readlink -f "$1")"; do
	while [ "$path" != / ]; do
		chmod o+rx "$path"
		path=$(dirname "$path")
	done
done
# At 3, where Debian has it, its kernels want CAP_SYS_ADMIN for perf events; at 2 CAP_PERFMON does.
echo 2 >/proc/sys/kernel/perf_event_paranoid
mkdir -p /run/hmd /var/cache/hmd
cp -r "$NUMBA_CACHE_DIR/." /var/cache/hmd
chown -R 990:990 /run/hmd /var/cache/hmd
export NUMBA_CACHE_DIR=/var/cache/hmd
exec setpriv --reuid 990 --regid 990 --clear-groups --inh-caps "$capabilities" \
	--ambient-caps "$capabilities" --bounding-set "$(printf %s "$capabilities" | sed 's/^/-all,/')" \
	--no-new-privs "$@"
