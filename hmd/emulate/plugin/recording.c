/* SPDX-License-Identifier: MIT */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "recording.h"

int recording_open(struct recording *recording, const char *path, struct shared_header *header,
		   const struct timing *timing, unsigned vcpus, const char **why)
{
	struct stat status;
	int fd = open(path, O_RDWR | O_CLOEXEC);
	void *memory = MAP_FAILED;

	if (fd >= 0 && !fstat(fd, &status) && status.st_size > 0)
		memory = mmap(NULL, (size_t)status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
			      0);
	if (fd >= 0)
		close(fd);
	if (memory == MAP_FAILED) {
		*why = "cannot map the file to record into: give it its size first";
		return -1;
	}
	*recording = (struct recording){
		.header = header,
		.timing = timing,
		.miss = memory,
		.capacity = (uint64_t)status.st_size / sizeof(struct recorded_miss),
		.vcpus = vcpus,
	};
	return 0;
}

static void append(struct recording *recording, unsigned vcpu, const struct timing_miss *miss)
{
	uint64_t place = __atomic_fetch_add(&recording->header->recorded, 1, __ATOMIC_RELAXED);

	if (place < recording->capacity)
		recording->miss[place] = (struct recorded_miss){
			.instructions = miss->instructions,
			.vaddr = miss->vaddr,
			.line = (uint32_t)(miss->paddr / 64),
			.paid_hits = miss->paid_hits,
			.near_hits = miss->near_hits,
			.depends = (uint16_t)miss->depends,
			.flags = (uint8_t)miss->flags,
			.cpu = (uint8_t)vcpu,
		};
}

/* Where the other vCPUs are when one goes on. */
static void mark_others(struct recording *recording, uint32_t wanted, unsigned woken)
{
	for (unsigned vcpu = 0; vcpu < recording->vcpus; vcpu++) {
		const struct timing_vcpu_counters *counters =
			timing_counters_of(recording->timing, vcpu);

		if (vcpu == woken || !(wanted >> vcpu & 1) || !timing_runs(recording->timing, vcpu))
			continue;
		append(recording, vcpu,
		       &(struct timing_miss){
			       .instructions =
				       __atomic_load_n(&counters->instructions, __ATOMIC_RELAXED),
			       .vaddr = __atomic_load_n(&counters->clock_ps, __ATOMIC_RELAXED),
			       .depends = woken,
			       .flags = TIMING_MARK,
		       });
	}
}

bool recording_wants(const struct recording *recording, unsigned vcpu)
{
	uint32_t wanted = __atomic_load_n(&recording->header->recorded_vcpus, __ATOMIC_RELAXED);

	return recording->miss && (wanted >> vcpu & 1);
}

void recording_free(struct recording *recording, unsigned vcpu, uint64_t instructions,
		    const struct freed_range *range)
{
	append(recording, vcpu,
	       &(struct timing_miss){
		       .instructions = instructions,
		       .vaddr = range->start,
		       .paid_hits = (uint32_t)range->pages,
		       .near_hits = (uint32_t)(range->pages >> 32),
		       .flags = RECORDING_FREE,
	       });
}

void recording_observe(void *context, unsigned vcpu, const struct timing_miss *miss)
{
	struct recording *recording = context;
	uint32_t wanted = __atomic_load_n(&recording->header->recorded_vcpus, __ATOMIC_RELAXED);

	if (!(wanted >> vcpu & 1))
		return;
	if (miss->flags == TIMING_WAKE)
		mark_others(recording, wanted, vcpu);
	append(recording, vcpu, miss);
}
