# SPDX-License-Identifier: MIT
"""Trains a ResNet-50 (arXiv:1512.03385) on random images with momentum.

hmd tensors record bench/tensors/training_steps/residual_network.py [BATCH]
"""

from __future__ import annotations

import sys

import torch
from torch import nn

LAYERS = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))
"""Width, bottlenecks and stride of each stage."""


class Bottleneck(nn.Module):
    """Three convolutions with batch normalization, and the shortcut around them."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.body = nn.Sequential(
            *normalized(inputs, width, 1),
            nn.ReLU(inplace=True),
            *normalized(width, width, 3, stride),
            nn.ReLU(inplace=True),
            *normalized(width, outputs, 1),
        )
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Sequential(*([] if same else normalized(inputs, outputs, 1, stride)))
        self.activation = nn.ReLU(inplace=True)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return activations (N, 4 * width, H, W)."""
        total = self.body(images).add_(self.shortcut(images))
        activations: torch.Tensor = self.activation(total)
        return activations


def normalized(inputs: int, outputs: int, size: int, stride: int = 1) -> list[nn.Module]:
    """Return a convolution and its batch normalization."""
    padding = size // 2
    convolution = nn.Conv2d(inputs, outputs, size, stride, padding, bias=False)
    return [convolution, nn.BatchNorm2d(outputs)]


def network(classes: int = 1000) -> nn.Module:
    """Return a ResNet-50."""
    modules = [*normalized(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for width, blocks, stride in LAYERS:
        for block in range(blocks):
            modules.append(Bottleneck(inputs, width, stride if block == 0 else 1))
            inputs = 4 * width
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes)]
    return nn.Sequential(*modules, *head)


def main(batch: int) -> None:
    """Train for some steps."""
    torch.manual_seed(1)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    for _ in range(20):
        images, labels = torch.randn(batch, 3, 224, 224), torch.randint(1000, (batch,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 4)
