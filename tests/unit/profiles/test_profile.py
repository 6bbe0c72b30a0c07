# SPDX-License-Identifier: MIT
"""Profiles: bytes and back, files that are not sound, and runs that are learned and merged."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hmd.base.errors import HmdError
from hmd.linux.mappings import MappingKind, Mappings, anonymous_mappings
from hmd.profiles.learning import MAX_GRAINS, MIN_SAMPLES, RunLearner, merge
from hmd.profiles.objects import ObjectKey, match, objects_of
from hmd.profiles.profile import (
    MAX_BLOCKS,
    MAX_BYTES,
    MAX_PHASES,
    Profile,
    ProfileObject,
    summary,
)

MIB = 1 << 20
ANON = ObjectKey(MappingKind.ANON, "")


def mapped(*spans_mib: tuple[int, int]) -> Mappings:
    """Return anonymous mappings from and to so many MiB."""
    start, end = np.array(spans_mib, np.uint64).T * np.uint64(MIB)
    return anonymous_mappings(start, end)


def run(share_hot: float, hot_mib: int, size_mib: int, ticks: int = 20) -> Profile:
    """Return the profile of a run of which one MiB has a share of all samples."""
    rng, learner = np.random.default_rng(1), RunLearner()
    learner.set_mappings(mapped((1024, 1024 + size_mib)))
    for tick in range(ticks):
        place = rng.random(200) * size_mib
        hot = rng.random(200) < share_hot
        place[hot] = hot_mib + rng.random(int(hot.sum()))
        address = ((1024 + place) * MIB).astype(np.uint64)
        learner.observe(address, np.ones(200), 0.5 * tick)
    found = learner.finish()
    assert found is not None
    return found


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    """Draw a profile of any shape."""
    blocks = draw(st.lists(st.integers(1, MAX_BLOCKS // 8), min_size=1, max_size=8))
    phases = draw(st.integers(1, MAX_PHASES))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    counts = rng.exponential(draw(st.floats(0.01, 1e6)), (phases, sum(blocks)))
    objects = tuple(
        ProfileObject(
            ObjectKey(draw(st.sampled_from(MappingKind)), draw(st.text("aé_", max_size=9))),
            float(each << 16), each,
        )
        for each in blocks
    )  # fmt: skip
    return Profile(objects, counts.astype(np.float32), 2.5, 60.0, -0.5, 1e9)


@given(profiles())
@settings(max_examples=30, deadline=None)
def test_profiles_survive_their_file(profile: Profile) -> None:
    data = profile.to_bytes()
    assert len(data) <= MAX_BYTES
    read = Profile.from_bytes(data, "x")
    assert read.objects == profile.objects and read.seconds == profile.seconds
    assert (read.saved_s, read.accesses) == (-0.5, 1e9)
    large = profile.counts > 0.1
    assert np.allclose(read.counts[large], profile.counts[large], rtol=0.05)
    assert read.to_bytes() == data


@given(profiles(), st.data())
@settings(max_examples=30, deadline=None)
def test_damaged_files_are_refused(profile: Profile, data: st.DataObject) -> None:
    content = bytearray(profile.to_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    for bad in (bytes(content), profile.to_bytes()[:at], profile.to_bytes() + b"x"):
        with pytest.raises(HmdError, match="nightly is no usable profile"):
            Profile.from_bytes(bad, "nightly")


@given(st.binary(max_size=400))
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(HmdError, match="no usable profile"):
        Profile.from_bytes(data, "x")


def test_a_run_is_learned_by_place() -> None:
    found = summary(run(0.9, hot_mib=3, size_mib=16))[0]
    assert (found.kind, found.size_bytes) == ("anon", 16 * MIB)
    hot = found.by_block.reshape(16, -1).sum(axis=1)
    assert hot.argmax() == 3 and hot[3] > 0.85


def test_a_run_with_few_samples_tells_nothing() -> None:
    learner = RunLearner()
    learner.set_mappings(mapped((1024, 1040)))
    learner.observe(np.full(MIN_SAMPLES - 1, 1030 * MIB, np.uint64), np.ones(MIN_SAMPLES - 1), 1.0)
    assert learner.finish() is None


def test_what_is_learned_is_bounded() -> None:
    rng, learner = np.random.default_rng(1), RunLearner()
    learner.set_mappings(mapped((1024, 1024 + (1 << 20))))
    for tick in range(300):
        place = rng.integers(1024 * MIB, (1 << 20) * MIB, 2000).astype(np.uint64)
        learner.observe(place, np.ones(2000), float(tick))
    assert len(learner._grain) <= MAX_GRAINS
    found = learner.finish()
    assert found is not None and len(found.to_bytes()) <= MAX_BYTES


def test_runs_of_other_sizes_merge_by_place_and_old_ones_fade() -> None:
    small, large = run(0.9, hot_mib=2, size_mib=8), run(0.9, hot_mib=4, size_mib=16)
    both = merge(small, replace(large, accesses=2 * large.accesses))
    assert small.accesses == 4000 < both.accesses < 8000
    assert both.runs > 1 and both.objects[0].size_bytes == 16 * MIB
    assert summary(both)[0].by_block.reshape(16, -1).sum(axis=1)[4:6].sum() > 0.85
    moved = run(0.9, hot_mib=12, size_mib=16)
    for _ in range(6):
        both = merge(both, moved)
    assert summary(both)[0].by_block.reshape(16, -1).sum(axis=1)[12] > 0.8
    assert both.counts.sum() < 4 * moved.counts.sum()


def test_objects_that_a_run_lacks_stay() -> None:
    later = run(0.5, 2, 8)
    heap = later.objects[0]._replace(key=ObjectKey(MappingKind.HEAP, ""))
    both = merge(replace(later, objects=(heap,)), later)
    assert [one.kind for one in summary(both)] == ["anon", "heap"]


def test_objects_are_matched_in_order_whatever_their_scale() -> None:
    theirs = np.array([2552.0, 5103, 365, 729, 729]) * MIB
    mine = np.array([1334.0, 2668, 382, 382]) * MIB
    assert match(((ANON,) * 4, mine), ((ANON,) * 5, theirs)).tolist() == [0, 1, 3, 4]


def test_mappings_that_touch_are_one_object_and_upper_ones_come_first() -> None:
    found = objects_of(mapped((10, 11), (11, 13), (20, 21)))
    assert found.start.tolist() == [20 * MIB, 10 * MIB]
    grown = objects_of(mapped((5, 6), (10, 11), (11, 13), (19, 21)), found)
    assert grown.start.tolist() == [19 * MIB, 10 * MIB, 5 * MIB]
