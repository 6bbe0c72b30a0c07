/* SPDX-License-Identifier: MIT */
/*
 * Memory microbenchmarks for hmd emulate --calibrate: runs in the guest, on one node's memory.
 *
 *   membench BAR CPUS chase  NODE LINES          dependent loads on the first CPU
 *   membench BAR CPUS walk   NODE LINES          the same, on pages of 4 KiB instead of 2 MiB
 *   membench BAR CPUS read   NODE LINES          sequential loads, one per line
 *   membench BAR CPUS write  NODE LINES          sequential stores, one per line
 *   membench BAR CPUS random NODE LINES          independent loads of random lines
 *   membench BAR CPUS loaded NODE LINES FILLER   chase on the first CPU while the others stream,
 *                                                FILLER turns of an empty loop every 64 lines
 *   membench BAR CPUS shootdown NODE LINES       TLB shootdowns by the first CPU, each a "line",
 *                                                while the others stream in its address space
 *
 * CPUS is FIRST-LAST. The first CPU runs until it has moved LINES, the others as long. Prints one
 * JSON line: modelled and guest time per line for each CPU, as the mean over the middle half of
 * short windows of modelled time. Each CPU is measured on its own clock while all run, so that
 * their ends do not matter. The middle half excludes windows with a timer tick of the guest's
 * kernel, which follows the guest's clock and so comes too often for modelled time.
 * BAR is the ivshmem resource file (hmd/emulate/plugin/shared.h). Work that is not measured, such
 * as filling the buffers, runs with the model stopped, without effect on modelled time and caches.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/mempolicy.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "shared.h"

#define LINE 64
#define WORDS (LINE / 8)
#define BLOCK 64          /* lines a turn, of the chase and of random reads */
#define STREAM_BLOCK 2048  /* of streams: reading the clocks costs less than 1 % of them */
#define BUFFER_LINES (1u << 19) /* 32 MiB: many times the modelled cache */
/* The clock runs on in steps of what the reorder window held, some 40 us of a chase. */
#define CHASE_WINDOW_PS 400000000
#define WINDOW_PS 10000000
#define MAX_WINDOWS 65536
#define WARM_UP_TURNS 256
#define MAX_CPUS TIMING_MAX_VCPUS

struct worker;
typedef void turn_fn(struct worker *worker);

struct worker {
	pthread_t thread;
	unsigned cpu;
	bool leader;
	turn_fn *turn;       /* moves some lines, adds them to `lines` */
	uint64_t *buffer;
	uint64_t position;   /* in lines, or a pointer for the chase */
	uint64_t lines;
	uint64_t wanted;     /* the leader runs until it has these */
	unsigned windows;
	double *modelled_ps, *guest_ns; /* of a line, window by window */
};

static struct shared_header *header;
static uint64_t filler;
static atomic_int waiting, stop;
static unsigned workers;

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static void open_shared(const char *path)
{
	struct stat status;
	int fd = open(path, O_RDWR | O_CLOEXEC);

	if (fd < 0 || fstat(fd, &status))
		die(path);
	header = mmap(NULL, status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (header == MAP_FAILED || header->magic != SHARED_MAGIC)
		die("shared memory of the plugin");
	close(fd);
}

static void run_model(uint32_t running)
{
	__atomic_store_n(&header->running, running, __ATOMIC_SEQ_CST);
	while (running && !__atomic_load_n(&header->armed, __ATOMIC_ACQUIRE))
		usleep(1000);
}

static uint64_t modelled_ps(unsigned cpu)
{
	const char *vcpu = (const char *)header + header->counters_offset +
			   cpu * header->counters_stride;

	return __atomic_load_n((const uint64_t *)vcpu, __ATOMIC_ACQUIRE);
}

static uint64_t guest_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000ull + now.tv_nsec;
}

static void *allocate(size_t count, size_t size)
{
	void *memory = calloc(count, size);

	if (!memory)
		die("calloc");
	memset(memory, 0, count * size); /* no page faults while measuring */
	return memory;
}

static uint64_t *buffer_on(unsigned node, int pages)
{
	size_t bytes = (size_t)BUFFER_LINES * LINE;
	unsigned long nodes = 1ul << node;
	uint64_t *buffer = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
				-1, 0);

	if (buffer == MAP_FAILED)
		die("mmap");
	madvise(buffer, bytes, pages);
	if (syscall(SYS_mbind, buffer, bytes, MPOL_BIND, &nodes, 8 * sizeof nodes, 0))
		die("mbind");
	memset(buffer, 0, bytes);
	return buffer;
}

