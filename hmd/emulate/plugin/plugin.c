/* SPDX-License-Identifier: MIT */
/*
 * The plugin's entry points: installation, translation, halt and wake-up of vCPUs.
 *
 * A machine boots uninstrumented, at TCG's full speed. When `running` is set in the shared
 * header, the code cache is flushed once, and from then on every translation is instrumented
 * (`armed`). Clearing `running` stops the modelled clocks and pacing; setting it again resumes
 * them.
 */
#include <string.h>

#include "arguments.h"
#include "machine.h"

/* Modelled time after which code is looked at even if it accesses no memory. */
#define TICK_PS 1000000

QEMU_PLUGIN_EXPORT int qemu_plugin_version = 4;

struct machine machine;

static void register_callbacks(qemu_plugin_id_t id);

/* In an exclusive section, with the code cache just flushed. */
static void on_reset(qemu_plugin_id_t id)
{
	machine.armed = true;
	register_callbacks(id);
	__atomic_store_n(&machine.header->armed, 1, __ATOMIC_RELEASE);
}

/*
 * Ask QEMU to flush its code cache, at the next halt or translation after `running` is set.
 *
 * QEMU's reset leaves its plugin lock held by the thread that asked for it (10.0,
 * plugins/loader.c, plugin_reset_destroy: it locks twice). After boot only resets and CPU
 * hotplug take that lock: asking once is safe, asking again would hang another thread.
 */
static void arm_if_wanted(qemu_plugin_id_t id)
{
	if (!machine.arming && model_wanted() &&
	    !__atomic_exchange_n(&machine.arming, true, __ATOMIC_ACQ_REL))
		qemu_plugin_reset(id, on_reset);
}

static void on_translate(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
	if (machine.armed)
		instrument_block(tb);
	else
		arm_if_wanted(id);
}

static void on_idle(qemu_plugin_id_t id, unsigned index)
{
	if (!machine.armed)
		arm_if_wanted(id);
	vcpu_halt(&machine.vcpu[index], index);
}

static void on_resume(qemu_plugin_id_t id, unsigned index)
{
	(void)id;
	vcpu_resume(&machine.vcpu[index], index);
}

static void on_exit_of_machine(qemu_plugin_id_t id, void *userdata)
{
	(void)id;
	(void)userdata;
	for (unsigned index = 0; index < machine.vcpus; index++)
		vcpu_publish(&machine.vcpu[index], index, pacing_host_ns());
}

/* In the context of a vCPU that is about to start: its registers and its score are known now. */
static void on_vcpu_init(qemu_plugin_id_t id, unsigned index)
{
	GArray *registers = qemu_plugin_get_registers();

	(void)id;
	machine.vcpu[index].score = qemu_plugin_scoreboard_find(machine.scores, index);
	registers_find((const void *)registers->data, registers->len);
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
	vcpu->bytes = g_byte_array_new();
	page_walk_forget(&vcpu->walk);
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
		return arguments_refuse(arguments.params,
					"vcpus is not the machine's maximum of vCPUs");
	if (shared_open(&shared, arguments.shared, &params, arguments.dilation, &why))
		return arguments_refuse(arguments.shared, why);

	if (arguments.recording) {
		if (recording_open(&machine.recording, arguments.recording, shared.header,
				   machine.timing, params.vcpus, &why))
			return arguments_refuse(arguments.recording, why);
		timing_observe(machine.timing, recording_observe, &machine.recording);
	}

	timing_walk_with(machine.timing, page_walk, NULL);
	machine.header = shared.header;
	machine.vcpus = params.vcpus;
	machine.kernel = params.parts & TIMING_KERNEL;
	machine.step_ps = (uint64_t)(arguments.step_ns * 1000);
	pthread_mutex_init(&machine.awake.lock, NULL);
	machine.tick = 1 + TICK_PS / params.instruction_ps;
	machine.scores = qemu_plugin_scoreboard_new(sizeof(struct score));
	for (unsigned index = 0; index < machine.vcpus; index++)
		vcpu_setup(index, &shared, arguments.dilation);
	register_callbacks(id);
	return 0;
}
