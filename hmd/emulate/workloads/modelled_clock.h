/*
 * The emulated machine's modelled clock, for a program in its guest: one aligned 64-bit load from
 * the header that the plugin shares (../plugin/shared.h). On any other machine it stays 0.
 */
#ifndef HMD_MODELLED_CLOCK_H
#define HMD_MODELLED_CLOCK_H

#include <fcntl.h>
#include <glob.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
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
		const volatile struct shared_header *header =
			mmap(NULL, SHARED_PAGE, PROT_READ, MAP_SHARED, file, 0);
		close(file);
		if (header != MAP_FAILED && header->magic == SHARED_MAGIC)
			modelled_clock_header = header;
	}
	globfree(&devices);
}

static uint64_t modelled_clock_ps(void)
{
	return modelled_clock_header == NULL ? 0 : modelled_clock_header->clock_ps;
}

#endif
