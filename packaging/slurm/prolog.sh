#!/bin/sh
# SPDX-License-Identifier: MIT
# Slurm's Prolog= (slurm.conf, run by slurmd as root): makes the job a target of hmd on this node,
# by the cgroup of its steps (cgroup/v2 plugin).
#
# Slurm drains a node whose prolog fails. On any error here the job runs without hmd.
drop_ins=${HMD_DROP_INS:-/run/hmd.d}
cgroup=/system.slice/slurmstepd.scope/job_$SLURM_JOB_ID

[ -d "$drop_ins" ] || exit 0 # no hmd on this node
# A user who owns the folder, or its parent, could make root write elsewhere.
if [ ! -O "$drop_ins" ] || [ -L "$drop_ins" ]; then
	echo "hmd: $drop_ins does not belong to $(id -un): job $SLURM_JOB_ID is no target" >&2
	exit 0
fi
umask 022
cat >"$drop_ins/.slurm-$SLURM_JOB_ID" <<EOF || exit 0
# Made by Slurm's prolog, removed by its epilog.
targets:
- name: job-$SLURM_JOB_ID
  cgroup: $cgroup
EOF
mv "$drop_ins/.slurm-$SLURM_JOB_ID" "$drop_ins/slurm-$SLURM_JOB_ID.yaml"
systemctl reload hmd
exit 0
