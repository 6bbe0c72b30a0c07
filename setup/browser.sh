#!/usr/bin/env bash
# Installs the browser in which tests look at the page of `hmd dashboard` (tests/system/dashboard), on
# a Debian 12 machine, as root. `make test` needs it and nothing else does: it is 300 MB with what it
# depends on. Does nothing where it is there.
set -euo pipefail
cd "$(dirname "$0")/.."
. setup/apt.sh

check_machine
mkdir -p build/setup
install_packages chromium fonts-dejavu-core
