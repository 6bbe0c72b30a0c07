#!/bin/sh
# SPDX-License-Identifier: MIT
# Slurm's Epilog= (slurm.conf, run by slurmd as root): removes the job from hmd's targets.
# Slurm drains a node whose epilog fails: see prolog.sh.
rm -f "${HMD_DROP_INS:-/run/hmd.d}/slurm-$SLURM_JOB_ID.yaml"
systemctl reload hmd
exit 0
