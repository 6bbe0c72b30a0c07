# SPDX-License-Identifier: MIT
"""Profiles that were made up, with a checksum that fits: refused, or used without an error."""

from __future__ import annotations

import os
import struct
import zlib
from random import Random

import numpy as np

from hmd.base.errors import HmdError
from hmd.linux.mappings import read_mappings
from hmd.profiles.learning import RunLearner, merge
from hmd.profiles.prior import ProfilePrior
from hmd.profiles.profile import Profile
from tests.unit.profiles.test_profile_store import profile


def test_made_up_profiles_are_refused_or_used_without_error() -> None:
    random, used, refused = Random(45), 0, 0
    mappings = read_mappings(os.getpid())
    assert mappings is not None
    learner = RunLearner()
    learner.set_mappings(mappings)
    address = np.repeat(mappings.start[np.flatnonzero(mappings.movable)], 20)
    for now_s in (1.0, 2.0):
        learner.observe(address, np.ones(len(address)), now_s)
    run = learner.finish()
    assert run is not None
    for _ in range(400):
        data = bytearray(profile(random.choice((4, 300)), phases=random.choice((1, 64))).to_bytes())
        data = data[:-4]
        for _ in range(random.randint(1, 6)):
            at = random.randrange(8, min(len(data), random.choice((60, 130, len(data)))))
            data[at] = random.choice((0, 1, 127, 128, 255, random.randrange(256)))
        data += struct.pack("<I", zlib.crc32(data))
        try:
            made_up = Profile.from_bytes(bytes(data), "made-up")
        except HmdError:
            refused += 1
            continue
        used += 1
        prior = ProfilePrior(made_up)
        prior.set_mappings(mappings)
        assert len(prior.blocks_at(address)) == len(address)
        assert 0 <= prior.trust <= 1
        merge(made_up, run).to_bytes()
        merge(run, made_up).to_bytes()
    assert used > 50
    assert refused > 50
