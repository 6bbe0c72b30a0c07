#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Installs the Debian packages of the suite of real programs (bench/suite/programs/*.yaml)
# on a Debian 12 machine, as root, for `make bench-estimator` and `make bench-policies`. Packages
# that setup.sh installs are not listed again. Does nothing if all are installed.
set -euo pipefail
cd "$(dirname "$0")/.."
. setup/apt.sh

PACKAGES=(bwa glpk-utils gron lammps liblinear-tools minisat openjdk-17-jdk-headless pbzip2
  python3-igraph sqlite3 tkrzw-utils xgboost)

check_machine
mkdir -p build/setup
install_packages "${PACKAGES[@]}"
