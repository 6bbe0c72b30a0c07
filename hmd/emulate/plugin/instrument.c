/* SPDX-License-Identifier: MIT */
#include "machine.h"

#define unlikely(x) __builtin_expect(!!(x), 0)
/* With the model inlined into it, across files. */
#define CALLBACK __attribute__((flatten))

#define SCORE_WORD(member) ((qemu_plugin_u64){ machine.scores, offsetof(struct score, member) })

/*
 * The argument of a memory callback, packed into its pointer so that nothing is allocated: the
 * instruction's address (48 bits, sign-extended), and the instructions of the block from this one
 * on (blocks have at most 512). The count is added at the start of a block, so it is exact at every
 * access; a block that a fault leaves early counts in full.
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

/* The loaded value, where it may be a pointer. */
static uint64_t pointer_value(qemu_plugin_meminfo_t info, bool store, unsigned size_shift)
{
	if (store || size_shift < 3)
		return 0;

	qemu_plugin_mem_value value = qemu_plugin_mem_get_value(info);
	return size_shift == 3 ? value.data.u64 : value.data.u128.low;
}

static struct sampled_access sampled(uint64_t vaddr, uint64_t paddr, const void *site)
{
	return (struct sampled_access){ vaddr, paddr, site_vaddr(site) };
}

static __attribute__((noinline)) void sample_store_hit(unsigned index, uint64_t vaddr,
						       uint64_t paddr, const void *site)
{
	struct timing_outcome hit = { .level = TIMING_L1 };

	sampling_store(&machine.vcpu[index], index, &hit, sampled(vaddr, paddr, site));
}

static void access_model(struct vcpu *vcpu, unsigned index, qemu_plugin_meminfo_t info,
			 uint64_t vaddr, uint64_t paddr, const void *site, uint32_t flags)
{
	struct timing_outcome outcome;
	unsigned size_shift = qemu_plugin_mem_size_shift(info);

	timing_access(machine.timing, index, instructions_of(vcpu) - site_remaining(site), vaddr,
		      paddr, 1u << size_shift, flags,
		      pointer_value(info, flags & TIMING_STORE, size_shift), &outcome);
	if (!sampling_sees(vcpu, flags))
		return;
	if (flags & TIMING_STORE) {
		if (sampling_store_due(vcpu))
			sampling_store(vcpu, index, &outcome, sampled(vaddr, paddr, site));
	} else if (outcome.level >= TIMING_MEMORY) {
		sampling_load(vcpu, index, &outcome, sampled(vaddr, paddr, site));
	}
}

/* Which translations may serve this access; NULL where the kernel accesses a user's page. */
static inline struct translations *translations_for(struct vcpu *vcpu, uint64_t vaddr,
						    uint32_t flags)
{
	if (flags & TIMING_KERNEL_MODE)
		return is_kernel(vaddr) ? &vcpu->kernel_pages : NULL;
	return vcpu->score->kernel ? NULL : &vcpu->user_pages;
}

static void device_store(unsigned index, uint64_t paddr, uint32_t value, const void *site)
{
	shootdown_device_store(index, paddr, value);
	timer_device_store(index, paddr, site_remaining(site));
}

