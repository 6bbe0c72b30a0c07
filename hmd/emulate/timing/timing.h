/* SPDX-License-Identifier: MIT */
/*
 * The timing model of the emulated machine: the cost of memory accesses in modelled time.
 *
 * One library, compiled into the QEMU plugin and into hmd.emulate._timing (cffi), so that the
 * emulated machine, the simulator and the tests share one model. It depends only on libc.
 *
 * Each vCPU has its own modelled clock in picoseconds. It advances by `instruction_ps` per
 * instruction and by the stalls of its misses. Each part (struct timing_params.parts) can be
 * disabled; with all parts disabled, a miss costs its node's idle latency.
 */
#ifndef HMD_TIMING_H
#define HMD_TIMING_H

#include <stdbool.h>
#include <stdint.h>

#define TIMING_MAX_NODES 8
#define TIMING_MAX_VCPUS 16
#define TIMING_CURVE_POINTS 8

enum timing_part {
	TIMING_CACHE = 1 << 0,     /* last-level cache; off: every L1-filter miss goes to memory */
	TIMING_MLP = 1 << 1,       /* overlap of independent misses in the reorder window */
	TIMING_PREFETCH = 1 << 2,  /* stride prefetcher: streams pay bandwidth, not latency */
	TIMING_BANDWIDTH = 1 << 3, /* per-node read and write bandwidth, loaded latency */
	TIMING_KERNEL = 1 << 4,    /* accesses of the kernel (page copies, zeroing) are charged */
	TIMING_SAMPLING = 1 << 5,  /* records of the emulated PMU take time of the sampled CPU */
	TIMING_TLB = 1 << 6,       /* translations of user mode: page walks */
	TIMING_SHOOTDOWN = 1 << 7, /* interprocessor interrupts of TLB shootdowns */
	TIMING_ALL = 0xff,
};

struct timing_node_params {
	uint64_t phys_start, phys_end;                /* [start, end), guest-physical */
	uint32_t read_latency_ps, write_latency_ps;   /* idle */
	uint32_t far_vcpus, far_ps; /* vCPUs of other sockets, as bits; so much later for those */
	double read_bytes_per_ns, write_bytes_per_ns; /* peak, sequential */
	/* bytes of media moved by one random access: 64, 256 (Optane XPLine) */
	uint32_t access_granularity;
	/* loaded over idle latency against utilisation, both ascending; curve_points may be 0 */
	uint32_t curve_points;
	double curve_utilisation[TIMING_CURVE_POINTS];
	double curve_factor[TIMING_CURVE_POINTS];
};

struct timing_params {
	uint32_t nodes, vcpus;
	uint32_t parts;               /* enum timing_part, or-ed */
	uint32_t instruction_ps;      /* per retired instruction, all else hidden */
	uint32_t llcs;                /* last-level caches; vCPU i uses number i % llcs */
	uint32_t llc_bytes, llc_ways; /* of each; line is 64 bytes */
	uint32_t first_llc_bytes;     /* of number 0, where it differs; 0: as the others */
	uint32_t llc_hit_ps;          /* visible cost of an LLC hit, after overlap */
	uint32_t mshrs;               /* line fill buffers a vCPU: outstanding misses */
	uint32_t rob_instructions;    /* reorder window */
	uint32_t chase_span_bytes; /* a miss within this span after a loaded value depends on it */
	uint32_t prefetch_streams; /* streams tracked a vCPU */
	uint32_t sample_record_ps; /* a sampling record: microcode assist, store to the buffer */
	uint32_t sample_interrupt_ps;   /* an interrupt that empties the buffer */
	uint32_t sample_buffer_records; /* records per interrupt, at least 1 (IBS of AMD: 1) */
	/* Data TLBs of a vCPU; tlb_entries 0: none. Sets are powers of two. */
	uint32_t tlb_entries, tlb_ways;           /* first level, 4 KiB pages */
	uint32_t tlb_huge_entries, tlb_huge_ways; /* first level, 2 MiB pages */
	uint32_t stlb_entries, stlb_ways;         /* second level, of both */
	uint32_t stlb_hit_ps;                     /* a load's address is known so much later */
	uint32_t walk_ps;                         /* likewise, where the leaf entry is cached */
	uint32_t shootdown_send_ps;    /* a round's interrupts, until all have answered */
	uint32_t shootdown_receive_ps; /* an interrupt, without the handler's instructions */
	struct timing_node_params node[TIMING_MAX_NODES];
};

enum timing_level { TIMING_L1, TIMING_LLC, TIMING_MEMORY, TIMING_PREFETCHED };

enum timing_access_flags {
	TIMING_STORE = 1,
	TIMING_KERNEL_MODE = 2,
	TIMING_HALT = 4, /* recorded streams only: no access, the vCPU halts here */
	/* Recorded misses only. */
	TIMING_COVERED = 8,     /* the prefetcher had asked for it */
	TIMING_WRITE_BACK = 16, /* no access: a dirty line goes to memory */
	TIMING_STLB_HIT = 32, /* of a load that waited: the second-level TLB had its translation */
	TIMING_WALK = 64,     /* likewise: its page was walked, and the leaf entry was cached */
	TIMING_TABLE = 128,   /* no access of the program: a walk reads a leaf entry */
	/*
	 * Recorded only, all of no access: TIMING_HALT, or in its place that the vCPU goes on after a
	 * halt, or was here when another one went on.
	 */
	TIMING_WAKE = TIMING_HALT | 1,
	TIMING_MARK = TIMING_HALT | 2,
};

