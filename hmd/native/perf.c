/* SPDX-License-Identifier: MIT */
#include "perf.h"

#include <errno.h>
#include <linux/perf_event.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

int hmd_perf_open(const struct hmd_perf_event *event, int pid, int cpu, int group_fd)
{
	struct perf_event_attr attr = {
		.size = sizeof(attr),
		.type = event->type,
		.config = event->config,
		.config1 = event->config1,
		.config2 = event->config2,
		.sample_type = event->sample_type,
		.sample_period = event->period,
		.read_format = event->read_format,
		.precise_ip = event->precise_ip,
		.disabled = 1,
		.inherit = !!event->inherit,
		.exclude_kernel = !!event->exclude_kernel,
		/* IBS refuses every exclude bit; the hypervisor is excluded with the kernel. */
		.exclude_hv = !!event->exclude_kernel,
		.exclude_guest = !!event->exclude_guest,
		.use_clockid = event->monotonic && event->sample_type & PERF_SAMPLE_TIME,
		.clockid = event->monotonic && event->sample_type & PERF_SAMPLE_TIME ?
				   CLOCK_MONOTONIC :
				   0,
	};
	long fd = syscall(SYS_perf_event_open, &attr, pid, cpu, group_fd, PERF_FLAG_FD_CLOEXEC);

	return fd < 0 ? -errno : (int)fd;
}

int hmd_perf_open_log(int cpu, int switches)
{
	struct perf_event_attr attr = {
		.size = sizeof(attr),
		.type = PERF_TYPE_SOFTWARE,
		.config = PERF_COUNT_SW_DUMMY,
		.sample_type = PERF_SAMPLE_TIME | (switches ? PERF_SAMPLE_TID : 0),
		.sample_id_all = 1,
		.context_switch = !!switches,
		.task = !switches,
		.comm = !switches,
		.comm_exec = !switches,
		.disabled = 1,
		/* Permitted to users who may not profile the kernel. */
		.exclude_kernel = 1,
		.exclude_hv = 1,
		.use_clockid = 1,
		.clockid = CLOCK_MONOTONIC,
	};
	long fd = syscall(SYS_perf_event_open, &attr, -1, cpu, -1, PERF_FLAG_FD_CLOEXEC);

	return fd < 0 ? -errno : (int)fd;
}

int hmd_perf_map(int fd, size_t pages, void **header, void **data, uint64_t *data_bytes)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	void *base = mmap(NULL, (1 + pages) * page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (base == MAP_FAILED)
		return -errno;
	*header = base;
	*data = (char *)base + page;
	*data_bytes = pages * page;
	return 0;
}

#if defined(__x86_64__)
static int64_t monotonic_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000LL + now.tv_nsec;
}

/*
 * Compares both clocks at one moment: between two readings of CLOCK_MONOTONIC, the closest of some.
 * perf's clock follows from the time stamp counter as linux/perf_event.h says for cap_user_time_zero.
 */
static int64_t monotonic_offset_ns(uint64_t zero, uint16_t shift, uint32_t mult)
{
	int64_t best = 0, least = INT64_MAX;

	for (int i = 0; i < 5; i++) {
		int64_t before = monotonic_ns();
		uint64_t tsc = __rdtsc();
		int64_t took = monotonic_ns() - before;
		uint64_t rest = tsc & (((uint64_t)1 << shift) - 1);
		uint64_t perf = zero + (tsc >> shift) * mult + ((rest * mult) >> shift);

		if (took < least) {
			least = took;
			best = before + took / 2 - (int64_t)perf;
		}
	}
	return best;
}
#else
static int64_t monotonic_offset_ns(uint64_t zero, uint16_t shift, uint32_t mult)
{
	(void)zero, (void)shift, (void)mult;
	return 0;
}
#endif

void hmd_perf_read_times(const void *header, struct hmd_perf_times *times)
{
	const volatile struct perf_event_mmap_page *page = header;
	uint64_t zero = 0;
	uint32_t mult = 0, lock;
	uint16_t shift = 0;
	int zero_known = 0;

	/* The kernel makes `lock` odd while it writes (linux/perf_event.h), for some nanoseconds. */
	for (int tries = 0; tries < 1000; tries++) {
		lock = page->lock;
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
		times->enabled_ns = page->time_enabled;
		times->running_ns = page->time_running;
		shift = page->time_shift;
		mult = page->cap_user_time ? page->time_mult : 0;
		zero_known = page->cap_user_time_zero;
		zero = page->time_zero;
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
		if (!(lock & 1) && page->lock == lock)
			break;
	}
#if defined(__x86_64__)
	times->ns_per_tsc = shift < 64 ? (double)mult / (double)((uint64_t)1 << shift) : 0;
	times->known_clock = mult && zero_known && shift < 64;
#else
	(void)zero_known;
	times->ns_per_tsc = 0;
	times->known_clock = 0;
#endif
	times->monotonic_offset_ns = times->known_clock ? monotonic_offset_ns(zero, shift, mult) : 0;
}

int hmd_perf_unmap(void *header, size_t pages)
{
	return munmap(header, (1 + pages) * (size_t)sysconf(_SC_PAGESIZE)) ? -errno : 0;
}

int hmd_perf_enable(int fd)
{
	return ioctl(fd, PERF_EVENT_IOC_ENABLE, 0) ? -errno : 0;
}

int hmd_perf_disable(int fd)
{
	return ioctl(fd, PERF_EVENT_IOC_DISABLE, 0) ? -errno : 0;
}

int hmd_perf_set_period(int fd, uint64_t period)
{
	return ioctl(fd, PERF_EVENT_IOC_PERIOD, &period) ? -errno : 0;
}

int hmd_perf_close(int fd)
{
	return close(fd) ? -errno : 0;
}
