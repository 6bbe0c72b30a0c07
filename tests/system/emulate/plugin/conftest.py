# SPDX-License-Identifier: MIT
"""The plugin's parts that need no QEMU, compiled for these tests: rings, sampling, pacing, ….

Sampling asks QEMU for a register and the model for counters: here it is given a test's.

The C compiler itself checks that what is declared here agrees with the plugin's headers.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cffi import FFI

from hmd.emulate.preset import load
from hmd.emulate.timing_params import packed, timing_params
from hmd.linux.emulator_memory import SharedMemory

EMULATE = Path(__file__).parents[4] / "hmd/emulate"

DECLARATIONS = """
struct perf_ring_page { uint64_t data_head, data_tail, data_offset, data_size; ...; };
enum pebs_event { PEBS_LOAD, PEBS_STORE };
enum pebs_source { PEBS_MEMORY, PEBS_FILL_BUFFER, PEBS_L1_HIT, PEBS_L1_MISS };
struct pebs_sample {
    uint64_t ip, time_ns, address, period, instructions, latency_ns, physical;
    uint32_t address_space, cpu;
    enum pebs_event event;
    enum pebs_source source;
};
struct pebs_ring { struct perf_ring_page *page; uint64_t head, data_bytes, lost; };
void pebs_ring_init(struct pebs_ring *ring, struct perf_ring_page *page, uint64_t data_bytes);
bool pebs_write(struct pebs_ring *ring, const struct pebs_sample *sample);
bool pebs_overflow(uint64_t *count, uint64_t period);

struct timing_counters {
    uint64_t load_misses, store_misses, prefetched_lines, kernel_lines, table_lines;
    uint64_t read_bytes, write_bytes, stall_ps;
};
struct timing_vcpu_counters {
    uint64_t instructions, loads, stores, llc_hits, clock_ps, busy_ps, sampling_ps;
    uint64_t shootdown_ps, page_walks;
    struct timing_counters node[8];
};
struct timing_params { uint32_t nodes, vcpus; ...; };

struct shared_header {
    uint64_t load_period, store_period, pair_period, prefetched_period, clock_ps;
    uint32_t ldlat_ns, enabled, each_interrupts, vcpus, recorded_vcpus;
    uint64_t recorded;
    ...;
};
struct shared_vcpu { uint64_t clock_ps, load_samples, store_samples, lost_samples; ...; };
struct timing_outcome { uint8_t level; uint32_t latency_ps; ...; };
#define TIMING_L1 ...
#define TIMING_LLC ...
#define TIMING_MEMORY ...
#define TIMING_PREFETCHED ...
#define TIMING_STORE ...
#define TIMING_KERNEL_MODE ...
void sampling_begin(struct shared *shared, struct perf_ring_page *page, uint64_t data_bytes,
                    uint64_t cr3, const struct timing_vcpu_counters *counters);
extern uint32_t charged[2];
void sampling_access(const struct timing_outcome *outcome, uint32_t flags, uint64_t vaddr);

struct shared { struct shared_header *header; uint64_t size; };
int shared_open(struct shared *shared, const char *path, const struct timing_params *params,
                double dilation, const char **why);
struct shared_vcpu *shared_vcpu(const struct shared *shared, unsigned vcpu);
struct perf_ring_page *shared_ring_page(const struct shared *shared, unsigned vcpu);
void shared_advance_clock(struct shared_header *header, uint64_t clock_ps);
void shared_publish(struct shared_vcpu *vcpu, const struct timing_vcpu_counters *counters,
                    uint64_t host_ns, uint64_t paced_ns, uint64_t behind_ns);
void publish_equal_words(struct shared_vcpu *vcpu, uint64_t rounds);

#define PACING_BATCH_NS ...
#define PACING_CREDIT_NS ...
#define PACING_MAX_WAIT_NS ...
struct pacing {
    double dilation;
    uint64_t batch_ps, next_ps, at_ps;
    double due_ns;
    uint64_t now_ns, paced_ns, behind_ns;
};
uint64_t pacing_host_ns(void);
void pacing_init(struct pacing *pacing, double dilation);
void pacing_set(struct pacing *pacing, double dilation);
void pacing_start(struct pacing *pacing, uint64_t clock_ps);
void pacing_look(struct pacing *pacing, uint64_t clock_ps);
int pacing_due(const struct pacing *pacing, uint64_t clock_ps);

struct arguments { const char *shared, *params, *recording; double dilation, step_ns; };
int arguments_parse(struct arguments *arguments, int argc, char **argv);
int arguments_read_params(const char *path, struct timing_params *params, const char **why);

enum invalidation { INVALIDATION_NONE, INVALIDATION_ALL, INVALIDATION_ROOT, INVALIDATION_PAGE };
enum invalidation invalidation_of(const uint8_t *code, size_t size, unsigned *reg);
void shootdown_device_store(unsigned vcpu, uint64_t paddr, uint32_t value);
void shootdown_flushed(unsigned vcpu);
void shootdown_ended(unsigned vcpu);
void shootdown_settle(unsigned vcpu);
void shootdown_begin(unsigned vcpus);
extern uint32_t rounds_sent[4], rounds_received[4];
uint32_t shootdown_targets(uint32_t icr_low, uint32_t icr_high, unsigned self, unsigned vcpus);

