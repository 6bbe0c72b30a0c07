/* SPDX-License-Identifier: MIT */
/*
 * Frames between the guest's first process and the launcher: {u32 type, u32 job, u32 length} and a
 * payload, little endian, on one virtio-serial port (hmd/emulate/vm/guest.py is the other end).
 */
#ifndef HMD_GUEST_FRAMES_H
#define HMD_GUEST_FRAMES_H

#include <stdint.h>

#define MAX_PAYLOAD (1 << 20)

enum frame_type {
	/* to the guest */
	START = 1, /* u32 flags, u32 argc, u32 envc, then cwd, argv, env as NUL-ended strings */
	STDIN = 2, /* data; of length 0: end of file. One at a time: the next after STDIN_TAKEN */
	SIGNAL = 3, /* u32 number, to the job's process group */
	SYNC = 4,
	POWEROFF = 5,
	/* from the guest */
	READY = 16,
	STDOUT = 17,
	STDERR = 18,
	STDIN_TAKEN = 19,
	EXIT = 20, /* u32 wait status */
	SYNCED = 21,
	FAILED = 22, /* text: why the machine cannot serve */
};

enum start_flags { WITH_STDIN = 1 };

struct frame {
	uint32_t type, job, length;
};

extern int port; /* the virtio-serial port; -1 until boot has opened it */
extern char payload[MAX_PAYLOAD + 1]; /* of the last frame read */

/* Send a frame; where the launcher has gone, the machine ends. */
void send_frame(uint32_t type, uint32_t job, const void *data, uint32_t length);

/* Read a frame, its payload into `payload`; where the launcher has gone, the machine ends. */
struct frame read_frame(void);

/* End the machine. */
void power_off(void) __attribute__((noreturn));

/* Report to the launcher why the machine cannot serve, with errno's text, and end it. */
void fail(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

#endif
