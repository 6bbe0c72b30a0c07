/* SPDX-License-Identifier: MIT */
/*
 * The emulated machine's modelled clock, for a program in its guest: that of the vCPU it runs on,
 * one aligned 64-bit load from the memory that the plugin shares (../plugin/shared.h). On any
 * other machine it stays 0.
 *
 * The clock of the vCPU, not of the machine: where emulation is slower than the pace, a busy vCPU
 * lags behind the others, whose time must not count for its program.
 */
#ifndef HMD_MODELLED_CLOCK_H
#define HMD_MODELLED_CLOCK_H

#include <fcntl.h>
#include <glob.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../plugin/shared.h"

static const volatile struct shared_header *modelled_clock_header;

static int modelled_clock_word(const char *folder, const char *name)
{
	char path[256];
	int word = -1;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	FILE *file = fopen(path, "r");
	if (file != NULL) {
		if (fscanf(file, "%x", (unsigned *)&word) != 1)
			word = -1;
		fclose(file);
	}
	return word;
}

/* Map the header if this is an emulated machine; needs root there. */
static void modelled_clock_open(void)
{
	glob_t devices;

	if (glob("/sys/bus/pci/devices/*", 0, NULL, &devices) != 0)
		return;
	for (size_t i = 0; i < devices.gl_pathc && modelled_clock_header == NULL; i++) {
		char path[256];

		if (modelled_clock_word(devices.gl_pathv[i], "vendor") != 0x1af4 ||
		    modelled_clock_word(devices.gl_pathv[i], "device") != 0x1110)
			continue;
		snprintf(path, sizeof(path), "%s/resource2", devices.gl_pathv[i]);
		int file = open(path, O_RDONLY | O_CLOEXEC);
		if (file < 0)
			continue;
		struct stat status;
		const volatile struct shared_header *header =
			fstat(file, &status) == 0 && status.st_size >= SHARED_PAGE ?
			mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_SHARED, file, 0) : MAP_FAILED;
		close(file);
		if (header != MAP_FAILED && header->magic == SHARED_MAGIC)
			modelled_clock_header = header;
	}
	globfree(&devices);
}

static uint64_t modelled_clock_ps(void)
{
	const volatile struct shared_header *header = modelled_clock_header;
	const int cpu = sched_getcpu();

	if (header == NULL || cpu < 0 || (uint32_t)cpu >= header->vcpus)
		return 0;
	const volatile char *counters = (const volatile char *)header + header->counters_offset +
					(uint64_t)cpu * header->counters_stride;
	return ((const volatile struct shared_vcpu *)counters)->clock_ps;
}

#endif