/* One cycle through all lines in random order (Sattolo's algorithm), as pointers. */
static void link_lines(uint64_t *buffer)
{
	uint32_t *order = allocate(BUFFER_LINES, sizeof *order);
	uint64_t random = 88172645463325252ull;

	for (uint32_t i = 0; i < BUFFER_LINES; i++)
		order[i] = i;
	for (uint32_t i = BUFFER_LINES - 1; i > 0; i--) {
		random ^= random << 13;
		random ^= random >> 7;
		random ^= random << 17;
		uint32_t j = random % i, swapped = order[i];
		order[i] = order[j];
		order[j] = swapped;
	}
	for (uint32_t i = 0; i < BUFFER_LINES; i++)
		buffer[(uint64_t)order[i] * WORDS] =
			(uint64_t)(buffer + (uint64_t)order[(i + 1) % BUFFER_LINES] * WORDS);
	free(order);
}

static void chase(struct worker *worker)
{
	uint64_t at = worker->position;

#pragma GCC unroll 64
	for (int i = 0; i < BLOCK; i++)
		at = *(volatile uint64_t *)at;
	worker->position = at;
	worker->lines += BLOCK;
}

/* Taking a right away from a page that is in use makes the kernel flush it on all CPUs. */
static void shoot_down(struct worker *worker)
{
	if (mprotect(worker->buffer, 4096, PROT_READ) ||
	    mprotect(worker->buffer, 4096, PROT_READ | PROT_WRITE))
		die("mprotect");
	*(volatile uint64_t *)worker->buffer = 1;
	worker->lines++;
}

static uint64_t *next_block(struct worker *worker)
{
	uint64_t *block = worker->buffer + worker->position * WORDS;

	worker->position = (worker->position + STREAM_BLOCK) % BUFFER_LINES;
	worker->lines += STREAM_BLOCK;
	__asm__("" : "+r"(block)); /* so that each access is one instruction, of constant offset */
	return block;
}

static void read_block(struct worker *worker)
{
	volatile uint64_t *block = next_block(worker);

#pragma GCC unroll 256
	for (int i = 0; i < STREAM_BLOCK; i++)
		(void)block[i * WORDS];
}

static void write_block(struct worker *worker)
{
	volatile uint64_t *block = next_block(worker);

#pragma GCC unroll 256
	for (int i = 0; i < STREAM_BLOCK; i++)
		block[i * WORDS] = 1;
}

/* Even load: no more lines at once than a memory controller queues, then a pause. */
static void read_paced(struct worker *worker)
{
	volatile uint64_t *block = next_block(worker);

	for (int part = 0; part < STREAM_BLOCK / BLOCK; part++, block += BLOCK * WORDS) {
		uint64_t turns = filler;
#pragma GCC unroll 64
		for (int i = 0; i < BLOCK; i++)
			(void)block[i * WORDS];
		if (turns) /* two instructions a turn */
			__asm__ volatile("1: dec %0\n\tjnz 1b" : "+r"(turns) : : "cc");
	}
}

/* A congruential generator of full period: no line twice before all the others. */
static void read_random(struct worker *worker)
{
	volatile uint64_t *buffer = worker->buffer;
	uint64_t line = worker->position;

#pragma GCC unroll 64
	for (int i = 0; i < BLOCK; i++) {
		line = (line * 1664525 + 1013904223) % BUFFER_LINES;
		(void)buffer[line * WORDS];
	}
	worker->position = line;
	worker->lines += BLOCK;
}

/*
 * Windows are seamless, from clock reading to clock reading: a load that is on its way as one
 * ends, and that the model charges later, is in the next.
 */
static void measure(struct worker *worker)
{
	uint64_t window = worker->turn == chase ? CHASE_WINDOW_PS : WINDOW_PS;
	uint64_t modelled = modelled_ps(worker->cpu), guest = guest_ns(), done = 0;

	worker->lines = 0;
	while (worker->leader ? worker->lines < worker->wanted : !atomic_load(&stop)) {
		worker->turn(worker);
		uint64_t modelled_now = modelled_ps(worker->cpu);
		if (modelled_now < modelled + window || worker->windows == MAX_WINDOWS)
			continue;
		uint64_t guest_now = guest_ns(), lines = worker->lines - done;
		worker->modelled_ps[worker->windows] = (double)(modelled_now - modelled) / lines;
		worker->guest_ns[worker->windows++] = (double)(guest_now - guest) / lines;
		modelled = modelled_now;
		guest = guest_now;
		done = worker->lines;
	}
}

