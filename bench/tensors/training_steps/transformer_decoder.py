# SPDX-License-Identifier: MIT
"""Trains a decoder of six transformer layers (arXiv:1706.03762) on random tokens with Adam.

hmd tensors record bench/tensors/training_steps/transformer_decoder.py [BATCH]
"""

from __future__ import annotations

import sys

import torch
from torch import nn

TOKENS, LENGTH, WIDTH, HEADS, LAYERS = 8192, 256, 512, 8, 6


class DecoderLayer(nn.Module):
    """Causal attention, then two linear layers, each normalized before and added after."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.linear_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.projections = nn.Linear(WIDTH, 3 * WIDTH)
        self.output = nn.Linear(WIDTH, WIDTH)
        self.expand, self.contract = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return activations (N, LENGTH, WIDTH)."""
        hidden = hidden + self.attend(self.attention_norm(hidden), mask)
        expanded = nn.functional.gelu(self.expand(self.linear_norm(hidden)))
        activations: torch.Tensor = hidden + self.contract(expanded)
        return activations

    def attend(self, hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return the attention's output, with the scores as a tensor of their own."""
        batch = hidden.shape[0]
        parts = self.projections(hidden).view(batch, LENGTH, 3, HEADS, WIDTH // HEADS)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(-2, -1) / (WIDTH // HEADS) ** 0.5
        weights = torch.softmax(scores.masked_fill(mask, float("-inf")), dim=-1)
        mixed = (weights @ value).transpose(1, 2).reshape(batch, LENGTH, WIDTH)
        output: torch.Tensor = self.output(mixed)
        return output


class TransformerDecoder(nn.Module):
    """Embeddings, layers, and scores of the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(TOKENS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(DecoderLayer() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, TOKENS, bias=False)
        mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
        self.register_buffer("mask", mask)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return scores (N, LENGTH, TOKENS) of tokens (N, LENGTH)."""
        hidden = self.tokens(tokens) + self.positions.weight
        for layer in self.layers:
            hidden = layer(hidden, self.mask)
        scores: torch.Tensor = self.head(self.norm(hidden))
        return scores


def main(batch: int) -> None:
    """Train for some steps."""
    torch.manual_seed(1)
    model = TransformerDecoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    for _ in range(20):
        text = torch.randint(TOKENS, (batch, LENGTH + 1))
        optimizer.zero_grad()
        scores = model(text[:, :-1])
        nn.functional.cross_entropy(scores.flatten(0, 1), text[:, 1:].flatten()).backward()
        optimizer.step()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 4)
