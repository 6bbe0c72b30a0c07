/*
 * move_pages(2) over flat arrays, for hmd.machine.pages.move_pages, and set_mempolicy(2) of the caller,
 * for hmd.machine.memory_policy. cffi releases the interpreter's lock around the calls, so that a
 * slow migration does not stop other threads of the daemon.
 *
 * On a 64-bit kernel an array of page pointers and an array of uint64_t have the same layout.
 */
#include <errno.h>
#include <numaif.h>
#include <stddef.h>
#include <stdint.h>

_Static_assert(sizeof(void *) == sizeof(uint64_t), "addresses are passed to the kernel as they are");

/* Entries per query; their status fits on the stack. */
#define HMD_QUERY_ENTRIES 1024

/* Node ids are lower (NODES_SHIFT is at most 10). */
#define HMD_MAX_NODES 1024

/*
 * Fills `nodes` with the node of each page, or -errno of that page. Returns 0, or the -errno of a
 * call that failed as a whole; `nodes` is then valid up to that call.
 */
static int64_t hmd_query_nodes(int pid, size_t count, const uint64_t *addresses, int16_t *nodes)
{
    int status[HMD_QUERY_ENTRIES];
    for (size_t start = 0; start < count; start += HMD_QUERY_ENTRIES) {
        size_t entries = count - start < HMD_QUERY_ENTRIES ? count - start : HMD_QUERY_ENTRIES;
        /* The declaration lacks a const: the kernel only reads the array of pages. */
        if (move_pages(pid, entries, (void **)(uintptr_t)(addresses + start), NULL, status, 0) < 0)
            return -errno;
        for (size_t i = 0; i < entries; i++)
            nodes[start + i] = (int16_t)status[i];
    }
    return 0;
}

/* Returns what the kernel returns: 0, the number of pages not migrated, or -errno. */
static int64_t hmd_move_pages(int pid, size_t count, const uint64_t *addresses,
                              const int32_t *nodes, int32_t *status, int flags)
{
    long result = move_pages(pid, count, (void **)(uintptr_t)addresses, nodes, status, flags);
    return result < 0 ? -errno : result;
}

/* Binds allocations of the calling thread and its children to these nodes. Returns 0 or -errno. */
static int hmd_bind_memory(size_t count, const int32_t *nodes)
{
    unsigned long mask[HMD_MAX_NODES / (8 * sizeof(unsigned long))] = { 0 };
    const size_t bits = 8 * sizeof(unsigned long);

    for (size_t i = 0; i < count; i++) {
        if (nodes[i] < 0 || nodes[i] >= HMD_MAX_NODES)
            return -EINVAL;
        mask[nodes[i] / bits] |= 1UL << (nodes[i] % bits);
    }
    /* The kernel reads one bit less than maxnode says (mm/mempolicy.c, get_nodes()). */
    return set_mempolicy(MPOL_BIND, mask, HMD_MAX_NODES + 1) < 0 ? -errno : 0;
}