/* The guest-physical address, or TRANSLATION_EMPTY of a device's. */
static uint64_t look_up(unsigned index, qemu_plugin_meminfo_t info, uint64_t vaddr,
			const void *site, uint32_t flags)
{
	struct vcpu *vcpu = &machine.vcpu[index];
	const struct qemu_plugin_hwaddr *place = qemu_plugin_get_hwaddr(info, vaddr);
	struct translations *known;

	if (!place)
		return TRANSLATION_EMPTY;
	if (qemu_plugin_hwaddr_is_io(place)) {
		if (flags & TIMING_STORE)
			device_store(index, qemu_plugin_hwaddr_phys_addr(place),
				     qemu_plugin_mem_get_value(info).data.u32, site);
		return TRANSLATION_EMPTY;
	}
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

	if (vcpu->in_timer) {
		if (flags & TIMING_KERNEL_MODE) {
			look_up(index, info, vaddr, site, flags);
			return;
		}
		timer_end(index, site_remaining(site));
	}
	if (!vcpu->running) {
		if (!model_wanted())
			return;
		vcpu_start(vcpu, index, site_remaining(site));
	}

	const struct translations *known = translations_for(vcpu, vaddr, flags);
	uint64_t paddr = known ? translations_find(known, vaddr) : TRANSLATION_EMPTY;
	if (paddr == TRANSLATION_EMPTY)
		paddr = look_up(index, info, vaddr, site, flags);
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
 * Every access of the guest comes here. The most common one, a hit in the first-level filter on a
 * recently used page, makes no call to QEMU; calls are in tail position, so that it saves no
 * registers either.
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
	    !timing_hit(machine.timing, index, instructions_of(vcpu) - site_remaining(site), vaddr,
			paddr, flags))
		return access_slowly(index, info, vaddr, site, flags);
	if ((flags & TIMING_STORE) && sampling_sees(vcpu, flags) && sampling_store_due(vcpu))
		sample_store_hit(index, vaddr, paddr, site);
	clock_ps = timing_counters_of(machine.timing, index)->clock_ps;
	if (unlikely(pacing_due(&vcpu->pacing, clock_ps)))
		vcpu_look(vcpu, index, clock_ps);
}

static CALLBACK void on_user_load(unsigned index, qemu_plugin_meminfo_t info, uint64_t vaddr,
				  void *site)
{
	on_access(index, info, vaddr, site, 0);
}

static CALLBACK void on_user_store(unsigned index, qemu_plugin_meminfo_t info, uint64_t vaddr,
				   void *site)
{
	on_access(index, info, vaddr, site, TIMING_STORE);
}

static CALLBACK void on_kernel_load(unsigned index, qemu_plugin_meminfo_t info, uint64_t vaddr,
				    void *site)
{
	on_access(index, info, vaddr, site, TIMING_KERNEL_MODE);
}

static CALLBACK void on_kernel_store(unsigned index, qemu_plugin_meminfo_t info, uint64_t vaddr,
				     void *site)
{
	on_access(index, info, vaddr, site, TIMING_KERNEL_MODE | TIMING_STORE);
}

static void instrument(struct qemu_plugin_insn *insn, size_t remaining)
{
	uint64_t vaddr = qemu_plugin_insn_vaddr(insn);
	bool kernel = is_kernel(vaddr);
	void *site = site_pack(vaddr, remaining);

	if (kernel)
		invalidation_instrument(insn);
	else
		frees_instrument(insn, remaining);
	if (kernel && !machine.kernel)
		return;
	qemu_plugin_register_vcpu_mem_cb(insn, kernel ? on_kernel_load : on_user_load,
					 QEMU_PLUGIN_CB_R_REGS, QEMU_PLUGIN_MEM_R, site);
	qemu_plugin_register_vcpu_mem_cb(insn, kernel ? on_kernel_store : on_user_store,
					 QEMU_PLUGIN_CB_R_REGS, QEMU_PLUGIN_MEM_W, site);
}

/* Code without memory accesses must be paced too, and must notice that the model was stopped. */
static void on_tick(unsigned index, void *block)
{
	vcpu_tick(&machine.vcpu[index], index, (uintptr_t)block);
}

void instrument_block(struct qemu_plugin_tb *tb)
{
	size_t count = qemu_plugin_tb_n_insns(tb);

	qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(tb, QEMU_PLUGIN_INLINE_ADD_U64,
							  SCORE_WORD(executed), count);
	qemu_plugin_register_vcpu_tb_exec_cond_cb(tb, on_tick, QEMU_PLUGIN_CB_NO_REGS,
						  QEMU_PLUGIN_COND_GE, SCORE_WORD(executed),
						  machine.tick, (void *)count);
	if (is_kernel(qemu_plugin_tb_vaddr(tb))) {
		qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(tb, QEMU_PLUGIN_INLINE_STORE_U64,
								  SCORE_WORD(kernel), 1);
		timer_instrument(tb, count);
	}
	for (size_t i = 0; i < count; i++)
		instrument(qemu_plugin_tb_get_insn(tb, i), count - i);
}
