/*
 * process_madvise(2) with MADV_PAGEOUT over flat arrays, for hmd.machine.process_madvise. The call has no
 * wrapper in the C library of Debian 12; its number is the same on all architectures.
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

/* Ranges that one call hands to the kernel (UIO_MAXIOV). */
#define HMD_PAGEOUT_RANGES 1024

/*
 * Ask for ranges of another process's memory to be reclaimed. Gives how many bytes were asked
 * for: all, or those before the first range that the kernel refused, or -errno where that was
 * the very first.
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
