/*
 * kcmp(2) of address spaces, for hmd.machine.pages.address_space.
 */
#include <errno.h>
#include <linux/kcmp.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Returns 0, 1, 2 or 3 as kcmp(2) does, or -errno. */
static int hmd_compare_spaces(int first, int second)
{
    long result = syscall(SYS_kcmp, first, second, KCMP_VM, 0, 0);

    return result < 0 ? -errno : (int)result;
}
