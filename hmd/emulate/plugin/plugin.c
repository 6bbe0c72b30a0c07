/*
 * The plugin: QEMU's callbacks, tied to the timing model, to pacing, to emulated PEBS and to the
 * shared memory.
 *
 * A machine boots uninstrumented, at TCG's full speed. When `running` is set in the shared
 * header, the code cache is flushed once, at the next moment that vCPU 0 is idle, and from then on
 * every translation is instrumented (`armed`). Clearing `running` stops the modelled clocks and
 * lets the guest run unpaced; setting it again goes on.
 */
#include <stdlib.h>
#include <string.h>

#include "arguments.h"
#include "pacing.h"
#include "pebs.h"
#include "qemu_plugin_api.h"
#include "shared.h"
#include "timing.h"
#include "translation.h"

#define PUBLISH_NS 1000000

#define unlikely(x) __builtin_expect(!!(x), 0)
/* With the model inlined into it, across files. */
#define CALLBACK __attribute__((flatten))

/* A page's physical number is the address space: what cr3 holds but PCID and control bits. */
#define CR3_PAGE(cr3) ((uint32_t)(((cr3) & 0x000ffffffffff000ull) >> 12))

QEMU_PLUGIN_EXPORT int qemu_plugin_version = 4;

struct vcpu {
	struct score *score;
	uint64_t skipped;             /* instructions executed while the model did not run */
	uint64_t stopped_at;
	bool running;
	uint64_t published_ns;
	struct pacing pacing;
	uint64_t loads, stores;       /* counted for sampling since the last sample */
	struct pebs_ring ring;
	struct shared_vcpu *shared;
	GByteArray *cr3;
	struct translations user_pages, kernel_pages;
} __attribute__((aligned(128)));

/* What translated code writes inline; a line of the host's cache, and its neighbour, each. */
struct score {
	uint64_t executed;            /* instructions, added as their block begins */
	uint64_t kernel;              /* 1: kernel code has run since this was cleared */
	uint64_t pad[14];
};

/* Callbacks carry no context of ours, so there is one machine. */
static struct machine {
	struct timing *timing;
	struct shared_header *header;
	struct qemu_plugin_scoreboard *scores;
	struct qemu_plugin_register *cr3;
	bool kernel;                  /* accesses of the kernel are charged */
	bool armed;
	unsigned vcpus;
	struct vcpu vcpu[TIMING_MAX_VCPUS];
} machine;

#define SCORE_WORD(member) ((qemu_plugin_u64){ machine.scores, offsetof(struct score, member) })

/*
 * What translated code tells a memory callback of its instruction, packed into the pointer that
 * the callback gets, so that nothing is allocated: address (48 bits, sign-extended), and how many
 * instructions of the block are executed from this one on (blocks have 512 at most). The count
 * is added as a block begins, so it is exact at every access; a block that a fault leaves early is
 * counted in full.
 */
#define SITE_VADDR_BITS 48

static void *site_pack(uint64_t vaddr, size_t remaining)
{
	return (void *)((vaddr << 16 >> 16) | (uint64_t)remaining << SITE_VADDR_BITS);
}

static uint64_t site_vaddr(const void *site)
{
	return (uint64_t)((int64_t)((uint64_t)site << 16) >> 16);
}

static uint64_t site_remaining(const void *site)
{
	return (uint64_t)site >> SITE_VADDR_BITS;
}

/* The kernel's half of the address space. */
static bool is_kernel(uint64_t vaddr)
{
	return vaddr >> 63;
}

static uint64_t instructions_of(const struct vcpu *vcpu)
{
	return vcpu->score->executed - vcpu->skipped;
}

static void publish(struct vcpu *vcpu, unsigned index, uint64_t host_ns)
{
	const struct timing_vcpu_counters *counters = timing_counters_of(machine.timing, index);

	shared_publish(vcpu->shared, counters, host_ns, vcpu->pacing.paced_ns,
		       vcpu->pacing.behind_ns);
	shared_advance_clock(machine.header, counters->clock_ps);
	vcpu->published_ns = host_ns;
}

