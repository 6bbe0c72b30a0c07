/* SPDX-License-Identifier: MIT */
/* Frames between the guest's first process and the launcher. */
#define _GNU_SOURCE
#include "frames.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/reboot.h>
#include <unistd.h>

int port = -1;
char payload[MAX_PAYLOAD + 1];

void power_off(void)
{
	sync();
	/* -no-reboot turns a restart into the end of QEMU, sooner than an ACPI power-off. */
	reboot(RB_AUTOBOOT);
	_exit(1);
}

static int write_all(int fd, const void *data, size_t length)
{
	while (length) {
		ssize_t done = write(fd, data, length);
		if (done < 0 && (errno == EINTR || errno == EAGAIN))
			continue;
		if (done <= 0)
			return -1;
		data = (const char *)data + done;
		length -= done;
	}
	return 0;
}

void send_frame(uint32_t type, uint32_t job, const void *data, uint32_t length)
{
	struct frame frame = { type, job, length };

	if (write_all(port, &frame, sizeof frame) || write_all(port, data, length))
		power_off(); /* the launcher has gone */
}

void fail(const char *format, ...)
{
	char text[512];
	int error = errno;
	va_list arguments;

	va_start(arguments, format);
	int length = vsnprintf(text, sizeof text, format, arguments);
	va_end(arguments);
	length += snprintf(text + length, sizeof text - length, ": %s", strerror(error));
	if (port >= 0)
		send_frame(FAILED, 0, text, length);
	dprintf(2, "hmd: %s\n", text);
	power_off();
}

static void read_all(void *data, size_t length)
{
	while (length) {
		ssize_t done = read(port, data, length);
		if (done < 0 && errno == EINTR)
			continue;
		if (done <= 0)
			power_off(); /* the launcher has gone */
		data = (char *)data + done;
		length -= done;
	}
}

struct frame read_frame(void)
{
	struct frame frame;

	read_all(&frame, sizeof frame);
	if (frame.length > MAX_PAYLOAD)
		power_off();
	read_all(payload, frame.length);
	return frame;
}
