/* SPDX-License-Identifier: MIT */
/* What conftest.py compiles with the plugin's files: a test's machine in place of QEMU's. */
#include <string.h>

#include "arguments.h"
#include "awake.h"
#include "machine.h"
#include "pacing.h"
#include "pebs.h"
#include "recording.h"
#include "shared.h"
#include "translation.h"

/* A writer as busy as can be: every word of a snapshot is the same number. */
static void publish_equal_words(struct shared_vcpu *vcpu, uint64_t rounds)
{
	for (uint64_t round = 1; round <= rounds; round++) {
		struct timing_vcpu_counters counters;
		for (size_t i = 0; i < sizeof(counters) / 8; i++)
			((uint64_t *)&counters)[i] = round;
		shared_publish(vcpu, &counters, round, round, round);
	}
}

/* A machine of one vCPU, whose registers and counters are what a test says. */
struct machine machine;
static uint64_t register_cr3;
static GByteArray register_bytes;
static struct timing_vcpu_counters counted;

GByteArray *g_byte_array_set_size(GByteArray *array, unsigned length)
{
	array->len = length;
	return array;
}

int qemu_plugin_read_register(struct qemu_plugin_register *handle, GByteArray *buf)
{
	buf->data = (uint8_t *)&register_cr3;
	buf->len = sizeof(register_cr3);
	return sizeof(register_cr3);
}

unsigned highest_asked; /* of all vCPUs whose counters were asked for */

const struct timing_vcpu_counters *timing_counters_of(const struct timing *timing, unsigned vcpu)
{
	if (vcpu > highest_asked)
		highest_asked = vcpu;
	return &counted;
}

bool timing_runs(const struct timing *timing, unsigned vcpu)
{
	return true;
}

/* Wake-ups of vCPU 0, each with a mark of every other vCPU that is recorded. */
static void record_wakes(struct recording *recording, uint64_t count)
{
	struct timing_miss wake = { .flags = TIMING_WAKE };

	for (uint64_t i = 0; i < count; i++)
		recording_observe(recording, 0, &wake);
}

/* Watched CPUs that all were halted. */
static struct awake *awake_new(void)
{
	static struct awake awake;

	memset(&awake, 0, sizeof(awake));
	pthread_mutex_init(&awake.lock, NULL);
	return &awake;
}

/* A vCPU that is awake from each even picosecond to the next odd one. */
static void awake_storm(struct awake *awake, struct shared_header *header, unsigned vcpu,
			uint64_t rounds)
{
	for (uint64_t at = 0; at < 2 * rounds; at += 2) {
		awake_enter(awake, header, vcpu, at);
		awake_leave(awake, header, vcpu, at + 1);
	}
}

/* A guest that writes the count of records all the time. */
static void guest_writes(struct shared_header *header, const uint64_t *words, size_t count,
				const volatile bool *stop)
{
	for (size_t i = 0; !*stop; i++)
		__atomic_store_n(&header->recorded, words[i % count], __ATOMIC_RELAXED);
}

/* Records so far: without an interrupt each, and with. */
uint32_t charged[2];

uint64_t timing_sample(struct timing *timing, unsigned vcpu, uint32_t records, bool each_interrupts)
{
	charged[each_interrupts] += records;
	return 0;
}

/* Shootdowns that each vCPU was charged for. */
uint32_t rounds_sent[4], rounds_received[4];

void timing_shootdown_sent(struct timing *timing, unsigned vcpu)
{
	rounds_sent[vcpu]++;
}

void timing_shootdown_received(struct timing *timing, unsigned vcpu)
{
	rounds_received[vcpu]++;
}

static void shootdown_begin(unsigned vcpus)
{
	memset(&machine, 0, sizeof(machine));
	memset(rounds_sent, 0, sizeof(rounds_sent));
	memset(rounds_received, 0, sizeof(rounds_received));
	machine.vcpus = vcpus;
}

/* A vCPU that has executed so many instructions, and the block with which a handler begins. */
static struct score timer_score;
static uint8_t timer_gate[16];
static GByteArray timer_bytes = { timer_gate, sizeof(timer_gate) };
static qemu_plugin_vcpu_udata_cb_t timer_handler;
static uint64_t timer_block;
struct qemu_plugin_tb { uint64_t vaddr; };

GByteArray *g_byte_array_new(void)
{
	return &timer_bytes;
}

uint8_t *g_byte_array_free(GByteArray *array, int free_segment)
{
	return NULL;
}

bool qemu_plugin_read_memory_vaddr(uint64_t addr, GByteArray *data, size_t len)
{
	return addr == 0xfffffe0000000000ull + 236 * 16 && len == sizeof(timer_gate);
}

uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *tb)
{
	return tb->vaddr;
}

void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *tb,
				qemu_plugin_vcpu_udata_cb_t cb,
				enum qemu_plugin_cb_flags flags, void *userdata)
{
	timer_handler = cb;
	timer_block = (uintptr_t)userdata;
}

static bool timer_begin(const uint8_t *gate, uint64_t vaddr, size_t count)
{
	struct qemu_plugin_tb tb = { vaddr };

	memset(&machine, 0, sizeof(machine));
	memset(&timer_score, 0, sizeof(timer_score));
	memcpy(timer_gate, gate, sizeof(timer_gate));
	machine.vcpu[0].score = &timer_score;
	machine.vcpu[0].running = true;
	timer_handler = NULL;
	timer_instrument(&tb, count);
	return timer_handler;
}

/* Execute a block of the handler, which begins with the first. */
static void timer_executes(uint64_t count, bool first)
{
	timer_score.executed += count;
	if (first)
		timer_handler(0, (void *)timer_block);
}

static uint64_t timer_charged(void)
{
	return instructions_of(&machine.vcpu[0]);
}

static bool timer_running(void)
{
	return machine.vcpu[0].running;
}

static void sampling_begin(struct shared *shared, struct perf_ring_page *page, uint64_t data_bytes,
				uint64_t cr3, const struct timing_vcpu_counters *counters)
{
	memset(&machine, 0, sizeof(machine));
	machine.header = shared->header;
	machine.vcpu[0].shared = shared_vcpu(shared, 0);
	machine.vcpu[0].bytes = &register_bytes;
	machine.cr3 = (struct qemu_plugin_register *)&register_cr3;
	pebs_ring_init(&machine.vcpu[0].ring, page, data_bytes);
	register_cr3 = cr3;
	counted = *counters;
	memset(charged, 0, sizeof(charged));
}

static void sampling_access(const struct timing_outcome *outcome, uint32_t flags, uint64_t vaddr)
{
	struct sampled_access access = { vaddr, ~vaddr, vaddr + 1 };
	struct vcpu *vcpu = &machine.vcpu[0];

	sampling_control(vcpu); /* as at each look at the clock */
	if (!sampling_sees(vcpu, flags))
		return;
	if (flags & TIMING_STORE) {
		if (sampling_store_due(vcpu))
			sampling_store(vcpu, 0, outcome, access);
	} else if (outcome->level >= TIMING_MEMORY) {
		sampling_load(vcpu, 0, outcome, access);
	}
}
