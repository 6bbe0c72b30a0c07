/*
 * The ioctl PROCMAP_QUERY (Linux 6.11, include/uapi/linux/fs.h) over many addresses, for
 * hmd.machine.pages.mapping_queries. Each query asks for one mapping, and the kernel holds the target's
 * locks for that one only.
 */
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>

/* struct procmap_query, which headers before Linux 6.11 lack. */
struct hmd_query {
    uint64_t size, query_flags, query_addr;
    uint64_t vma_start, vma_end, vma_flags, vma_page_size, vma_offset, inode;
    uint32_t dev_major, dev_minor, vma_name_size, build_id_size;
    uint64_t vma_name_addr, build_id_addr;
};

#define HMD_PROCMAP_QUERY _IOWR('f', 17, struct hmd_query)
/* The mapping at the address, or the next one above it. */
#define HMD_COVERING_OR_NEXT 0x10
/* PROCMAP_QUERY_VMA_READABLE, WRITABLE, EXECUTABLE and SHARED. */
#define HMD_ACCESS 0xf
#define HMD_READ_WRITE_EXECUTE 0x7
/* The longest name that the kernel gives (PATH_MAX). */
#define HMD_NAME_BYTES 4096

struct hmd_mapping {
    uint64_t start, end, offset, inode;
    uint32_t device_major, device_minor, name_start, name_bytes, access, reserved;
};

/* Returns 0 or -errno: ENOENT with no mapping at or above the address. */
static int hmd_query_one(int fd, uint64_t address, struct hmd_query *query, char *name)
{
    for (int named = 1; named >= 0; named--) {
        memset(query, 0, sizeof(*query));
        query->size = sizeof(*query);
        query->query_flags = HMD_COVERING_OR_NEXT;
        query->query_addr = address;
        query->vma_name_size = named ? HMD_NAME_BYTES : 0;
        query->vma_name_addr = named ? (uint64_t)(uintptr_t)name : 0;
        if (ioctl(fd, HMD_PROCMAP_QUERY, query) == 0)
            break;
        if (errno != ENAMETOOLONG || !named)
            return -errno;
    }
    if (!query->vma_name_size) {
        /* No name is anonymous memory, or a file whose path does not fit. */
        strcpy(name, query->inode ? "/" : "");
        query->vma_name_size = (uint32_t)strlen(name) + 1;
    }
    return 0;
}

/* Appends a mapping and its name; `used` is the length of all names. */
static void hmd_take_mapping(const struct hmd_query *query, const char *name,
                             struct hmd_mapping *row, char *names, size_t *used)
{
    size_t bytes = query->vma_name_size - 1;

    memcpy(names + *used, name, bytes);
    *row = (struct hmd_mapping){
        .start = query->vma_start,
        .end = query->vma_end,
        .offset = query->vma_offset,
        .inode = query->inode,
        .device_major = query->dev_major,
        .device_minor = query->dev_minor,
        .name_start = (uint32_t)*used,
        .name_bytes = (uint32_t)bytes,
        .access = (uint32_t)(query->vma_flags & HMD_ACCESS),
    };
    *used += bytes;
}

/*
 * Fills `found` with the mappings that contain any of the ascending `addresses`, in order, at most
 * `most` of them and `room` bytes of names; `done` is the number of addresses that are answered.
 * Returns the number of mappings, or -errno: ENOTTY before Linux 6.11, ESRCH after exit.
 */
static int64_t hmd_mappings_at(int fd, size_t count, const uint64_t *addresses, size_t most,
                               struct hmd_mapping *found, size_t room, char *names, size_t *done)
{
    struct hmd_query query = { 0 };
    char name[HMD_NAME_BYTES];
    size_t rows = 0, used = 0;
    int taken = 1;

    for (*done = 0; *done < count; ++*done) {
        uint64_t address = addresses[*done];
        if (address >= query.vma_end) {
            int result = hmd_query_one(fd, address, &query, name);
            if (result == -ENOENT) {
                *done = count;
                break;
            }
            if (result < 0)
                return result;
            taken = 0;
        }
        if (taken || address < query.vma_start)
            continue;
        if (rows == most || used + query.vma_name_size > room)
            break;
        hmd_take_mapping(&query, name, &found[rows++], names, &used);
        taken = 1;
    }
    return (int64_t)rows;
}

/* Returns whether pages of the mapping are the process's own memory, and accessible. */
static int hmd_is_own_memory(const struct hmd_query *query, const char *name)
{
    if (!(query->vma_flags & HMD_READ_WRITE_EXECUTE) || query->inode)
        return 0;
    return !name[0] || !strcmp(name, "[heap]") || !strncmp(name, "[anon:", 6);
}

/*
 * Fills `found` with the mappings from `*address` on, in order, as hmd_mappings_at. After
 * anonymous memory it goes on with the next multiple of `stride`: so many mappings within one
 * stride cost two queries. Sets `*address` to where to go on. Returns the number of mappings, 0
 * where there are no more, or -errno.
 */
static int64_t hmd_mappings_from(int fd, uint64_t *address, uint64_t stride, size_t most,
                                 struct hmd_mapping *found, size_t room, char *names)
{
    struct hmd_query query;
    char name[HMD_NAME_BYTES];
    size_t rows = 0, used = 0;

    while (rows < most && used + HMD_NAME_BYTES <= room) {
        int result = hmd_query_one(fd, *address, &query, name);
        if (result == -ENOENT)
            break;
        if (result < 0)
            return result;
        uint64_t at = *address > query.vma_start ? *address : query.vma_start;
        uint64_t next = hmd_is_own_memory(&query, name) ? (at / stride + 1) * stride : 0;
        *address = next > query.vma_end ? next : query.vma_end;
        hmd_take_mapping(&query, name, &found[rows++], names, &used);
    }
    return (int64_t)rows;
}
