/* SPDX-License-Identifier: MIT */
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared.h"

static uint64_t round_up(uint64_t value, uint64_t unit)
{
	return (value + unit - 1) / unit * unit;
}

/* The largest rings of a power of two of data that leave room for one page of header each. */
static uint64_t ring_data_bytes(uint64_t space, unsigned vcpus)
{
	uint64_t bytes = SHARED_PAGE;

	if (space / vcpus < 2 * SHARED_PAGE)
		return 0;
	while (SHARED_PAGE + 2 * bytes <= space / vcpus)
		bytes *= 2;
	return bytes;
}

/* Everything but the rings' pages, which their writers initialise. */
static int lay_out(struct shared *shared, const struct timing_params *params, double dilation)
{
	struct shared_header *header = shared->header;
	uint64_t stride = round_up(sizeof(struct shared_vcpu), 64);
	uint64_t ring_offset = round_up(SHARED_PAGE + stride * params->vcpus, SHARED_PAGE);

	if (shared->size <= ring_offset)
		return -1;

	uint64_t data = ring_data_bytes(shared->size - ring_offset, params->vcpus);
	if (!data)
		return -1;

	memset(header, 0, ring_offset);
	header->version = SHARED_VERSION;
	header->vcpus = params->vcpus;
	header->nodes = params->nodes;
	header->counters_offset = SHARED_PAGE;
	header->counters_stride = stride;
	header->ring_offset = ring_offset;
	header->ring_stride = SHARED_PAGE + data;
	header->ring_data_bytes = data;
	header->dilation = dilation;
	__atomic_store_n(&header->magic, SHARED_MAGIC, __ATOMIC_RELEASE);
	return 0;
}

int shared_open(struct shared *shared, const char *path, const struct timing_params *params,
		double dilation, const char **why)
{
	struct stat status;
	int fd = open(path, O_RDWR | O_CLOEXEC);

	if (fd < 0 || fstat(fd, &status)) {
		*why = "cannot open the shared memory file";
		return -1;
	}
	shared->size = (uint64_t)status.st_size;
	void *memory = shared->size < SHARED_PAGE ? MAP_FAILED
						  : mmap(NULL, shared->size, PROT_READ | PROT_WRITE,
							 MAP_SHARED, fd, 0);
	close(fd);
	if (memory == MAP_FAILED) {
		*why = "cannot map the shared memory file: give it its size first";
		return -1;
	}
	shared->header = memory;
	if (lay_out(shared, params, dilation)) {
		munmap(memory, shared->size);
		*why = "the shared memory file is too small for a ring of 8 KiB for each vCPU";
		return -1;
	}
	return 0;
}

struct shared_vcpu *shared_vcpu(const struct shared *shared, unsigned vcpu)
{
	const struct shared_header *header = shared->header;

	return (struct shared_vcpu *)((char *)header + header->counters_offset +
				      vcpu * header->counters_stride);
}

struct perf_ring_page *shared_ring_page(const struct shared *shared, unsigned vcpu)
{
	const struct shared_header *header = shared->header;

	return (struct perf_ring_page *)((char *)header + header->ring_offset +
					 vcpu * header->ring_stride);
}

void shared_publish(struct shared_vcpu *vcpu, const struct timing_vcpu_counters *counters,
		    uint64_t host_ns, uint64_t paced_ns, uint64_t behind_ns)
{
	uint64_t sequence = vcpu->sequence;

	__atomic_store_n(&vcpu->sequence, sequence + 1, __ATOMIC_RELAXED);
	__atomic_thread_fence(__ATOMIC_RELEASE);
	vcpu->host_ns = host_ns;
	vcpu->paced_ns = paced_ns;
	vcpu->behind_ns = behind_ns;
	vcpu->counters = *counters;
	__atomic_store_n(&vcpu->clock_ps, counters->clock_ps, __ATOMIC_RELAXED);
	__atomic_store_n(&vcpu->sequence, sequence + 2, __ATOMIC_RELEASE);
}
