/* SPDX-License-Identifier: MIT */
/*
 * Training steps as memory sees them: passes over tensors in one mapping, kernel by kernel, and
 * hints to hmd's daemon.
 *
 *   tensor_step FILE STEPS [SOCKET]
 *
 * FILE, made by bench.tensors.guest_step, has 64-bit numbers: the mapping's address and bytes, the
 * number of kernels, of uses and of hints; for each kernel the end of its uses, and the rounds of a
 * loop in which it computes; for each use offset, bytes and mode (1 read, 2 write, 3 both); for each
 * hint its length and its bytes, padded to 8. A hint is the begin of a request; when the step began,
 * and how long steps take, follow.
 * Hints are sent as hmd.torch.tiered does: all after the first step, one after each later step.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define LINE 8 /* words of a cache line */

struct kernel {
	uint64_t end, rounds;
};

struct use {
	uint64_t offset, bytes, mode;
};

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void send_hint(const char *path, const char *begin, uint64_t begun, uint64_t step)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	char line[4096];
	const int length = snprintf(line, sizeof(line),
				    "%s\"begun_ns\":%llu,\"step_ns\":%llu}\n", begin,
				    (unsigned long long)begun, (unsigned long long)step);
	const int s = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	strncpy(to.sun_path, path, sizeof(to.sun_path) - 1);
	if (s >= 0 && !connect(s, (struct sockaddr *)&to, sizeof(to)))
		(void)!write(s, line, (size_t)length);
	if (s >= 0)
		close(s);
}

/* Read, write or change one word of each line; returns the sum of what was read. */
static uint64_t pass(volatile uint64_t *word, uint64_t words, uint64_t mode)
{
	uint64_t sum = 0;

	if (mode & 1)
		for (uint64_t i = 0; i < words; i += LINE)
			sum += word[i];
	if (mode & 2)
		for (uint64_t i = 0; i < words; i += LINE)
			word[i] = i;
	return sum;
}

int main(int argc, char **argv)
{
	struct stat file;
	const int fd = argc > 2 ? open(argv[1], O_RDONLY) : -1;

	if (fd < 0 || fstat(fd, &file)) {
		fprintf(stderr, "tensor_step FILE STEPS [SOCKET]\n");
		return 2;
	}
	/* Copied, so that no page of the file is on the fast node for the program's sake. */
	uint64_t *head = malloc((size_t)file.st_size);
	char *at = (char *)head;

	for (ssize_t left = file.st_size, got; left > 0; left -= got, at += got)
		if ((got = read(fd, at, (size_t)left)) <= 0)
			return 2;
	const uint64_t bytes = head[1], kernels = head[2], uses = head[3], hints = head[4];
	const struct kernel *kernel = (const struct kernel *)(head + 5);
	const struct use *use = (const struct use *)(kernel + kernels);
	const uint64_t steps = strtoull(argv[2], NULL, 0);
	const char *path = argc > 3 ? argv[3] : NULL;
	char *memory = mmap((void *)head[0], bytes, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);

	if (memory == MAP_FAILED)
		return 2;
	madvise(memory, bytes, MADV_NOHUGEPAGE);
	uint64_t sum = 0, begun = now_ns();

	for (uint64_t step = 0; step < steps; step++) {
		for (uint64_t i = 0, k = 0; i < kernels; i++) {
			for (; k < kernel[i].end; k++)
				sum += pass((uint64_t *)(memory + use[k].offset),
					    use[k].bytes / sizeof(uint64_t), use[k].mode);
			for (uint64_t left = kernel[i].rounds; left; left--)
				__asm__ volatile("" : "+r"(left));
		}
		const uint64_t now = now_ns();
		const uint64_t *next = (const uint64_t *)(use + uses);

		for (uint64_t hint = 0; path && hint < hints; hint++) {
			if (step == 0 || hint == step % hints)
				send_hint(path, (const char *)(next + 1), now, now - begun);
			next += 1 + *next / sizeof(uint64_t);
		}
		printf("step %llu ns\n", (unsigned long long)(now - begun));
		begun = now_ns();
	}
	printf("tensor_step done %llu\n", (unsigned long long)sum);
	return 0;
}
