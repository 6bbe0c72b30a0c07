/* SPDX-License-Identifier: MIT */
/*
 * The updates of updates.c on memory that the kernel may back with huge pages: other programs of the
 * suite forbid it (array_of in common.h), and MADV_NORMAL changes nothing.
 */
#include <sys/mman.h>

#undef MADV_NOHUGEPAGE
#define MADV_NOHUGEPAGE MADV_NORMAL

#include "updates.c"
