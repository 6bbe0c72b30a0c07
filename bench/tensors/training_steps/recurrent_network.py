# SPDX-License-Identifier: MIT
"""Trains a language model of two LSTM layers on random tokens with momentum, unrolled over time.

hmd tensors record bench/tensors/training_steps/recurrent_network.py [BATCH]
"""

from __future__ import annotations

import sys

import torch
from torch import nn

TOKENS, LENGTH, WIDTH = 8192, 32, 512


class RecurrentNetwork(nn.Module):
    """Embedding, two layers of LSTM cells, and scores of the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(TOKENS, WIDTH)
        self.cells = nn.ModuleList(nn.LSTMCell(WIDTH, WIDTH) for _ in range(2))
        self.head = nn.Linear(WIDTH, TOKENS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return scores (N, LENGTH, TOKENS) of tokens (N, LENGTH)."""
        zeros = torch.zeros(tokens.shape[0], WIDTH)
        states = [(zeros, zeros) for _ in self.cells]
        outputs = []
        for token in self.tokens(tokens).unbind(1):
            hidden = token
            for layer, cell in enumerate(self.cells):
                states[layer] = cell(hidden, states[layer])
                hidden = states[layer][0]
            outputs.append(hidden)
        scores: torch.Tensor = self.head(torch.stack(outputs, dim=1))
        return scores


def main(batch: int) -> None:
    """Train for some steps."""
    torch.manual_seed(1)
    model = RecurrentNetwork()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(20):
        text = torch.randint(TOKENS, (batch, LENGTH + 1))
        optimizer.zero_grad()
        scores = model(text[:, :-1])
        nn.functional.cross_entropy(scores.flatten(0, 1), text[:, 1:].flatten()).backward()
        optimizer.step()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 8)
