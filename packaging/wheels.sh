# SPDX-License-Identifier: MIT
# Sourced after setup/apt.sh by what builds packages, which sets WORK, a folder of its own: the wheels
# of hmd and of the libraries that it runs with.

PYTHON=$PWD/.venv/bin/python
EXTRAS=(plot symbols) # whose libraries packages contain too

build_wheel() { # into WORK/dist; sets version
	rm -rf "$WORK" && mkdir -p "$WORK/dist"
	quietly package-wheel "could not build the wheel" \
		"$PYTHON" -m build --no-isolation --outdir "$WORK/dist" .
	version=$(basename "$WORK"/dist/hmd_tiering-*.tar.gz .tar.gz)
	version=${version#hmd_tiering-}
}

fetch_libraries() { # CPU PYTHON: into WHEELS, again if the locked versions changed
	local cpu=$1 python=$2 platforms=() each
	WHEELS=build/wheels/$cpu-$python
	"$PYTHON" packaging/runtime_requirements.py setup/requirements.lock "${EXTRAS[@]}" >"$WORK/requirements.txt"
	cmp -s "$WORK/requirements.txt" "$WHEELS/requirements.txt" && return
	say "fetching the libraries that hmd runs with"
	rm -rf "$WHEELS" && mkdir -p "$WHEELS"
	for each in manylinux2010 manylinux2014 manylinux_2_12 manylinux_2_17 manylinux_2_27 manylinux_2_28; do
		platforms+=(--platform "${each}_$cpu")
	done
	quietly package-libraries "could not fetch the locked libraries: is there a network?" \
		"$PYTHON" -m pip download --disable-pip-version-check --require-hashes --no-deps \
		--only-binary :all: --python-version "$python" "${platforms[@]}" -d "$WHEELS" -r "$WORK/requirements.txt"
	cp "$WORK/requirements.txt" "$WHEELS/"
}
