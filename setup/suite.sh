#!/usr/bin/env bash
# Installs the Debian packages of the suite of real programs (bench/suite/programs/*.yaml)
# on a Debian 12 machine, as root. `make bench-estimator` and `make bench-policies` need them; those that setup.sh
# installs too are not named here. Does nothing where all are there.
set -euo pipefail
cd "$(dirname "$0")/.."
. setup/apt.sh

PACKAGES=(bwa lammps liblinear-tools minisat python3-igraph sqlite3 tkrzw-utils xgboost)

check_machine
mkdir -p build/setup
install_packages "${PACKAGES[@]}"
