/*
 * process_madvise(2) with MADV_PAGEOUT over flat arrays, for hmd.machine.pages.process_madvise. The C
 * library of Debian 12 has no wrapper; the call has one number on all architectures.
 */
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#ifndef SYS_process_madvise
#define SYS_process_madvise 440
#endif
#define HMD_MADV_PAGEOUT 21

/* Ranges per call (UIO_MAXIOV). */
#define HMD_PAGEOUT_RANGES 1024

/*
 * Asks the kernel to reclaim ranges of another process's memory. Returns the bytes advised: all, or
 * those before the first range that the kernel refused; -errno if that is the first range.
 */
static int64_t hmd_page_out(int pidfd, size_t count, const uint64_t *start, const uint64_t *bytes)
{
    struct iovec ranges[HMD_PAGEOUT_RANGES];

    if (count > HMD_PAGEOUT_RANGES)
        return -EINVAL;
    for (size_t i = 0; i < count; i++) {
        ranges[i].iov_base = (void *)(uintptr_t)start[i];
        ranges[i].iov_len = bytes[i];
    }
    long result = syscall(SYS_process_madvise, pidfd, ranges, count, HMD_MADV_PAGEOUT, 0);
    return result < 0 ? -errno : result;
}