static void *work(void *argument)
{
	struct worker *worker = argument;
	cpu_set_t cpus;

	CPU_ZERO(&cpus);
	CPU_SET(worker->cpu, &cpus);
	if (sched_setaffinity(0, sizeof cpus, &cpus))
		die("sched_setaffinity");
	atomic_fetch_add(&waiting, 1);
	while (atomic_load(&waiting) < (int)workers)
		__builtin_ia32_pause();
	for (int i = 0; i < WARM_UP_TURNS; i++) /* until rates and queues have settled */
		worker->turn(worker);
	measure(worker);
	atomic_store(&stop, 1);
	return NULL;
}

static int ascending(const void *left, const void *right)
{
	double a = *(const double *)left, b = *(const double *)right;

	return (a > b) - (a < b);
}

/* Mean of the middle half: of windows that end in the midst of a step, a median is one or other. */
static double middle(double *values, unsigned count)
{
	unsigned first = count / 4, last = count - count / 4;
	double sum = 0;

	qsort(values, count, sizeof *values, ascending);
	for (unsigned i = first; i < last; i++)
		sum += values[i];
	return count ? sum / (last - first) : 0;
}

static void report(struct worker *worker)
{
	printf("{\"cpus\": [");
	for (unsigned i = 0; i < workers; i++)
		printf("%s{\"windows\": %u, \"modelled_ns\": %.4f, \"guest_ns\": %.4f}",
		       i ? ", " : "", worker[i].windows,
		       middle(worker[i].modelled_ps, worker[i].windows) / 1000,
		       middle(worker[i].guest_ns, worker[i].windows));
	printf("]}\n");
}

static turn_fn *turn_of(const char *mode, bool leader)
{
	if (!strcmp(mode, "read"))
		return read_block;
	if (!strcmp(mode, "write"))
		return write_block;
	if (!strcmp(mode, "random"))
		return read_random;
	if (!strcmp(mode, "shootdown"))
		return leader ? shoot_down : read_block;
	return leader ? chase : read_paced;
}

int main(int argc, char **argv)
{
	static struct worker worker[MAX_CPUS];
	unsigned first, last;

	if (argc < 6 || sscanf(argv[2], "%u-%u", &first, &last) != 2 || last < first) {
		fprintf(stderr, "usage: membench BAR CPUS MODE NODE LINES [FILLER]\n");
		return 2;
	}
	open_shared(argv[1]);
	if (last >= header->vcpus) {
		fprintf(stderr, "CPU %u: the machine has %u\n", last, header->vcpus);
		return 2;
	}
	run_model(0);
	const char *mode = argv[3];
	unsigned node = strtoul(argv[4], NULL, 0);
	uint64_t wanted = strtoull(argv[5], NULL, 0);
	filler = argc > 6 ? strtoull(argv[6], NULL, 0) : 0;
	int alone = !strcmp(mode, "chase") || !strcmp(mode, "walk");
	int small = !strcmp(mode, "walk") || !strcmp(mode, "shootdown");
	workers = alone ? 1 : last - first + 1;
	for (unsigned i = 0; i < workers; i++) {
		uint64_t *buffer = buffer_on(node, small ? MADV_NOHUGEPAGE : MADV_HUGEPAGE);
		turn_fn *turn = turn_of(mode, i == 0);

		worker[i] = (struct worker){
			.cpu = first + i,
			.leader = i == 0,
			.turn = turn,
			.buffer = buffer,
			.wanted = wanted,
			.modelled_ps = allocate(MAX_WINDOWS, sizeof(double)),
			.guest_ns = allocate(MAX_WINDOWS, sizeof(double)),
		};
		if (turn == chase) {
			link_lines(buffer);
			worker[i].position = (uint64_t)buffer;
		}
	}
	run_model(1);
	for (unsigned i = 0; i < workers; i++)
		if (pthread_create(&worker[i].thread, NULL, work, &worker[i]))
			die("pthread_create");
	for (unsigned i = 0; i < workers; i++)
		pthread_join(worker[i].thread, NULL);
	run_model(0);
	report(worker);
	return 0;
}
