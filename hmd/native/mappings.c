/* SPDX-License-Identifier: MIT */
#include "mappings.h"

#include <errno.h>
#include <string.h>
#include <sys/ioctl.h>

/* struct procmap_query, which headers before Linux 6.11 lack. */
struct query {
	uint64_t size, query_flags, query_addr;
	uint64_t vma_start, vma_end, vma_flags, vma_page_size, vma_offset, inode;
	uint32_t dev_major, dev_minor, vma_name_size, build_id_size;
	uint64_t vma_name_addr, build_id_addr;
};

#define PROCMAP_QUERY_IOCTL _IOWR('f', 17, struct query)
/* The mapping at the address, or the next one above it. */
#define COVERING_OR_NEXT 0x10
/* PROCMAP_QUERY_VMA_READABLE, WRITABLE, EXECUTABLE and SHARED. */
#define ACCESS_FLAGS 0xf
#define READ_WRITE_EXECUTE 0x7
/* The longest name that the kernel gives (PATH_MAX). */
#define MAX_NAME_BYTES 4096

/* Returns 0 or -errno: ENOENT with no mapping at or above the address. */
static int query_mapping(int fd, uint64_t address, struct query *query, char *name)
{
	for (int named = 1; named >= 0; named--) {
		memset(query, 0, sizeof(*query));
		query->size = sizeof(*query);
		query->query_flags = COVERING_OR_NEXT;
		query->query_addr = address;
		query->vma_name_size = named ? MAX_NAME_BYTES : 0;
		query->vma_name_addr = named ? (uint64_t)(uintptr_t)name : 0;
		if (ioctl(fd, PROCMAP_QUERY_IOCTL, query) == 0)
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
static void append_mapping(const struct query *query, const char *name, struct hmd_mapping *row,
			   char *names, size_t *used)
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
		.access = (uint32_t)(query->vma_flags & ACCESS_FLAGS),
	};
	*used += bytes;
}

int64_t hmd_mappings_at(int fd, size_t count, const uint64_t *addresses, size_t max_rows,
			struct hmd_mapping *found, size_t name_room, char *names, size_t *done)
{
	struct query query = { 0 };
	char name[MAX_NAME_BYTES];
	size_t rows = 0, used = 0;
	int appended = 1;

	for (*done = 0; *done < count; ++*done) {
		uint64_t address = addresses[*done];
		if (address >= query.vma_end) {
			int result = query_mapping(fd, address, &query, name);
			if (result == -ENOENT) {
				*done = count;
				break;
			}
			if (result < 0)
				return result;
			appended = 0;
		}
		if (appended || address < query.vma_start)
			continue;
		if (rows == max_rows || used + query.vma_name_size > name_room)
			break;
		append_mapping(&query, name, &found[rows++], names, &used);
		appended = 1;
	}
	return (int64_t)rows;
}

/* Returns whether pages of the mapping are the process's own memory, and accessible. */
static int is_anonymous(const struct query *query, const char *name)
{
	if (!(query->vma_flags & READ_WRITE_EXECUTE) || query->inode)
		return 0;
	return !name[0] || !strcmp(name, "[heap]") || !strncmp(name, "[anon:", 6);
}

int64_t hmd_mappings_from(int fd, uint64_t *address, uint64_t stride, size_t max_rows,
			  struct hmd_mapping *found, size_t name_room, char *names)
{
	struct query query;
	char name[MAX_NAME_BYTES];
	size_t rows = 0, used = 0;

	while (rows < max_rows && used + MAX_NAME_BYTES <= name_room) {
		int result = query_mapping(fd, *address, &query, name);
		if (result == -ENOENT)
			break;
		if (result < 0)
			return result;
		uint64_t at = *address > query.vma_start ? *address : query.vma_start;
		uint64_t next = is_anonymous(&query, name) ? (at / stride + 1) * stride : 0;
		*address = next > query.vma_end ? next : query.vma_end;
		append_mapping(&query, name, &found[rows++], names, &used);
	}
	return (int64_t)rows;
}