/* The model goes on, at an instruction before which `executed` is this many too many. */
static void vcpu_start(struct vcpu *vcpu, unsigned index, uint64_t remaining)
{
	vcpu->skipped += vcpu->score->executed - remaining - vcpu->stopped_at;
	vcpu->running = true;
	timing_resume(machine.timing, index, instructions_of(vcpu) - remaining);
	pacing_start(&vcpu->pacing, timing_counters_of(machine.timing, index)->clock_ps);
}

static void vcpu_stop(struct vcpu *vcpu, unsigned index)
{
	timing_idle(machine.timing, index, instructions_of(vcpu));
	vcpu->stopped_at = vcpu->score->executed;
	vcpu->running = false;
	publish(vcpu, index, pacing_host_ns());
}

static __attribute__((noinline)) void vcpu_look(struct vcpu *vcpu, unsigned index,
						uint64_t clock_ps)
{
	__atomic_store_n(&vcpu->shared->clock_ps, clock_ps, __ATOMIC_RELAXED);
	shared_advance_clock(machine.header, clock_ps);
	pacing_look(&vcpu->pacing, clock_ps);
	if (vcpu->pacing.now_ns - vcpu->published_ns >= PUBLISH_NS) {
		publish(vcpu, index, vcpu->pacing.now_ns);
		translations_forget(&vcpu->kernel_pages);
	}
	if (!__atomic_load_n(&machine.header->running, __ATOMIC_RELAXED))
		vcpu_stop(vcpu, index);
}

static uint32_t address_space(struct vcpu *vcpu)
{
	uint64_t cr3 = 0;

	g_byte_array_set_size(vcpu->cr3, 0);
	if (qemu_plugin_read_register(machine.cr3, vcpu->cr3) <= 0)
		return 0;
	memcpy(&cr3, vcpu->cr3->data, vcpu->cr3->len < 8 ? vcpu->cr3->len : 8);
	return CR3_PAGE(cr3);
}

static void sample(struct vcpu *vcpu, unsigned index, const struct pebs_sample *partial)
{
	struct pebs_sample sample = *partial;
	uint64_t *written = sample.event == PEBS_STORE ? &vcpu->shared->store_samples
						       : &vcpu->shared->load_samples;

	sample.time_ns = pacing_host_ns();
	sample.address_space = address_space(vcpu);
	sample.cpu = index;
	if (!pebs_write(&vcpu->ring, &sample))
		written = &vcpu->shared->lost_samples;
	__atomic_store_n(written, *written + 1, __ATOMIC_RELAXED);
}

/* A user-mode access that memory served: count it, and sample every period-th. */
static __attribute__((noinline)) void count_miss(struct vcpu *vcpu, unsigned index,
						 const struct timing_outcome *outcome, bool store,
						 uint64_t vaddr, uint64_t paddr, const void *site)
{
	const struct shared_header *header = machine.header;
	uint64_t period = __atomic_load_n(store ? &header->store_period : &header->load_period,
					  __ATOMIC_RELAXED);
	uint64_t ldlat_ps = header->ldlat_ns * 1000ull;
	bool prefetched = outcome->level == TIMING_PREFETCHED;

	if (!__atomic_load_n(&header->enabled, __ATOMIC_RELAXED))
		return;
	/* Latency is a filter of loads; of stores, only for those that a prefetch has served. */
	if ((!store || prefetched) && outcome->latency_ps < ldlat_ps)
		return;
	if (!pebs_overflow(store ? &vcpu->stores : &vcpu->loads, period))
		return;
	sample(vcpu, index,
	       &(struct pebs_sample){
		       .ip = site_vaddr(site),
		       .address = vaddr,
		       .physical = paddr,
		       .period = period,
		       .weight_ns = outcome->latency_ps / 1000,
		       .event = store ? PEBS_STORE : PEBS_LOAD,
		       .prefetched = prefetched,
	       });
}