struct awake { ...; };
struct awake *awake_new(void);
void awake_enter(struct awake *awake, const struct shared_header *header, unsigned vcpu,
                 uint64_t clock_ps);
void awake_leave(struct awake *awake, struct shared_header *header, unsigned vcpu,
                 uint64_t clock_ps);
void awake_storm(struct awake *awake, struct shared_header *header, unsigned vcpu,
                 uint64_t rounds);

struct recording { uint64_t capacity; ...; };
int recording_open(struct recording *recording, const char *path, struct shared_header *header,
                   const struct timing *timing, unsigned vcpus, const char **why);
struct system_call { uint64_t number, first, second, third, fourth; };
struct freed_range { uint64_t start, pages; };
bool freed_by(const struct system_call *call, struct freed_range *range);
bool is_system_call(const uint8_t *code, size_t size);
void recording_free(struct recording *recording, unsigned vcpu, uint64_t instructions,
                    const struct freed_range *range);
bool recording_wants(const struct recording *recording, unsigned vcpu);
void record_wakes(struct recording *recording, uint64_t count);
void guest_writes(struct shared_header *header, const uint64_t *words, size_t count,
                  const volatile bool *stop);
extern unsigned highest_asked;

uint64_t timer_gate_handler(const uint8_t *gate);
void timer_device_store(unsigned vcpu, uint64_t paddr, uint64_t remaining);
void timer_look(unsigned vcpu, uint64_t block);
void timer_end(unsigned vcpu, uint64_t remaining);
bool timer_begin(const uint8_t *gate, uint64_t vaddr, size_t count);
void timer_executes(uint64_t count, bool first);
uint64_t timer_charged(void);
bool timer_running(void);

#define TRANSLATION_EMPTY ...
struct translations { ...; };
void translations_forget(struct translations *known);
void translations_add(struct translations *known, uint64_t vaddr, uint64_t paddr);
uint64_t translations_find(const struct translations *known, uint64_t vaddr);
"""

SOURCE = Path(__file__).with_name("parts.c")


class Parts:
    """The compiled module's two faces."""

    def __init__(self, module: Any):
        self.ffi = module.ffi
        self.lib = module.lib


@pytest.fixture(scope="session")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    """The C under test."""
    ffi = FFI()
    ffi.cdef(DECLARATIONS)
    names = (
        "arguments",
        "awake",
        "freed_range",
        "invalidation_code",
        "pacing",
        "pebs",
        "recording",
        "registers",
        "sampling",
        "shared",
        "shootdown",
        "shootdown_targets",
        "timer_gate",
        "timer_interrupt",
    )
    ffi.set_source(
        "hmd_plugin_parts",
        SOURCE.read_text(),
        sources=[str(EMULATE / f"plugin/{name}.c") for name in names],
        include_dirs=[str(EMULATE / "plugin"), str(EMULATE / "timing")],
        extra_compile_args=["-O2", "-std=gnu11", "-Wall", "-Wextra", "-Wno-unused-parameter"],
    )
    built = ffi.compile(tmpdir=str(tmp_path_factory.mktemp("plugin-parts")))
    spec = importlib.util.spec_from_file_location("hmd_plugin_parts", built)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["hmd_plugin_parts"] = module
    spec.loader.exec_module(module)
    return Parts(module)


@pytest.fixture
def params_file(tmp_path: Path) -> Path:
    """Parameters of a machine of two nodes and two vCPUs."""
    path = tmp_path / "params"
    path.write_bytes(packed(timing_params(load("dram-pm"))))
    return path


@pytest.fixture
def params(parts: Parts, params_file: Path) -> Any:
    """The same, read by the plugin."""
    found = parts.ffi.new("struct timing_params *")
    why = parts.ffi.new("const char **")
    assert parts.lib.arguments_read_params(bytes(params_file), found, why) == 0
    return found


class Shared:
    """Shared memory as the plugin laid it out, and as Python sees it."""

    def __init__(self, parts: Parts, native: Any, path: Path, memory: SharedMemory):
        self.parts, self.native, self.path, self.memory = parts, native, path, memory

    def vcpu(self, index: int) -> Any:
        return self.parts.lib.shared_vcpu(self.native, index)

    def ring(self, index: int) -> Any:
        """A writer of a vCPU's ring."""
        ring = self.parts.ffi.new("struct pebs_ring *")
        page = self.parts.lib.shared_ring_page(self.native, index)
        self.parts.lib.pebs_ring_init(ring, page, page_bytes(self.memory))
        return ring


def page_bytes(memory: SharedMemory) -> int:
    return len(memory.ring(0)) - 4096


@pytest.fixture
def make_shared(parts: Parts, params: Any, tmp_path: Path) -> Iterator[Callable[[int], Shared]]:
    """Lay out a file of so many bytes."""
    opened = []

    def make(size: int) -> Shared:
        path = tmp_path / "shared"
        with path.open("wb") as file:
            file.truncate(size)
        native = parts.ffi.new("struct shared *")
        why = parts.ffi.new("const char **")
        failed = parts.lib.shared_open(native, bytes(path), params, 20.0, why)
        assert not failed, parts.ffi.string(why[0])
        opened.append(SharedMemory.open(path))
        return Shared(parts, native, path, opened[-1])

    yield make
    for memory in opened:
        memory.close()
