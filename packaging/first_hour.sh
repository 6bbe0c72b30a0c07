#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# A new user's first hour on a fresh Debian 12, as root: each command, the end of what it says and
# its seconds, then a JSON document of them. Ends at the first command that fails.
#
#   packaging/first_hour.sh clone JSON       in a clone: make setup
#   packaging/first_hour.sh PACKAGE JSON     with hmd_VERSION_amd64.deb
#
# Installs redis and Prometheus beside hmd and enables all three: not for a machine in use.
# `python -m bench.first_hour` runs it in a Debian of its own.
set -euo pipefail
from=$1 json=$2 steps= begun_s=$EPOCHREALTIME
folder=$(mktemp -d)
export DEBIAN_FRONTEND=noninteractive COLUMNS=100

seconds_since() { awk -v from="$1" -v to="$EPOCHREALTIME" 'BEGIN { printf "%.1f", to - from }'; }
step() { # NAME COMMAND...
	local name=$1 from_s=$EPOCHREALTIME log=$folder/$1.log took
	shift
	local text=$*
	printf '$ %s\n' "${text#until_ok }"
	"$@" >"$log" 2>&1 || {
		tail -n 40 "$log"
		journalctl --no-pager -n 40
		echo "first hour: $name failed" >&2
		exit 1
	}
	tail -n 12 "$log"
	took=$(seconds_since "$from_s")
	steps+="\"$name\": $took, "
	echo "# $name: $took s, $(seconds_since "$begun_s") s since the start"
}
until_ok() { # COMMAND...: each half second, for two minutes at most
	local try
	for try in $(seq 240); do "$@" >"$folder/try.log" 2>&1 && cat "$folder/try.log" && return; sleep 0.5; done
	cat "$folder/try.log"
	return 1
}
step lists apt-get update
step site apt-get install -y --no-install-recommends redis-server redis-tools curl
systemctl restart redis-server
# The site's load.
while redis-benchmark -q -c 2 -t set,get -r 100000 -n 5000; do sleep 1; done >/dev/null 2>&1 &
load=$!
trap 'kill $load' EXIT
if [ "$from" = clone ]; then
	step tools apt-get install -y --no-install-recommends make git
	step install make setup
	export PATH=$PWD/.venv/bin:$PATH
	shipped=$PWD/config
else
	step install apt-get install -y "$from"
	shipped=/usr/share/hmd/config
fi
installed_s=$EPOCHREALTIME
step topology hmd topology
# Its exit status is 4 where something is missing, such as a second kind of memory.
step doctor sh -c 'hmd doctor || [ $? = 4 ]'
# As docs/tutorial/first-run.md has it.
printf 'targets: [{name: db, exe: redis-server}]\n' >"$folder/try.yaml"
step check hmd config check "$folder/try.yaml"
step match hmd config match "$folder/try.yaml"
step follow hmd run --config "$folder/try.yaml" --dry-run --ticks 3
grep -q "following pid" "$folder/follow.log"
followed_s=$(seconds_since "$installed_s")
step record hmd record -o "$folder/run.hmdt" -- python3 -c \
	'd = {n * 2654435761: n for n in range(300000)}; print(sum(d[k] for _ in range(8) for k in d))'
step trace hmd trace info "$folder/run.hmdt"
step picture hmd trace heatmap "$folder/run.hmdt" -o "$folder/heat.png"
step estimate hmd estimate "$folder/run.hmdt" --recorded-on fast --latencies 90,250 --bandwidths 40,20
step simulate hmd simulate "$folder/run.hmdt" --fast 25%
mkdir -p /etc/hmd
cp "$folder/try.yaml" /etc/hmd/hmd.yaml
step service hmd enable --yes
step status until_ok sh -c 'hmd status | grep redis-server'
step report until_ok hmd report --since 1h
hmd dashboard >"$folder/dashboard.log" 2>&1 &
page=$!
step dashboard until_ok sh -c 'curl -sf http://127.0.0.1:9743/ | grep "<title>"'
kill "$page"
step metrics sh -c "curl -sf http://127.0.0.1:9742/metrics | grep 'hmd_target.*\"db\"'"
step prometheus apt-get install -y --no-install-recommends prometheus
cp "$shipped"/prometheus/{prometheus,hmd-alerts}.yml /etc/prometheus/
systemctl restart prometheus
step scraped until_ok sh -c \
	'curl -sf "http://127.0.0.1:9090/api/v1/query?query=hmd_target_processes" | grep db'
total_s=$(seconds_since "$begun_s")
echo "# all: $total_s s; the first process was followed $followed_s s after the installation"
printf '{"total_s": %s, "followed_after_install_s": %s, "steps_s": {%s}}\n' \
	"$total_s" "$followed_s" "${steps%, }" >"$json"
rm -r "$folder"
