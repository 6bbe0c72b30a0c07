# SPDX-License-Identifier: MIT
"""Fourier transforms to and fro: ``fft.py LOG2_LENGTH ROUNDS``. The vector must come back."""

import sys

import numpy as np

length = 1 << int(sys.argv[1])
vector = np.exp(1e-3j * np.arange(length)) + np.arange(length) % 7
good = True
for _ in range(int(sys.argv[2])):
    back = np.fft.ifft(np.fft.fft(vector))
    good &= bool(np.abs(back - vector).max() < 1e-9)
    vector = back
print("fft", "verified" if good else "WRONG")
