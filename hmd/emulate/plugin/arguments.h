/* SPDX-License-Identifier: MIT */
/*
 * The plugin's arguments, as QEMU passes them: -plugin FILE.so,shared=PATH,params=PATH,dilation=20
 *
 *   shared    file or memfd (/proc/self/fd/N) of shared.h, of its final size
 *   params    file that holds one struct timing_params, as the host's C lays it out
 *   recording file or memfd for recorded misses (recording.h); optional
 *   step      modelled ns by which no vCPU may be ahead of another that runs; optional
 *   dilation  host time over modelled time; 0 disables pacing (the guest runs at full speed)
 */
#ifndef HMD_PLUGIN_ARGUMENTS_H
#define HMD_PLUGIN_ARGUMENTS_H

#include "timing.h"

struct arguments {
	const char *shared;
	const char *params;
	const char *recording; /* NULL: none */
	double dilation;
	double step_ns; /* 0: they run at the host's pace */
};

/* 0, or -1 with the reason on standard error in one line. */
int arguments_parse(struct arguments *arguments, int argc, char **argv);

/* Read a parameter file; 0, or -1 with one line in *why. timing_new checks the values. */
int arguments_read_params(const char *path, struct timing_params *params, const char **why);

/* The one line on standard error with which the plugin refuses to start; returns -1. */
int arguments_refuse(const char *what, const char *why);

#endif
