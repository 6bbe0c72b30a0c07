/* SPDX-License-Identifier: MIT */
/* The ranges of struct timing_params. */
#ifndef HMD_TIMING_PARAMS_H
#define HMD_TIMING_PARAMS_H

#include "timing.h"

#pragma GCC visibility push(hidden)

/* NULL when every parameter is in range, else which is not and what it may be. */
const char *params_wrong(const struct timing_params *params);

#pragma GCC visibility pop

#endif
