/*
 * madvise(2) with MADV_DONTNEED on memory of the caller, and mallopt(3), for
 * hmd.machine.own_memory.
 */
#include <errno.h>
#include <malloc.h>
#include <stdint.h>
#include <sys/mman.h>

static int hmd_unmap_resident(uint64_t start, uint64_t bytes)
{
    return madvise((void *)(uintptr_t)start, bytes, MADV_DONTNEED) ? -errno : 0;
}

static int hmd_keep_freed(int mapped_bytes, int kept_bytes)
{
    return mallopt(M_MMAP_THRESHOLD, mapped_bytes) && mallopt(M_TRIM_THRESHOLD, kept_bytes);
}