struct timing_outcome {
	uint8_t level;       /* enum timing_level */
	uint8_t node;        /* index of the node served from; 0xff on a hit */
	uint32_t latency_ps; /* what PEBS would give as weight: issue to data */
	uint64_t stall_ps;   /* by how much this access advanced the vCPU's clock */
};

/* Counters since timing_new. Per vCPU and node; a line is 64 bytes. */
struct timing_counters {
	uint64_t load_misses, store_misses; /* demand misses of user mode */
	uint64_t prefetched_lines;          /* misses that the prefetcher covered */
	uint64_t kernel_lines;              /* lines moved by the kernel */
	uint64_t table_lines;               /* leaf entries of page tables, read by walks */
	uint64_t read_bytes, write_bytes;   /* traffic, write-backs included */
	uint64_t stall_ps;
};

struct timing_vcpu_counters {
	uint64_t instructions, loads, stores, llc_hits;
	uint64_t clock_ps;     /* modelled time, idle jumps included */
	uint64_t busy_ps;      /* modelled time this vCPU executed */
	uint64_t sampling_ps;  /* of it, for sampling records */
	uint64_t shootdown_ps; /* of it, for interprocessor interrupts */
	uint64_t page_walks;   /* but those for prefetched lines */
	struct timing_counters node[TIMING_MAX_NODES];
};

struct timing;

/* NULL when out of memory or a parameter is out of range; *why then says which. */
struct timing *timing_new(const struct timing_params *params, const char **why);
void timing_free(struct timing *timing);

/*
 * One access. `instructions` is the vCPU's cumulative count of retired instructions; `value` the
 * value loaded (first 8 bytes), for pointer-chase detection. Thread-safe across vCPUs: a vCPU's
 * state is touched by its own thread only; LLCs and the nodes' utilisation are shared.
 */
void timing_access(struct timing *timing, unsigned vcpu, uint64_t instructions, uint64_t vaddr,
		   uint64_t paddr, uint32_t size, uint32_t flags, uint64_t value,
		   struct timing_outcome *outcome);

/*
 * The most common case of timing_access(), for callers that pay for size and value. True: the
 * access, which must lie in one line, hit the first-level filter while nothing was due, and has
 * been counted; its outcome is TIMING_L1 without a stall. False: nothing has happened.
 */
bool timing_hit(struct timing *timing, unsigned vcpu, uint64_t instructions, uint64_t vaddr,
		uint64_t paddr, uint32_t flags);

/*
 * Where the leaf entry of an address's translation lies (guest-physical), and whether it maps a
 * 2 MiB page. Called on the vCPU's thread, for user addresses that no TLB holds.
 */
typedef uint64_t timing_walker(void *context, unsigned vcpu, uint64_t vaddr, bool *huge);
/*
 * At most one walker, to be set before the first access. Without one, pages have 4 KiB, and leaf
 * entries lie in a table on the node of their page, by page number.
 */
void timing_walk_with(struct timing *timing, timing_walker *walker, void *context);

/* The vCPU's TLBs lose all translations of user mode, or those of one address. */
void timing_flush(struct timing *timing, unsigned vcpu);
void timing_flush_page(struct timing *timing, unsigned vcpu, uint64_t vaddr);

/* A vCPU has made others flush and waited for them, or was interrupted for it. */
void timing_shootdown_sent(struct timing *timing, unsigned vcpu);
void timing_shootdown_received(struct timing *timing, unsigned vcpu);

/* A vCPU that halts stops its clock; on resume it jumps to the machine's clock. */
void timing_idle(struct timing *timing, unsigned vcpu, uint64_t instructions);
void timing_resume(struct timing *timing, unsigned vcpu, uint64_t instructions);
/* Whether a vCPU is not halted; from any thread. */
bool timing_runs(const struct timing *timing, unsigned vcpu);

/* Modelled time: of one vCPU at this instruction count, and of the machine (furthest vCPU). */
uint64_t timing_vcpu_clock_ps(struct timing *timing, unsigned vcpu, uint64_t instructions);
uint64_t timing_clock_ps(const struct timing *timing);

/*
 * Replay `count` recorded accesses in the order given; each column has `count` elements. The
 * outcome columns may be NULL. A vCPU that was halted resumes at its next access. Returns
 * timing_clock_ps() after the last one.
 */
uint64_t timing_replay(struct timing *timing, uint64_t count, const uint8_t *vcpu,
		       const uint64_t *instructions, const uint64_t *vaddr, const uint64_t *paddr,
		       const uint8_t *size, const uint8_t *flags, const uint64_t *value,
		       uint8_t *level, uint8_t *node, uint32_t *latency_ps, uint64_t *stall_ps);