/* The loaded value, where it may be a pointer. */
static uint64_t pointer_value(qemu_plugin_meminfo_t info, bool store, unsigned size_shift)
{
	if (store || size_shift < 3)
		return 0;

	qemu_plugin_mem_value value = qemu_plugin_mem_get_value(info);
	return size_shift == 3 ? value.data.u64 : value.data.u128.low;
}

static void access_model(struct vcpu *vcpu, unsigned index, qemu_plugin_meminfo_t info,
			 uint64_t vaddr, uint64_t paddr, const void *site, uint32_t flags)
{
	struct timing_outcome outcome;
	unsigned size_shift = qemu_plugin_mem_size_shift(info);

	timing_access(machine.timing, index, instructions_of(vcpu) - site_remaining(site), vaddr,
		      paddr, 1u << size_shift, flags,
		      pointer_value(info, flags & TIMING_STORE, size_shift), &outcome);
	if (outcome.level >= TIMING_MEMORY && !(flags & TIMING_KERNEL_MODE))
		count_miss(vcpu, index, &outcome, flags & TIMING_STORE, vaddr, paddr, site);
}

/* Which translations may serve this access; NULL where the kernel accesses a user's page. */
static inline struct translations *translations_for(struct vcpu *vcpu, uint64_t vaddr,
						    uint32_t flags)
{
	if (flags & TIMING_KERNEL_MODE)
		return is_kernel(vaddr) ? &vcpu->kernel_pages : NULL;
	return vcpu->score->kernel ? NULL : &vcpu->user_pages;
}

/* The guest-physical address, or TRANSLATION_EMPTY of a device's. */
static uint64_t look_up(struct vcpu *vcpu, qemu_plugin_meminfo_t info, uint64_t vaddr,
			uint32_t flags)
{
	const struct qemu_plugin_hwaddr *place = qemu_plugin_get_hwaddr(info, vaddr);
	struct translations *known;

	if (!place || qemu_plugin_hwaddr_is_io(place))
		return TRANSLATION_EMPTY;
	if (!(flags & TIMING_KERNEL_MODE) && vcpu->score->kernel) {
		translations_forget(&vcpu->user_pages);
		vcpu->score->kernel = 0;
	}
	known = translations_for(vcpu, vaddr, flags);
	if (known)
		translations_add(known, vaddr, qemu_plugin_hwaddr_phys_addr(place));
	return qemu_plugin_hwaddr_phys_addr(place);
}

/* Any access. */
static __attribute__((noinline)) void access_slowly(unsigned index, qemu_plugin_meminfo_t info,
						    uint64_t vaddr, const void *site,
						    uint32_t flags)
{
	struct vcpu *vcpu = &machine.vcpu[index];

	if (!vcpu->running) {
		if (!__atomic_load_n(&machine.header->running, __ATOMIC_RELAXED))
			return;
		vcpu_start(vcpu, index, site_remaining(site));
	}

	uint64_t paddr = look_up(vcpu, info, vaddr, flags);
	if (paddr == TRANSLATION_EMPTY)
		return;
	access_model(vcpu, index, info, vaddr, paddr, site, flags);

	uint64_t clock_ps = timing_counters_of(machine.timing, index)->clock_ps;
	if (pacing_due(&vcpu->pacing, clock_ps))
		vcpu_look(vcpu, index, clock_ps);
}

/* No access is longer than 16 bytes: those that begin here lie in one line. */
static inline bool in_one_line(uint64_t vaddr)
{
	return vaddr % 64 <= 48;
}

/*
 * Every access of the guest comes here. The commonest, a settled hit in the first-level filter
 * on a page that was used lately, is done without a call to QEMU; calls are in tail position,
 * so that it saves no registers either.
 */
