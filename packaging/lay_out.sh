#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Lays out hmd and its libraries as packages install them, for any Python and machine:
#
#   packaging/lay_out.sh ROOT WHEELS PYTHON MACHINE [NATIVE]
#
# ROOT gets usr/lib/hmd, a virtual environment for /usr/bin/pythonPYTHON (3.11), and usr/share.
# WHEELS is a folder with the wheels of hmd and its libraries, MACHINE x86_64 or aarch64, NATIVE a
# folder hmd/ whose modules replace those of hmd's wheel, which are of the machine that built it.
# HMD_PIP is the pip to use. No file keeps the name of the folder that it was made in.
set -euo pipefail
root=$1 wheels=$2 python=$3 machine=$4 native=${5:-} prefix=/usr/lib/hmd
environment=$root$prefix
site=$environment/lib/python$python/site-packages

platforms=(--platform linux_x86_64)
for each in manylinux2010 manylinux2014 manylinux_2_12 manylinux_2_17 manylinux_2_27 manylinux_2_28; do
	platforms+=(--platform "${each}_$machine")
done
mkdir -p "$environment/bin" "$root/usr/bin"
# hmd's wheel is of linux_x86_64 wherever it is for: NATIVE has the other machine's modules.
${HMD_PIP:-/usr/bin/python$python -m pip} install --quiet --no-index --no-deps --no-compile \
	--no-warn-script-location --disable-pip-version-check --only-binary :all: \
	--python-version "$python" "${platforms[@]}" --target "$site" "$wheels"/*.whl
[ -z "$native" ] || (cd "$native" && find . -name '*.abi3.so' -exec cp {} "$site/hmd/{}" \;)
# -I: what a user has in PYTHONPATH or in ~/.local is not hmd's.
sed "1s|.*|#!$prefix/bin/python -I|" "$site/bin/hmd" >"$environment/bin/hmd"
chmod 755 "$environment/bin/hmd"
ln -s "/usr/bin/python$python" "$environment/bin/python"
ln -s python "$environment/bin/python3"
ln -s ../lib/hmd/bin/hmd "$root/usr/bin/hmd"
printf 'home = /usr/bin\ninclude-system-site-packages = false\nversion = %s\n' "$python" \
	>"$environment/pyvenv.cfg"
# Of the programs, hmd alone: those of its libraries are for developers.
rm -rf "$site/bin"
find "$site/share/man" -type f ! -name 'hmd*' -delete
mv "$site/share" "$root/usr/share"
find "$environment" -type d \( -name tests -o -name __pycache__ \) -prune -exec rm -rf {} +
# Lists with hashes of what has been moved or left out.
find "$environment" \( -name direct_url.json -o -path '*.dist-info/RECORD' \) -delete
find "$environment" -type f -name '*.py' -perm /111 -exec chmod a-x {} +
mkdir "$environment/share"
ln -s ../../../share/hmd "$environment/share/hmd"
strip=strip
[ "$machine" = "$(uname -m)" ] || strip=$machine-linux-gnu-strip
"$strip" --strip-unneeded "$site"/hmd/_native.*so "$site"/hmd/emulate/_timing.*so
if grep -rIlF "$root" "$root"; then
	echo "lay_out: these files name $root" >&2
	exit 1
fi
