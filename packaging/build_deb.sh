#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Builds build/deb/hmd_VERSION_amd64.deb from this checkout with debhelper (packaging/debian): a
# wheel of hmd and the wheels of its libraries in the versions of setup/requirements.lock. Needs
# what setup/setup.sh and setup/debian.sh install. A failure is one line.
#
#   packaging/build_deb.sh [OUTPUT-FOLDER] [RELEASE] [MACHINE]      (build/deb bookworm amd64)
#
# RELEASE is bookworm, trixie or noble (Ubuntu 24.04): which Python the package is for. MACHINE is
# amd64 or arm64; for arm64 setup/arm64.sh has built the modules.
set -euo pipefail
cd "$(dirname "$0")/.."
. setup/apt.sh
. packaging/wheels.sh

OUTPUT=${1:-build/deb}
RELEASE=${2:-bookworm}
MACHINE=${3:-amd64}
WORK=build/deb-work
case $RELEASE in
bookworm) HMD_PYTHON=3.11 suffix= ;;
noble) HMD_PYTHON=3.12 suffix=+ubuntu24.04 ;;
trixie) HMD_PYTHON=3.13 suffix=+deb13 ;;
*) fail "there is no package for $RELEASE: bookworm, noble or trixie" ;;
esac
case $MACHINE in
amd64) cpu=x86_64 HMD_NATIVE= ;;
arm64) cpu=aarch64 HMD_NATIVE=$PWD/build/arm64/tree/hmd
	[ -e "$HMD_NATIVE/_native.abi3.so" ] || fail "the modules for arm64 are not built: setup/arm64.sh builds them" ;;
*) fail "there is no package for $MACHINE: amd64 or arm64" ;;
esac
export HMD_PYTHON HMD_NATIVE
mkdir -p build/setup "$OUTPUT"
OUTPUT=$(realpath "$OUTPUT")

lay_out_source() {
	tar -xf "$WORK/dist/hmd_tiering-$version.tar.gz" -C "$WORK"
	source=$WORK/hmd_tiering-$version
	mv "$source/packaging/debian" "$source/debian"
	mkdir "$source/wheels"
	cp "$WHEELS"/*.whl "$WORK"/dist/*.whl "$source/wheels/"
	sed "s/@VERSION@/$version$suffix/; s/@RELEASE@/$RELEASE/; s/@DATE@/$(date -R -u -d "@$SOURCE_DATE_EPOCH")/" \
		"$source/debian/changelog.in" >"$source/debian/changelog"
}

build_package() {
	quietly deb-package "could not build the package" env HMD_PIP="$PYTHON -m pip" \
		sh -c 'cd "$1" && dpkg-buildpackage -d -a "$2" --build=binary -us -uc' sh "$source" "$MACHINE"
	mv "$WORK/hmd_$version${suffix}_$MACHINE.deb" "$OUTPUT/"
	"$PYTHON" packaging/sbom.py "$OUTPUT/hmd_$version${suffix}_$MACHINE.cdx.json" \
		--deb "$OUTPUT/hmd_$version${suffix}_$MACHINE.deb" "${EXTRAS[@]}"
}

# Modules of other paths are not part of the package.
unset PYTHONPATH PYTHONHOME
# Debug information contains the path of the build and is stripped anyway.
export CFLAGS=-g0
# The same commit gives the same package.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH
build_wheel
fetch_libraries "$cpu" "$HMD_PYTHON"
lay_out_source
say "building hmd_$version${suffix}_$MACHINE.deb"
build_package
rm -rf "$WORK"
say "built $OUTPUT/hmd_$version${suffix}_$MACHINE.deb"