static inline void on_access(unsigned index, qemu_plugin_meminfo_t info, uint64_t vaddr,
			     const void *site, uint32_t flags)
{
	struct vcpu *vcpu = &machine.vcpu[index];
	const struct translations *known = translations_for(vcpu, vaddr, flags);
	uint64_t paddr, clock_ps;

	if (unlikely(!vcpu->running || !known || !in_one_line(vaddr)))
		return access_slowly(index, info, vaddr, site, flags);
	paddr = translations_find(known, vaddr);
	if (unlikely(paddr == TRANSLATION_EMPTY) ||
	    !timing_hit(machine.timing, index, instructions_of(vcpu) - site_remaining(site), paddr,
			flags))
		return access_slowly(index, info, vaddr, site, flags);
	clock_ps = timing_counters_of(machine.timing, index)->clock_ps;
	if (unlikely(pacing_due(&vcpu->pacing, clock_ps)))
		vcpu_look(vcpu, index, clock_ps);
}

static CALLBACK void on_user_load(unsigned index, qemu_plugin_meminfo_t info, uint64_t vaddr, void *site)
{
	on_access(index, info, vaddr, site, 0);
}

static CALLBACK void on_user_store(unsigned index, qemu_plugin_meminfo_t info, uint64_t vaddr, void *site)
{
	on_access(index, info, vaddr, site, TIMING_STORE);
}

static CALLBACK void on_kernel_load(unsigned index, qemu_plugin_meminfo_t info, uint64_t vaddr, void *site)
{
	on_access(index, info, vaddr, site, TIMING_KERNEL_MODE);
}

static CALLBACK void on_kernel_store(unsigned index, qemu_plugin_meminfo_t info, uint64_t vaddr, void *site)
{
	on_access(index, info, vaddr, site, TIMING_KERNEL_MODE | TIMING_STORE);
}

static void instrument(struct qemu_plugin_insn *insn, size_t remaining)
{
	uint64_t vaddr = qemu_plugin_insn_vaddr(insn);
	bool kernel = is_kernel(vaddr);
	void *site = site_pack(vaddr, remaining);

	if (kernel && !machine.kernel)
		return;
	qemu_plugin_register_vcpu_mem_cb(insn, kernel ? on_kernel_load : on_user_load,
					 QEMU_PLUGIN_CB_R_REGS, QEMU_PLUGIN_MEM_R, site);
	qemu_plugin_register_vcpu_mem_cb(insn, kernel ? on_kernel_store : on_user_store,
					 QEMU_PLUGIN_CB_R_REGS, QEMU_PLUGIN_MEM_W, site);
}

static void on_translate(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
	size_t count = qemu_plugin_tb_n_insns(tb);

	(void)id;
	if (!machine.armed)
		return;
	qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(
		tb, QEMU_PLUGIN_INLINE_ADD_U64, SCORE_WORD(executed), count);
	if (is_kernel(qemu_plugin_tb_vaddr(tb)))
		qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(
			tb, QEMU_PLUGIN_INLINE_STORE_U64, SCORE_WORD(kernel), 1);
	for (size_t i = 0; i < count; i++)
		instrument(qemu_plugin_tb_get_insn(tb, i), count - i);
}

static void register_callbacks(qemu_plugin_id_t id);

/* In an exclusive section, with the code cache just flushed. */
static void on_reset(qemu_plugin_id_t id)
{
	machine.armed = true;
	register_callbacks(id);
	__atomic_store_n(&machine.header->armed, 1, __ATOMIC_RELEASE);
}

static void on_idle(qemu_plugin_id_t id, unsigned index)
{
	struct vcpu *vcpu = &machine.vcpu[index];

	/*
	 * QEMU's reset leaves its plugin lock held by the thread that asked for it (10.0,
	 * plugins/loader.c, plugin_reset_destroy: it locks twice). The lock is recursive, and
	 * after boot only resets and CPU hotplug take it: asking once, from one thread, is safe.
	 */
	if (!machine.armed && index == 0 &&
	    __atomic_load_n(&machine.header->running, __ATOMIC_ACQUIRE))
		qemu_plugin_reset(id, on_reset);
	if (!vcpu->running)
		return;
	timing_idle(machine.timing, index, instructions_of(vcpu));
	publish(vcpu, index, pacing_host_ns());
}

