/* SPDX-License-Identifier: MIT */
#include "probe.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Two lines of 64 bytes, which processors bring as a pair. */
#define LINE_BYTES 128
/* Accesses between two looks at the clock. */
#define ACCESSES_PER_LOOK 1024
#define POLL_NS 200000

static uint64_t clock_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Takes the line out of all caches, so that its next load comes from memory however large they are. */
static inline void flush_line(const void *line)
{
#if defined(__x86_64__)
	__builtin_ia32_clflush(line);
#elif defined(__aarch64__)
	__asm__ volatile("dc civac, %0" : : "r"(line) : "memory");
#else
	(void)line;
#endif
}

/* A cycle over all lines, which no prefetcher can follow: a full-period congruential generator. */
static void link_lines(char *start, uint64_t lines)
{
	for (uint64_t i = 0; i < lines; i++) {
		uint64_t next = (i * 0x9E3779B5u + 0x7F4A7C15u) & (lines - 1);

		*(void **)(start + i * LINE_BYTES) = start + next * LINE_BYTES;
		flush_line(start + i * LINE_BYTES);
	}
}

static void load(struct hmd_probe *probe, void **at, uint64_t round_ns)
{
	uint64_t lines = probe->bytes / LINE_BYTES, count = 0;
	uint64_t begun_ns = clock_ns(), now_ns = begun_ns;

	while (count < lines && now_ns - begun_ns < round_ns) {
		for (int i = 0; i < ACCESSES_PER_LOOK && count < lines; i++, count++) {
			void **next = *(void **volatile *)at;

			flush_line(at);
			at = next;
		}
		now_ns = clock_ns();
	}
	probe->load_ns += now_ns - begun_ns;
	probe->loads += count;
}

static void store(struct hmd_probe *probe, uint64_t round_ns)
{
	uint64_t lines = probe->bytes / LINE_BYTES, count = 0;
	uint64_t begun_ns = clock_ns();

	do {
		for (int i = 0; i < ACCESSES_PER_LOOK; i++, count++) {
			uint64_t line = count & (lines - 1);

			*(volatile uint64_t *)(probe->store_start + line * LINE_BYTES) = count;
		}
	} while (count < 4 * lines && clock_ns() - begun_ns < round_ns);
	probe->stores += count;
}

static void touch(struct hmd_probe *probe)
{
	long page = sysconf(_SC_PAGESIZE);

	madvise((void *)probe->touch_start, HMD_PROBE_TOUCHED_PAGES * (size_t)page, MADV_DONTNEED);
	for (int i = 0; i < HMD_PROBE_TOUCHED_PAGES; i++)
		*(volatile char *)(probe->touch_start + (uint64_t)(i * page)) = 1;
	probe->touches += HMD_PROBE_TOUCHED_PAGES;
}

static uint64_t map_private(uint64_t bytes, int advice)
{
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
			    0);

	if (memory == MAP_FAILED)
		return 0;
	madvise(memory, bytes, advice);
	return (uint64_t)memory;
}

/* The memory's errors are the parent's to report; those of limits and files only weaken them. */
static void confine(int max_s)
{
	const struct rlimit limit = { (rlim_t)max_s, (rlim_t)max_s };
	int fd;

	syscall(SYS_close_range, 0, ~0u, 0);
	setrlimit(RLIMIT_CPU, &limit);
	fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
	if (fd >= 0) {
		(void)!write(fd, "1000", 4);
		close(fd);
	}
}

static _Noreturn void obey(struct hmd_probe *probe, uint64_t round_ns, int max_s, int parent)
{
	const struct timespec pause = { .tv_nsec = POLL_NS };
	uint64_t touch_bytes = HMD_PROBE_TOUCHED_PAGES * (uint64_t)sysconf(_SC_PAGESIZE);

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (syscall(SYS_getppid) != parent)
		_exit(0);
	confine(max_s);
	probe->load_start = map_private(probe->bytes, MADV_HUGEPAGE);
	probe->store_start = map_private(probe->bytes, MADV_HUGEPAGE);
	probe->touch_start = map_private(touch_bytes, MADV_NOHUGEPAGE);
	if (!probe->load_start || !probe->store_start || !probe->touch_start) {
		probe->error = errno;
		__atomic_store_n(&probe->state, HMD_PROBE_FAILED, __ATOMIC_RELEASE);
		_exit(1);
	}
	link_lines((char *)probe->load_start, probe->bytes / LINE_BYTES);
	/* Evicts the links where a flush does nothing, as in an emulated machine. */
	for (uint64_t at = 0; at < probe->bytes; at += LINE_BYTES)
		*(volatile uint64_t *)(probe->store_start + at) = at;
	for (;;) {
		int32_t asked;

		__atomic_store_n(&probe->state, HMD_PROBE_WAITING, __ATOMIC_RELEASE);
		while ((asked = __atomic_load_n(&probe->state, __ATOMIC_ACQUIRE)) ==
		       HMD_PROBE_WAITING)
			nanosleep(&pause, NULL);
		if (asked == HMD_PROBE_LOADS)
			load(probe, (void **)probe->load_start, round_ns);
		else if (asked == HMD_PROBE_STORES)
			store(probe, round_ns);
		else if (asked == HMD_PROBE_TOUCHES)
			touch(probe);
	}
}

int hmd_probe_start(uint64_t bytes, uint64_t round_ns, int max_s, struct hmd_probe **probe)
{
	struct hmd_probe *shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
					MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int parent = getpid();
	sigset_t all, before;
	long pid;

	if (shared == MAP_FAILED)
		return -errno;
	shared->bytes = bytes;
	/* The child must not run handlers of this process; it never unblocks signals. */
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &before);
	/*
	 * fork(2) without the handlers of libraries, since other threads may hold their locks, and
	 * without a signal at exit: the child calls the kernel alone.
	 */
	pid = syscall(SYS_clone, 0, 0, 0, 0, 0);
	if (pid == 0)
		obey(shared, round_ns, max_s, parent);
	pid = pid < 0 ? -errno : pid;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (pid < 0)
		munmap(shared, sizeof(*shared));
	else
		*probe = shared;
	return (int)pid;
}

int hmd_probe_alive(int pid)
{
	siginfo_t ended = { .si_pid = 0 };

	return waitid(P_PID, (id_t)pid, &ended, WEXITED | WNOHANG | WNOWAIT | __WALL) == 0 &&
	       ended.si_pid == 0;
}

void hmd_probe_end(int pid, struct hmd_probe *probe)
{
	kill(pid, SIGKILL);
	while (waitpid(pid, NULL, __WALL) < 0 && errno == EINTR)
		;
	munmap(probe, sizeof(*probe));
}
