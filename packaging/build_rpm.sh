#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Builds hmd's RPM for Rocky Linux, AlmaLinux and RHEL 9 from the working tree, on Debian 12: the
# wheels of hmd and of its libraries, laid out as the Debian package has them. Needs what
# setup/setup.sh and setup/debian.sh install. A failure is one line.
#
#   packaging/build_rpm.sh [OUTPUT-FOLDER]      (build/rpm)
set -euo pipefail
cd "$(dirname "$0")/.."
. setup/apt.sh
. packaging/wheels.sh

OUTPUT=${1:-build/rpm}
WORK=$PWD/build/rpm-work
HMD_PYTHON=3.11 # EL 9's own is 3.9; 3.11 is in its AppStream
root=$WORK/root
mkdir -p build/setup "$OUTPUT"
OUTPUT=$(realpath "$OUTPUT")

add_to_layout() { # what packages have beside what lay_out.sh lays out
	local shipped=$root/usr/share/hmd docs=$root/usr/share/doc
	install -D -m 644 -t "$root/usr/lib/systemd/system" "$shipped/systemd/hmd.service"
	install -D -m 644 -t "$root/usr/lib/sysusers.d" "$shipped/systemd/sysusers.d/hmd.conf"
	install -D -m 644 -t "$root/usr/lib/tmpfiles.d" "$shipped/systemd/tmpfiles.d/hmd.conf"
	install -D -m 644 -t "$root/etc/hmd" "$shipped/config/hmd.yaml"
	find "$root/usr/share/man" -type f -exec gzip -9n {} +
	mkdir -p "$root/etc/hmd/hmd.d" "$docs"
	tar -xf "$WORK/dist/hmd_tiering-$version.tar.gz" -C "$WORK"
	cp -r "$WORK/hmd_tiering-$version/docs" "$docs/hmd"
	cp README.md CHANGELOG.md LICENSE "$docs/hmd/"
}

PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
unset PYTHONPATH
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || date +%s)
export SOURCE_DATE_EPOCH
build_wheel
fetch_libraries x86_64 "$HMD_PYTHON"
cp "$WHEELS"/*.whl "$WORK/dist/"
quietly rpm-layout "could not lay the files out" env HMD_PIP="$PYTHON -m pip" \
	packaging/lay_out.sh "$root" "$WORK/dist" "$HMD_PYTHON" x86_64
add_to_layout
say "building hmd-$version-1.el9.x86_64.rpm"
quietly rpm-package "could not build the package" rpmbuild -bb --define "_topdir $WORK/rpmbuild" \
	--define "_rpmdir $OUTPUT" --define "_rpmfilename %{NAME}-%{VERSION}-%{RELEASE}.%{ARCH}.rpm" \
	--define "hmd_root $root" --define "hmd_version $version" packaging/rpm/hmd.spec
"$PYTHON" packaging/sbom.py "$OUTPUT/hmd-$version-1.el9.x86_64.cdx.json" "${EXTRAS[@]}"
rm -rf "$WORK"
say "built $OUTPUT/hmd-$version-1.el9.x86_64.rpm"
