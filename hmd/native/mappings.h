/* SPDX-License-Identifier: MIT */
/*
 * The ioctl PROCMAP_QUERY (Linux 6.11, include/uapi/linux/fs.h) over many addresses, for
 * hmd.linux.mappings. Each query is of one mapping, and the kernel holds the target's locks for
 * that one only.
 */
#ifndef HMD_MAPPINGS_H
#define HMD_MAPPINGS_H

#include <stddef.h>
#include <stdint.h>

/* A mapping; its name is `name_bytes` of the caller's buffer from `name_start` on. */
struct hmd_mapping {
	uint64_t start, end, offset, inode;
	uint32_t device_major, device_minor, name_start, name_bytes, access, reserved;
};

/*
 * Fills `found` with the mappings that contain any of the ascending `addresses`, in order, at most
 * `max_rows` of them and `name_room` bytes of names; `done` is the number of addresses that are
 * answered. Returns the number of mappings, or -errno: ENOTTY before Linux 6.11, ESRCH after exit.
 */
int64_t hmd_mappings_at(int fd, size_t count, const uint64_t *addresses, size_t max_rows,
			struct hmd_mapping *found, size_t name_room, char *names, size_t *done);

/*
 * Fills `found` with the mappings from `*address` on, in order, as hmd_mappings_at. After
 * anonymous memory it goes on with the next multiple of `stride`: so many mappings within one
 * stride cost two queries. Sets `*address` to where to go on. Returns the number of mappings, 0
 * where there are no more, or -errno.
 */
int64_t hmd_mappings_from(int fd, uint64_t *address, uint64_t stride, size_t max_rows,
			  struct hmd_mapping *found, size_t name_room, char *names);

#endif
