/*
 * personality(2) of the caller, for hmd.machine.personality.
 */
#include <errno.h>
#include <sys/personality.h>

/* Reads the personality without changing it. */
#define HMD_PERSONALITY_ASK 0xffffffffUL

/* Turns address space randomisation off for programs that the calling process executes. */
static int hmd_fix_addresses(void)
{
    int now = personality(HMD_PERSONALITY_ASK);

    if (now < 0 || personality((unsigned long)now | ADDR_NO_RANDOMIZE) < 0)
        return -errno;
    return 0;
}
