#!/usr/bin/env bash
# Installs what builds and checks hmd's Debian package, its manual pages and its completions, on a
# Debian 12 machine, as root. `make deb` and `make test` need it. Does nothing where all is there.
set -euo pipefail
cd "$(dirname "$0")/.."
. setup/apt.sh

PACKAGES=(buildah debhelper dpkg-dev fish lintian man-db mandoc mmdebstrap python3-seccomp zsh)

check_machine
mkdir -p build/setup
install_packages "${PACKAGES[@]}"