/*
 * A last-level-cache miss of one vCPU: a line read from or written to memory, a halt or a wake-up.
 * Misses of one vCPU do not depend on latency or bandwidth, so that a recording is replayed for any
 * machine with this cache and prefetcher, and for any placement of its pages. Those of several
 * vCPUs depend on it a little, by the order in which they use a shared cache.
 */
struct timing_miss {
	uint64_t instructions;
	uint64_t vaddr; /* 0 of a write-back; clock_ps of a halt or wake-up */
	uint64_t paddr;
	/*
	 * Hits in the last-level cache since the one before that cost time, and how many of them
	 * in each of its next TIMING_NEAR_STEPS steps of TIMING_NEAR_STEP instructions, in
	 * TIMING_NEAR_BITS each, the first lowest: those hide a part of it.
	 */
	uint32_t paid_hits, near_hits;
	uint32_t depends; /* a load's address came with the load miss so many before; 0: none */
	uint32_t flags;   /* enum timing_access_flags */
};

/* Together about a reorder window. */
#define TIMING_NEAR_STEP 32
#define TIMING_NEAR_STEPS 8
#define TIMING_NEAR_BITS 4
#define TIMING_NEAR_MOST 15
/* Farther back, an address counts as known. The largest reorder window holds fewer misses. */
#define TIMING_MAX_DEPENDENCE 1023

/* Called on the vCPU's thread; at most one observer, to be set before the first access. */
typedef void timing_observer(void *context, unsigned vcpu, const struct timing_miss *miss);
void timing_observe(struct timing *timing, timing_observer *observer, void *context);

/*
 * Recorded misses of one CPU; columns have `count` elements. Instead of its paddr each has a page
 * and a line in it (0 to 63); page_paddr says where each page lies, and may change between calls.
 * Where they are not NULL, `latency_ps` (as timing_outcome's) and `clock_ps` (the CPU's busy time
 * when the access was issued) are filled in.
 */
struct timing_misses {
	uint64_t count;
	const uint64_t *instructions;
	const uint32_t *paid_hits, *near_hits, *page;
	const uint8_t *line, *flags;
	const uint16_t *depends;
	const uint64_t *page_paddr;
	uint32_t *latency_ps;
	uint64_t *clock_ps;
	uint32_t idle; /* not 0: clock_ps is the CPU's clock, idle time included */
};

/* How far a replay has come: zeroed at first. */
struct timing_progress {
	uint64_t next; /* the first miss that was not replayed yet */
	uint64_t arrives_ps[TIMING_MAX_DEPENDENCE + 1];
	uint32_t table_ps; /* latency of the leaf entry that the next miss waits for, 0: none */
};

/* A page that is not mapped now: a replay stops before an access to it. */
#define TIMING_UNMAPPED UINT64_MAX

/*
 * Misses of several CPUs, and the times at which one of them went on after a halt: meetings. All
 * CPUs wait for each other there, as at a barrier: the one that woke the other, those that still
 * ran, and those that stay halted have come as far as they had in the recording.
 */
struct timing_threads {
	uint32_t cpus;
	const struct timing_misses *misses; /* of each CPU */
	uint64_t meetings;
	const uint64_t *meets_at; /* [meeting][CPU]: its misses before the meeting */
};

/*
 * Replay the misses of CPU i on vCPU i of a fresh model, in the order of modelled time. Returns the
 * machine's clock at the end; UINT64_MAX without memory for it.
 */
uint64_t timing_replay_threads(struct timing *timing, const struct timing_threads *threads);

/*
 * Replay misses on vCPU 0, which makes no other accesses, from where the replay is to the first
 * that would come at `until_ps` of its clock or later, or to the first of a page that is not
 * mapped. Returns its busy_ps then.
 */
uint64_t timing_replay_misses(struct timing *timing, const struct timing_misses *misses,
			      struct timing_progress *progress, uint64_t until_ps);

/* Advance a CPU's clock to `until_ps` without busy time. */
void timing_sleep(struct timing *timing, unsigned vcpu, uint64_t until_ps);

/*
 * Copy 4 KiB pages, as the kernel's page migration does: each line is read and written past the
 * caches, and each page takes `instructions` more. A vCPU that was halted resumes, and does not
 * halt at the end. Returns its clock_ps after the last one.
 */
uint64_t timing_copy_pages(struct timing *timing, unsigned vcpu, uint64_t count,
			   const uint64_t *from_paddr, const uint64_t *to_paddr,
			   uint64_t instructions);

/*
 * The PMU has written so many sampling records on this vCPU since the last call: they take time of
 * it (TIMING_SAMPLING). `each_interrupts`: the kernel takes an interrupt for every record, as it
 * does where samples have timestamps, instead of one per full buffer. Returns the time, ps.
 */
uint64_t timing_sample(struct timing *timing, unsigned vcpu, uint32_t records,
		       bool each_interrupts);

/* The vCPU's live counters; read them from other threads as monotonic approximations. */
const struct timing_vcpu_counters *timing_counters_of(const struct timing *timing, unsigned vcpu);

#endif