static void on_resume(qemu_plugin_id_t id, unsigned index)
{
	struct vcpu *vcpu = &machine.vcpu[index];

	(void)id;
	if (!vcpu->running)
		return;
	timing_resume(machine.timing, index, instructions_of(vcpu));
	pacing_start(&vcpu->pacing, timing_counters_of(machine.timing, index)->clock_ps);
}

static void on_exit_of_machine(qemu_plugin_id_t id, void *userdata)
{
	(void)id;
	(void)userdata;
	for (unsigned index = 0; index < machine.vcpus; index++)
		publish(&machine.vcpu[index], index, pacing_host_ns());
}

/* In the context of a vCPU that is about to start: its registers and its score are known now. */
static void on_vcpu_init(qemu_plugin_id_t id, unsigned index)
{
	GArray *registers = qemu_plugin_get_registers();
	const qemu_plugin_reg_descriptor *found = (const void *)registers->data;

	(void)id;
	machine.vcpu[index].score = qemu_plugin_scoreboard_find(machine.scores, index);
	for (unsigned i = 0; i < registers->len; i++)
		if (!strcmp(found[i].name, "cr3"))
			machine.cr3 = found[i].handle;
	g_array_free(registers, 1);
}

static void register_callbacks(qemu_plugin_id_t id)
{
	qemu_plugin_register_vcpu_init_cb(id, on_vcpu_init);
	qemu_plugin_register_vcpu_tb_trans_cb(id, on_translate);
	qemu_plugin_register_vcpu_idle_cb(id, on_idle);
	qemu_plugin_register_vcpu_resume_cb(id, on_resume);
	qemu_plugin_register_atexit_cb(id, on_exit_of_machine, NULL);
}

static void vcpu_setup(unsigned index, const struct shared *shared, double dilation)
{
	struct vcpu *vcpu = &machine.vcpu[index];

	vcpu->shared = shared_vcpu(shared, index);
	vcpu->cr3 = g_byte_array_new();
	translations_forget(&vcpu->user_pages);
	translations_forget(&vcpu->kernel_pages);
	pacing_init(&vcpu->pacing, dilation);
	pebs_ring_init(&vcpu->ring, shared_ring_page(shared, index),
		       shared->header->ring_data_bytes);
}

QEMU_PLUGIN_EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc,
					   char **argv)
{
	struct arguments arguments;
	struct timing_params params;
	struct shared shared;
	const char *why;

	if (!info->system_emulation || strcmp(info->target_name, "x86_64"))
		return arguments_refuse("QEMU", "needs qemu-system-x86_64");
	if (arguments_parse(&arguments, argc, argv))
		return -1;
	if (arguments_read_params(arguments.params, &params, &why))
		return arguments_refuse(arguments.params, why);
	machine.timing = timing_new(&params, &why);
	if (!machine.timing)
		return arguments_refuse(arguments.params, why);
	if (params.vcpus != (uint32_t)info->system.max_vcpus)
		return arguments_refuse(arguments.params, "vcpus is not the machine's maximum of vCPUs");
	if (shared_open(&shared, arguments.shared, &params, arguments.dilation, &why))
		return arguments_refuse(arguments.shared, why);

	machine.header = shared.header;
	machine.vcpus = params.vcpus;
	machine.kernel = params.parts & TIMING_KERNEL;
	machine.scores = qemu_plugin_scoreboard_new(sizeof(struct score));
	for (unsigned index = 0; index < machine.vcpus; index++)
		vcpu_setup(index, &shared, arguments.dilation);
	register_callbacks(id);
	return 0;
}
