/*
 * personality(2) of the caller, for hmd.machine.personality.
 */
#include <errno.h>
#include <sys/personality.h>

/* What it gives without changing anything. */
#define HMD_PERSONALITY_ASK 0xffffffffUL

/* Let what the calling process executes from here on have the same addresses in every run. */
static int hmd_fix_addresses(void)
{
    int now = personality(HMD_PERSONALITY_ASK);

    if (now < 0 || personality((unsigned long)now | ADDR_NO_RANDOMIZE) < 0)
        return -errno;
    return 0;
}
