# SPDX-License-Identifier: MIT
"""A running emulated machine, as a context manager.

    with Machine(load("dram-pm")) as machine:
        done = machine.run(["numactl", "-H"])

A boot takes about 6 s. The guest sees the host's file system; its writes are lost when it ends,
except in the directories of ``share``. Nothing outlives the launcher, even if it is killed: QEMU
dies with the thread that entered the context (PR_SET_PDEATHSIG, prctl(2)), and every file it
needs is a memfd.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from hmd.emulate import assets
from hmd.emulate.assets import compile_static, plugin_library
from hmd.emulate.preset import Preset
from hmd.emulate.timing_params import ModelPart, packed, timing_params
from hmd.emulate.vm import images, qemu
from hmd.emulate.vm.guest import Agent, GuestError, Job, Sink
from hmd.emulate.vm.images import guest_environment
from hmd.linux.emulator_memory import SharedMemory

DEFAULT_DILATION = 20.0
"""Host and guest time over modelled time: about the cost of emulating a program that misses."""

SHARED_BYTES = 64 << 20  # counters and rings; a PCI BAR is a power of two


_GUEST = Path(__file__).resolve().parents[1] / "guest"
_INIT, *_INIT_PARTS = (_GUEST / f"{name}.c" for name in ("init", "boot", "frames", "jobs"))


@dataclass(eq=False)
class Machine:
    """One boot of the emulated machine.

    ``share`` are directories of the host that the guest may write; ``console`` is a descriptor for
    the kernel's log; ``append`` adds kernel parameters. ``parts`` are the enabled parts of the
    timing model (None: no model, memory of one speed); the guest's clock is ``dilation`` times
    slower than modelled time. ``recording_bytes`` is room for recorded misses of 32 bytes each; it
    takes memory as it fills. Where ``step_ns`` is not 0, no vCPU's modelled clock runs ahead of
    another running one by more than that. ``first`` is a command that replaces hmd's init as the
    first process once all is mounted, for example systemd. Nodes in ``absent`` have no memory until
    it is plugged by QEMU's monitor (QMP), whose socket is the descriptor ``monitor``, and the
    timing model does not know them. With a ``counted_clock`` the guest's clock counts instructions,
    one per nanosecond, so that the host's load does not show in it; CPUs run in turns, and it needs
    ``parts`` None. The model is stopped until
    :meth:`start_model`, so that boots are fast. Raises MissingError for missing programs or files,
    GuestError where the machine does not boot in ``boot_timeout_s``.
    """

    preset: Preset
    _: KW_ONLY
    share: Sequence[Path] = ()
    console: int | None = None
    append: Sequence[str] = ()
    parts: ModelPart | None = ModelPart.ALL
    dilation: float = DEFAULT_DILATION
    recording_bytes: int = 0
    step_ns: float = 0
    first: Sequence[str] = ()
    absent: Collection[int] = ()
    monitor: int | None = None
    counted_clock: bool = False
    boot_timeout_s: float = 120

    def __post_init__(self) -> None:
        self.share = [path.resolve(strict=True) for path in self.share]
        self._recording_fd: int | None = None
        self._files: list[int] = []
        self._log = -1
        self._process: subprocess.Popen[bytes] | None = None
        self._agent: Agent | None = None
        self._shared: SharedMemory | None = None

    def __enter__(self) -> Self:
        try:
            self._boot()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop(flush_s=30 if kind is None else 0)

    @property
    def pid(self) -> int:
        """The process id of QEMU on the host."""
        assert self._process is not None
        return self._process.pid

    @property
    def shared(self) -> SharedMemory:
        """The memory shared with the plugin: control words, counters, modelled clock, rings."""
        if self._shared is None:
            raise GuestError("this emulated machine was booted without a timing model")
        return self._shared

    def start_model(self, timeout: float = 30) -> None:
        """Start modelled time; returns once the guest's code is instrumented."""
        self.shared.running = True
        deadline = time.monotonic() + timeout
        while not self.shared.armed:
            if time.monotonic() > deadline:
                raise GuestError("the emulated machine's timing model did not start")
            time.sleep(0.002)

    def stop_model(self) -> None:
        """Stop modelled time; the guest then runs at full speed."""
        self.shared.running = False

    @contextlib.contextmanager
    def record_misses(self, *vcpus: int) -> Iterator[Path]:
        """Record the last-level-cache misses of vCPUs; yields the file of the records.

        A new recording overwrites the previous one.
        """
        if self._recording_fd is None:
            raise GuestError("this emulated machine was booted without room for a recording")
        self.shared.record_misses(*vcpus)
        try:
            yield Path(f"/proc/self/fd/{self._recording_fd}")
        finally:
            self.shared.record_misses()

    def start(
        self,
        argv: Sequence[str],
        *,
        cwd: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bool = False,
        stdout: Sink,
        stderr: Sink,
    ) -> Job:
        """Start a command; another thread calls the sinks with its output.

        ``cwd`` and ``env`` default to those of the caller.
        """
        if self._agent is None:
            raise GuestError("the emulated machine is not running")
        environment = dict(os.environ if env is None else env)
        return self._agent.start(
            argv,
            cwd=str(cwd or Path.cwd()),
            env=guest_environment() | environment,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
        )

    def run(
        self,
        argv: Sequence[str],
        *,
        cwd: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        input: str | None = None,  # noqa: A002 - as in subprocess.run
        timeout: float | None = None,
        check: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, as subprocess.run does with text and captured output.

        Raises subprocess.TimeoutExpired (after killing the command and its children),
        subprocess.CalledProcessError with ``check``, GuestError if the machine ends first.
        """
        out, err = bytearray(), bytearray()
        job = self.start(
            argv, cwd=cwd, env=env, stdin=input is not None, stdout=out.extend, stderr=err.extend
        )
        if input is not None:
            job.write(input.encode())
            job.close_stdin()
        try:
            code = job.wait(timeout)
        except subprocess.TimeoutExpired:
            job.kill()
            raise
        done = subprocess.CompletedProcess(
            list(argv), code, out.decode(errors="replace"), err.decode(errors="replace")
        )
        if check:
            done.check_returncode()
        return done

    def stop(self, *, flush_s: float = 0) -> None:
        """End the machine, after at most ``flush_s`` seconds of writing its shares back."""
        if self._agent is not None:
            if flush_s and self.share:
                self._agent.sync(flush_s)
            self._agent.close()
            self._agent = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        if self._shared is not None:
            self._shared.close()
            self._shared = None
        self._recording_fd = None
        while self._files:
            os.close(self._files.pop())

    def _boot(self) -> None:
        began = time.monotonic()
        kernel = assets.find_kernel()
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = self._spawn(kernel, theirs.fileno())
            except BaseException:
                ours.close()
                raise
        self._agent = Agent(ours)
        while not self._agent.wait_ready(0.2):
            if self._agent.closed or self._process.poll() is not None:
                raise GuestError(f"the emulated machine did not boot: {self._last_words()}")
            if time.monotonic() - began > self.boot_timeout_s:
                raise GuestError(
                    f"the emulated machine did not boot in {self.boot_timeout_s:g} s "
                    f"(--verbose shows the kernel's log): {self._last_words()}"
                )
        self._agent.death = "the emulated machine ended while a command ran in it"
        if self._shared is not None:
            self._shared.check()
            sampling = self.preset.sampling
            self._shared.set_pmu(sampling.tag_interval, ibs=sampling.pmu == "ibs")

    def _spawn(self, kernel: assets.Kernel, agent_fd: int) -> subprocess.Popen[bytes]:
        self._log = self._memory_file("hmd-log")
        shares = [(f"hmd_rw{i}", path, True) for i, path in enumerate(self.share)]
        init = compile_static(_INIT, more_sources=_INIT_PARTS).read_bytes()
        writable = {tag: str(path) for tag, path, _ in shares}
        image = images.build(kernel, init, writable, self.first)
        files = qemu.BootFiles(
            kernel=self._kernel_path(kernel),
            initramfs_fd=self._memory_file("hmd-initramfs", image),
            agent_fd=agent_fd,
            console_fd=self._log if self.console is None else self.console,
            shares=(("hmd_root", Path("/"), False), *shares),
            model=self._model(),
            monitor_fd=self.monitor,
            counted_clock=self.counted_clock,
        )
        program = assets.find_program("qemu-system-x86_64", "qemu-system-x86")
        words = qemu.command_line(
            program,
            self.preset,
            files,
            verbose=self.console is not None,
            append=self.append,
            absent=self.absent,
        )
        monitored = [] if self.monitor is None else [self.monitor]
        # In its own session: a terminal's Ctrl-C reaches only the launcher.
        return subprocess.Popen(
            [assets.find_program("setpriv", "util-linux"), "--pdeathsig", "KILL", "--", *words],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            pass_fds=[agent_fd, *monitored, files.console_fd, *self._files],
            start_new_session=True,
        )

    def _model(self) -> qemu.TimingPlugin | None:
        if self.parts is None:
            return None
        shared_fd = self._memory_file("hmd-shared")
        os.ftruncate(shared_fd, SHARED_BYTES)
        self._shared = SharedMemory(shared_fd)
        if self.recording_bytes:
            self._recording_fd = self._memory_file("hmd-misses")
            os.ftruncate(self._recording_fd, self.recording_bytes)
        params = packed(timing_params(self.preset, self.parts))
        return qemu.TimingPlugin(
            plugin=plugin_library(),
            shared_fd=shared_fd,
            shared_bytes=SHARED_BYTES,
            params_fd=self._memory_file("hmd-params", params),
            dilation=self.dilation,
            recording_fd=self._recording_fd,
            step_ns=self.step_ns,
        )

    def _kernel_path(self, kernel: assets.Kernel) -> Path:
        unpacked = images.unpack(kernel.image.read_bytes())
        if unpacked is None:
            return kernel.image
        return Path(f"/proc/self/fd/{self._memory_file('hmd-kernel', unpacked)}")

    def _memory_file(self, name: str, data: bytes = b"") -> int:
        number = os.memfd_create(name)
        self._files.append(number)
        with os.fdopen(os.dup(number), "wb") as stream:
            stream.write(data)
        return number

    def _last_words(self) -> str:
        """Return the last line that QEMU or the guest's kernel wrote."""
        if self._agent is not None and self._agent.death:
            return self._agent.death
        size = os.fstat(self._log).st_size
        lines = os.pread(self._log, size, 0).decode(errors="replace").split("\n")
        said = [line.strip() for line in lines if line.strip()]
        return said[-1] if said else "no message"


def exit_code(returncode: int) -> int:
    """Return the exit code as a shell reports it: 128 + N for a job that signal N ended."""
    return returncode if returncode >= 0 else 128 - returncode
