/*
 * madvise(2) with MADV_DONTNEED on memory of the caller, for hmd.machine.own_memory.
 */
#include <errno.h>
#include <stdint.h>
#include <sys/mman.h>

static int hmd_unmap_resident(uint64_t start, uint64_t bytes)
{
    return madvise((void *)(uintptr_t)start, bytes, MADV_DONTNEED) ? -errno : 0;
}
