#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "recording.h"

int recording_open(struct recording *recording, const char *path, struct shared_header *header,
		   const char **why)
{
	struct stat status;
	int fd = open(path, O_RDWR | O_CLOEXEC);
	void *memory = MAP_FAILED;

	if (fd >= 0 && !fstat(fd, &status) && status.st_size > 0)
		memory = mmap(NULL, (size_t)status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (fd >= 0)
		close(fd);
	if (memory == MAP_FAILED) {
		*why = "cannot map the file to record into: give it its size first";
		return -1;
	}
	*recording = (struct recording){
		.header = header,
		.miss = memory,
		.capacity = (uint64_t)status.st_size / sizeof(struct recorded_miss),
	};
	return 0;
}

void recording_observe(void *context, unsigned vcpu, const struct timing_miss *miss)
{
	struct recording *recording = context;
	struct shared_header *header = recording->header;
	uint32_t wanted = __atomic_load_n(&header->recorded_vcpu, __ATOMIC_RELAXED);
	uint64_t place;

	if (wanted != vcpu + 1)
		return;
	place = header->recorded;
	if (place < recording->capacity)
		recording->miss[place] = (struct recorded_miss){
			.instructions = miss->instructions,
			.vaddr = miss->vaddr,
			.line = (uint32_t)(miss->paddr / 64),
			.paid_hits = place ? miss->paid_hits : 0,
			.near_hits = place ? miss->near_hits : 0,
			.depends = (uint16_t)miss->depends,
			.flags = (uint8_t)miss->flags,
		};
	__atomic_store_n(&header->recorded, place + 1, __ATOMIC_RELEASE);
}
