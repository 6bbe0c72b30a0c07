# SPDX-License-Identifier: MIT
"""Trains an MLP-Mixer (arXiv:2105.01601) of eight layers on random images with AdamW.

hmd tensors record bench/tensors/training_steps/mlp_mixer.py [BATCH]
"""

from __future__ import annotations

import sys

import torch
from torch import nn

PATCH, SIDE, WIDTH, LAYERS = 16, 224, 512, 8
PATCHES = (SIDE // PATCH) ** 2


def perceptron(width: int, hidden: int) -> nn.Module:
    """Return two linear layers with GELU between them."""
    return nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))


class MixerLayer(nn.Module):
    """A perceptron over patches and one over channels."""

    def __init__(self) -> None:
        super().__init__()
        self.patch_norm, self.channel_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.patches, self.channels = perceptron(PATCHES, 256), perceptron(WIDTH, 2048)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return activations (N, PATCHES, WIDTH)."""
        turned = self.patch_norm(hidden).transpose(1, 2)
        hidden = hidden + self.patches(turned).transpose(1, 2)
        activations: torch.Tensor = hidden + self.channels(self.channel_norm(hidden))
        return activations


class MlpMixer(nn.Module):
    """Patches to channels, layers, and scores of classes."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.layers = nn.Sequential(*(MixerLayer() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return scores (N, classes) of images (N, 3, SIDE, SIDE)."""
        hidden = self.stem(images).flatten(2).transpose(1, 2)
        scores: torch.Tensor = self.head(self.norm(self.layers(hidden)).mean(dim=1))
        return scores


def main(batch: int) -> None:
    """Train for some steps."""
    torch.manual_seed(1)
    model = MlpMixer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(20):
        images, labels = torch.randn(batch, 3, SIDE, SIDE), torch.randint(1000, (batch,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 8)
