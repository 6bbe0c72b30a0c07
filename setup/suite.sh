#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Installs the Debian packages of the suite of real programs (bench/suite/programs/*.yaml)
# on a Debian 12 machine, as root, for `make bench-estimator` and `make bench-policies`. Packages
# that setup.sh installs are not listed again. Does nothing if all are installed.
set -euo pipefail
cd "$(dirname "$0")/.."
. setup/apt.sh

PACKAGES=(bwa lammps liblinear-tools minisat python3-igraph sqlite3 tkrzw-utils xgboost)

check_machine
mkdir -p build/setup
install_packages "${PACKAGES[@]}"
