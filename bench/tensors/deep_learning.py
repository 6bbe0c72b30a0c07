# SPDX-License-Identifier: MIT
"""Training within less device memory than it needs; writes build/deep-learning.json.

    python -m bench.tensors.deep_learning [--publish]

A transformer and a residual network in plain PyTorch, on a counted device
(:mod:`hmd.torch.counted_device`): CPU tensors, whose bytes are counted, with modelled times.
Without a plan, with hmd's plan at parts of the memory, with every saved tensor on the host (the
rule of ``torch.autograd.graph.save_on_cpu``), and with activation checkpointing of each layer.
``fast_share`` is the device's memory over what the plain step needs; for the last two, what they
need. ``refused`` has the parts that a step cannot run in. No GPU is measured. ``--publish`` also
writes docs/results/deep-learning.json. Needs the extra torch.

The device is as fast in relation to its link as an A100 is for a decoder layer of width 4,096: a
narrower layer computes less per byte that it saves.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import hmd.torch
from bench.documents.markdown import measured_with
from bench.tensors.training_memory import COUNTED, compact
from bench.tensors.training_steps.residual_network import Bottleneck, normalized
from hmd.tensors.lower_bound import lower_bound_seconds
from hmd.tensors.memory_system import MemorySystem, PricingRules, Roofline, TensorTier, TierLink
from hmd.tensors.trace import READ, WRITE, TensorKind, TensorTrace
from hmd.torch.counted_device import CountedDevice, Link
from hmd.torch.device import HostPool
from hmd.torch.saved_tensors import SavedTensors
from hmd.torch.schedule import DeviceMemoryError, RecordedStep, StepSchedule

ROOT: Final = Path(__file__).resolve().parents[2]
OUTPUT, PUBLISHED = ROOT / "build/deep-learning.json", ROOT / "docs/results/deep-learning.json"
FACTORS: Final = (1.5, 2.0, 3.0, 4.0)
"""How many times more a plain step needs than the device has."""

DEVICE: Final = Roofline(2.3, 1555.0)
LINK: Final = Link(12e9, 12e9)
HOST_BYTES: Final = 1 << 30
STEPS: Final = 4
PICTURED: Final = 3.0


class Layers(nn.Module):
    """Layers in a row, each computed again in the backward pass where ``again`` is set."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.again = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the last layer's result."""
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.again else layer(x)
        return x


def transformer() -> tuple[Layers, Callable[[], tuple[torch.Tensor, torch.Tensor]]]:
    """Return a decoder of six layers of width 128, and what draws batches of 16 x 128 tokens."""
    width, words = 128, 512
    layers = [
        nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        for _ in range(6)
    ]
    model = Layers(nn.Embedding(words, width), *layers, nn.Linear(width, words))

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        text = torch.randint(words, (16, 128))
        return text, text.flatten()

    return model, batch


def residual_network() -> tuple[Layers, Callable[[], tuple[torch.Tensor, torch.Tensor]]]:
    """Return a residual network of eight bottlenecks, and what draws batches of 32 images."""
    blocks: list[nn.Module] = [nn.Sequential(*normalized(3, 64, 3), nn.ReLU(inplace=True))]
    for width, stride in ((16, 1), (32, 2), (64, 2), (128, 2)):
        inputs = 64 if width == 16 else 2 * width
        blocks += [Bottleneck(inputs, width, stride), Bottleneck(4 * width, width, 1)]
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))
    return Layers(*blocks, head), lambda: (
        torch.randn(32, 3, 32, 32),
        torch.randint(10, (32,)),
    )


MODELS: Final = {"transformer": transformer, "resnet": residual_network}


class Traced(CountedDevice):
    """A counted device that notes time and allocated bytes after each kernel."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity, DEVICE, LINK)
        self.curve: list[tuple[float, int]] = []

    def run_kernel(self, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Execute an operator."""
        result = super().run_kernel(func, args, kwargs)
        self.curve.append((self.seconds(), self.allocated))
        return result


def train(name: str, system: str, gpu: int | None = None) -> dict[str, Any]:
    """Train some steps; return losses as bytes, and seconds, peak and curve of the last step."""
    torch.manual_seed(0)
    model, batch = MODELS[name]()
    model.again = system == "checkpointing"
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, foreach=False)
    device = Traced(1 << 40)
    plans: list[StepSchedule] = []
    saved = SavedTensors(device, HostPool(HOST_BYTES, 1 << 20, device.host_empty))
    losses, begin = [], 0.0
    with ExitStack() as contexts:
        contexts.enter_context(device)
        if gpu is not None:
            contexts.enter_context(
                hmd.torch.fit(model, optimizer, gpu, HOST_BYTES, device=device, report=plans.append)
            )
        for _ in range(STEPS):
            inputs, labels = batch()
            device.reset_peak()
            device.curve.clear()
            begin = device.seconds()
            optimizer.zero_grad()
            if system == "save_on_cpu":
                saved.begin(lambda key: None, model.parameters(), record=False)
                with saved:
                    loss = nn.functional.cross_entropy(model(inputs).flatten(0, -2), labels)
            else:
                loss = nn.functional.cross_entropy(model(inputs).flatten(0, -2), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach().numpy().tobytes())
            del loss
    return {
        "losses": losses,
        "seconds": device.seconds() - begin,
        "peak_bytes": device.peak_bytes(),
        "curve": [(seconds - begin, size) for seconds, size in device.curve],
        "plan": plans[0] if plans else None,
    }


