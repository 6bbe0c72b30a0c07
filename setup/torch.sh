#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Runs the tests that need PyTorch: `make test-torch`. PyTorch is a gigabyte with its environment,
# so it is not in .venv: build/torch has it, and everything else from .venv.
#
#   setup/torch.sh [ARGUMENTS OF pytest]
set -euo pipefail
cd "$(dirname "$0")/.."
version=2.13.0 # the last whose wheel for Linux is a CPU build on every index
venv=build/torch
if [ "$("$venv/bin/python" -c 'import torch; print(torch.__version__.partition("+")[0])' 2>/dev/null)" != "$version" ]; then
	echo "torch: installing PyTorch $version into $venv" >&2
	rm -rf "$venv"
	.venv/bin/python -m venv "$venv"
	.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
		>"$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/hmd.pth"
	"$venv/bin/pip" install --quiet --disable-pip-version-check "torch==$version" || {
		echo "torch: could not install PyTorch: is there a network?" >&2
		exit 1
	}
fi
export OMP_NUM_THREADS=1
exec "$venv/bin/python" -m pytest --strict-skips -n 2 --dist loadfile \
	${@:-tests/unit/torch tests/unit/tensors/capture}
