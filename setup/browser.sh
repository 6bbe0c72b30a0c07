#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Installs the browser for the tests of `hmd dashboard` (tests/system/dashboard) on a Debian 12
# machine, as root. Only `make test` needs it; it takes 300 MB with its dependencies. Does nothing
# if it is installed.
set -euo pipefail
cd "$(dirname "$0")/.."
. setup/apt.sh

check_machine
mkdir -p build/setup
install_packages chromium fonts-dejavu-core
