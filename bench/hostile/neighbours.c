/* SPDX-License-Identifier: MIT */
/*
 * Programs that a daemon finds on a machine and that cost it the most: many processes, many
 * mappings, much reserved memory.
 *
 * neighbours forks N                  N idle processes
 * neighbours mappings N COUNT         N processes with COUNT mappings each
 * neighbours threads N COUNT          N processes that share one address space of COUNT mappings
 * neighbours reserve N TIB            N processes that each reserve TIB without access
 * neighbours sparse N TIB             N processes with TIB of writable memory and one page of it
 * neighbours arguments N KIB          N processes with KIB of arguments
 * neighbours segment N MIB            N processes that all have the pages of one memfd of MIB
 * neighbours pool N COUNT             N processes of COUNT threads each
 * neighbours mixed N LARGE            N processes, of which LARGE have 8 MiB resident each
 *
 * Prints "ready" when all is made; ends with its standard input, and its processes with it.
 */
#define _GNU_SOURCE
#include <err.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#define PAGE 4096ul
#define STACK_BYTES (16 * PAGE)
#define THREAD_STACK_BYTES PAGE
#define LARGE_BYTES (8ul << 20)
#define ARGUMENT_BYTES (100ul << 10)

static char *map(size_t bytes, int access, int flags)
{
	char *area = mmap(NULL, bytes, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags,
			  -1, 0);

	if (area == MAP_FAILED)
		err(1, "mmap of %zu bytes", bytes);
	return area;
}

/* A child ends with its parent, also with one that is gone already. */
static void die_with(pid_t parent)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(0);
}

static int idle(void *parent)
{
	die_with((pid_t)(intptr_t)parent);
	while (pause() < 0)
		;
	return 0;
}

static void idle_copies(unsigned long count)
{
	void *self = (void *)(intptr_t)getpid();

	for (unsigned long i = 0; i < count; i++) {
		pid_t child = fork();

		if (child < 0)
			err(1, "fork");
		if (child == 0)
			idle(self);
	}
}

/* As a database's processes have its buffers: each with page tables of its own. */
static void sharing_segment(unsigned long count, size_t bytes)
{
	pid_t self = getpid();
	int segment = memfd_create("segment", 0);
	int ready[2];

	if (segment < 0 || ftruncate(segment, bytes) || pipe(ready))
		err(1, "memfd of %zu bytes", bytes);
	for (unsigned long i = 0; i < count; i++) {
		pid_t child = fork();
		char made;

		if (child < 0)
			err(1, "fork");
		if (child == 0) {
			if (mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
				 segment, 0) == MAP_FAILED)
				_exit(1);
			if (write(ready[1], "", 1) == 1)
				idle((void *)(intptr_t)self);
			_exit(1);
		}
		if (read(ready[0], &made, 1) != 1)
			err(1, "child");
	}
}

/* Neighbours of different access do not merge. */
static void many_mappings(unsigned long count)
{
	char *area = map(count * PAGE, PROT_READ, 0);

	for (unsigned long i = 0; i < count; i += 2)
		if (mprotect(area + i * PAGE, PAGE, PROT_READ | PROT_WRITE))
			err(1, "mprotect");
}

static void sharing_address_space(unsigned long count)
{
	void *self = (void *)(intptr_t)getpid();

	for (unsigned long i = 0; i < count; i++) {
		char *stack = map(STACK_BYTES, PROT_READ | PROT_WRITE, 0);

		if (clone(idle, stack + STACK_BYTES, CLONE_VM | SIGCHLD, self) < 0)
			err(1, "clone");
	}
}

static int wait_for_ever(void *unused)
{
	(void)unused;
	while (pause() < 0)
		;
	return 0;
}

/* As a server's pool: threads that wait. Their stacks are one mapping. */
static void pool_of_threads(unsigned long count)
{
	const int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD |
			  CLONE_SYSVSEM;
	char *stacks = map((count + 1) * THREAD_STACK_BYTES, PROT_READ | PROT_WRITE, 0);

	for (unsigned long i = 1; i <= count; i++)
		if (clone(wait_for_ever, stacks + i * THREAD_STACK_BYTES, flags, NULL) < 0)
			err(1, "clone of thread %lu", i);
}