def measure(name: str, refused: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], Any]:
    """Return the rows of a model, and the memory over the step for the picture."""
    plain = train(name, "plain")
    curves = {"plain": thinned(plain["curve"])}
    rows = []
    for system, factor in [
        ("plain", 1.0),
        ("save_on_cpu", None),
        ("checkpointing", None),
        *(("hmd", factor) for factor in FACTORS),
    ]:
        gpu = int(plain["peak_bytes"] / factor) if system == "hmd" and factor else None
        try:
            found = plain if system == "plain" else train(name, system, gpu)
        except DeviceMemoryError as error:
            share = round((gpu or 0) / plain["peak_bytes"], 4)
            refused.append({"model": name, "fast_share": share, "why": str(error)})
            continue
        row = {
            "model": name,
            "where": COUNTED,
            "fast_share": round((gpu or found["peak_bytes"]) / plain["peak_bytes"], 4),
            "system": system,
            "seconds": found["seconds"],
            "ideal_seconds": plain["seconds"],
            "peak_bytes": found["peak_bytes"],
            "loss_identical": found["losses"] == plain["losses"],
        }
        plan = found["plan"]
        if plan is not None:
            row["predicted_seconds"] = plan.seconds
            row["predicted_peak_bytes"] = plan.peak_bytes
            row["host_bytes"] = plan.host_bytes
            row["bound_seconds"] = bound_seconds(plan.step, gpu or 0)
        if factor == PICTURED:
            curves["hmd"] = thinned(found["curve"])
        print(
            f"{name:12} {system:14} {row['fast_share']:6.1%} of memory"
            f"  {plain['seconds'] / row['seconds']:6.1%} of ideal  same {row['loss_identical']}",
            flush=True,
        )
        rows.append(row)
    return rows, curves


def bound_seconds(step: RecordedStep, gpu: int) -> float:
    """Return what no plan undercuts that moves what is saved; kernels wait for what is missing."""
    system = MemorySystem(
        name="device",
        granularity_bytes=256,
        tiers=(TensorTier(name="gpu", capacity=gpu), TensorTier(name="host", capacity=HOST_BYTES)),
        links=(
            TierLink.model_validate(
                {
                    "name": "link",
                    "between": ("gpu", "host"),
                    "in": LINK.inwards / 1e9,
                    "out": LINK.outwards / 1e9,
                }
            ),
        ),
    )
    rules = PricingRules("hooks", False, True, True, False, False, 0.0, 0.0)
    return lower_bound_seconds(saved_trace(step), system, rules)


def saved_trace(step: RecordedStep) -> TensorTrace:
    """Return a step as a trace: a kernel per segment, saved storages, and what is fixed."""
    segments, storages = len(step.seconds), len(step.storages)
    uses: list[list[tuple[int, int]]] = [
        [(storages + segment, WRITE)] for segment in range(segments)
    ]
    for number, each in enumerate(step.storages):
        born, asked = int(step.after[each.packs[0]]), int(step.after[each.unpack])
        for segment in range(born, max(each.freed, born + 1)):
            uses[segment].append((number, WRITE if segment == born else READ))
        for segment in range(asked, max(each.dead, asked + 1)):
            uses[segment].append((number, READ))
    flat = [use for each in uses for use in each]
    kinds = [TensorKind.ACTIVATION] * storages + [TensorKind.WORKSPACE] * segments
    return TensorTrace(
        name="step",
        ticks_per_second=1_000_000_000,
        kernel_names=("segment",),
        kernel_name=np.zeros(segments, np.int64),
        kernel_ticks=np.maximum(np.rint(step.seconds * 1e9), 1).astype(np.int64),
        fault_ticks=np.zeros((0, 0), np.int64),
        tensor_bytes=np.maximum([*(each.size for each in step.storages), *step.fixed_bytes], 1),
        tensor_kind=np.array(kinds, np.int64),
        tensor_storage=np.arange(storages + segments),
        tensor_persistent=np.zeros(storages + segments, np.bool_),
        use_start=np.cumsum([0, *(len(each) for each in uses)]),
        use_tensor=np.array([tensor for tensor, _ in flat], np.int64),
        use_mode=np.array([mode for _, mode in flat], np.int64),
    )


def thinned(curve: list[tuple[float, int]]) -> list[tuple[float, int]]:
    """Return some 200 points of a curve, each the most bytes of its part."""
    part = max(len(curve) // 200, 1)
    return [
        max(curve[first : first + part], key=lambda point: point[1])
        for first in range(0, len(curve), part)
    ]


def errors(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the largest relative errors of what plans predicted."""
    planned = [row for row in rows if "predicted_seconds" in row]
    return {
        "time_error": max(abs(row["predicted_seconds"] / row["seconds"] - 1) for row in planned),
        "peak_error": max(
            abs(row["predicted_peak_bytes"] / row["peak_bytes"] - 1) for row in planned
        ),
    }


def main() -> int:
    """Measure, print and write the figures."""
    parser = argparse.ArgumentParser(description="Training within less device memory.")
    parser.add_argument("--publish", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    memory = {}
    refused: list[dict[str, Any]] = []
    for name in MODELS:
        found, memory[name] = measure(name, refused)
        rows += found
    document = {
        **measured_with(),
        "torch": torch.__version__,
        "rows": rows,
        "refused": refused,
        "predicted": errors(rows),
        "gpu": None,
        "memory": memory,
    }
    if PUBLISHED.exists():  # rows of other commands stay
        known = json.loads(PUBLISHED.read_text())["rows"]
        document["rows"] = [*rows, *(row for row in known if row["where"] != COUNTED)]
    text = compact(document)
    for path in (OUTPUT, *([PUBLISHED] if args.publish else ())):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text + "\n")
    print(f"largest errors of predictions: {errors(rows)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
