/* SPDX-License-Identifier: MIT */
#include "perf.h"

#include <errno.h>
#include <linux/perf_event.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

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
		/* Timestamps of CLOCK_MONOTONIC, as everywhere in hmd, instead of the scheduler's. */
		.use_clockid = !!(event->sample_type & PERF_SAMPLE_TIME),
		.clockid = event->sample_type & PERF_SAMPLE_TIME ? CLOCK_MONOTONIC : 0,
	};
	long fd = syscall(SYS_perf_event_open, &attr, pid, cpu, group_fd, PERF_FLAG_FD_CLOEXEC);

	return fd < 0 ? -errno : (int)fd;
}

int hmd_perf_open_tasks(int cpu)
{
	struct perf_event_attr attr = {
		.size = sizeof(attr),
		.type = PERF_TYPE_SOFTWARE,
		.config = PERF_COUNT_SW_DUMMY,
		.sample_type = PERF_SAMPLE_TIME,
		.sample_id_all = 1,
		.task = 1,
		.comm = 1,
		.comm_exec = 1,
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