static void pools(unsigned long processes, unsigned long threads)
{
	pid_t self = getpid();
	int ready[2];

	if (pipe(ready))
		err(1, "pipe");
	for (unsigned long i = 0; i < processes; i++) {
		pid_t child = fork();
		char made;

		if (child < 0)
			err(1, "fork");
		if (child == 0) {
			die_with(self);
			pool_of_threads(threads - 1);
			if (write(ready[1], "", 1) == 1)
				wait_for_ever(NULL);
			_exit(1);
		}
		if (read(ready[0], &made, 1) != 1)
			err(1, "child");
	}
}

/* Each of the large ones has memory of its own. */
static void some_large(unsigned long count, unsigned long large)
{
	pid_t self = getpid();

	for (unsigned long i = 0; i < count; i++) {
		pid_t child = fork();

		if (child < 0)
			err(1, "fork");
		if (child == 0) {
			if (i < large)
				memset(map(LARGE_BYTES, PROT_READ | PROT_WRITE, 0), 1, LARGE_BYTES);
			idle((void *)(intptr_t)self);
		}
	}
}

static void with_arguments(const char *self, unsigned long count, size_t bytes)
{
	size_t parts = bytes / ARGUMENT_BYTES;
	char **words = calloc(parts + 4, sizeof(*words));
	char parent[16];
	pid_t pid = getpid();
	char *text = malloc(ARGUMENT_BYTES + 1);

	if (!words || !text)
		err(1, "malloc");
	for (size_t i = 0; i < ARGUMENT_BYTES; i++)
		text[i] = "java "[i % 5];
	text[ARGUMENT_BYTES] = '\0';
	words[0] = "neighbours";
	words[1] = "idle";
	words[2] = parent;
	snprintf(parent, sizeof(parent), "%d", (int)pid);
	for (size_t i = 0; i < parts; i++)
		words[i + 3] = text;
	for (unsigned long i = 0; i < count; i++) {
		pid_t child = fork();

		if (child < 0)
			err(1, "fork");
		if (child == 0) {
			execv(self, words);
			err(1, "exec");
		}
	}
}

int main(int argc, char **argv)
{
	const char *kind = argc > 1 ? argv[1] : "";
	unsigned long count = argc > 2 ? strtoul(argv[2], NULL, 10) : 0;
	unsigned long size = argc > 3 ? strtoul(argv[3], NULL, 10) : 0;
	char end;

	if (!strcmp(kind, "idle"))
		return idle((void *)(intptr_t)count);
	if (!strcmp(kind, "forks")) {
		idle_copies(count);
	} else if (!strcmp(kind, "mappings")) {
		many_mappings(size);
		idle_copies(count);
	} else if (!strcmp(kind, "threads")) {
		many_mappings(size - 2 * count);
		sharing_address_space(count);
	} else if (!strcmp(kind, "reserve")) {
		for (unsigned long tib = 0; tib < size; tib++)
			map(1ul << 40, PROT_NONE, 0);
		idle_copies(count);
	} else if (!strcmp(kind, "sparse")) {
		map(size << 40, PROT_READ | PROT_WRITE, 0)[size << 39] = 1;
		idle_copies(count);
	} else if (!strcmp(kind, "arguments")) {
		with_arguments("/proc/self/exe", count, size << 10);
	} else if (!strcmp(kind, "segment")) {
		sharing_segment(count, size << 20);
	} else if (!strcmp(kind, "pool")) {
		pools(count, size);
	} else if (!strcmp(kind, "mixed")) {
		some_large(count, size);
	} else {
		errx(2, "no kind of neighbour: %s", kind);
	}
	puts("ready");
	fflush(stdout);
	while (read(0, &end, 1) > 0)
		;
	signal(SIGTERM, SIG_IGN);
	return 0;
}
