"""Heat maps as JSON: what was outlined, made once."""

import json

import numpy as np

from hmd.observe.heatmap import Moment, Outline

from .conftest import REDIS


def test_a_moment_as_json() -> None:
    outline = Outline(
        REDIS,
        'a "b" c',
        np.array([2 << 21, 1 << 45], np.uint64),
        np.array([0.12345, 12345.0], np.float32),
        np.array([[512, 0], [1, 7]], np.int32),
    )
    moment = Moment(1.23456, (outline, outline))
    told = moment.as_json()
    own = {
        "pid": REDIS.pid,
        "start_ticks": REDIS.start_ticks,
        "target": 'a "b" c',
        "chunk": [2, 1 << 24],
        "heat": [0.123, 12300.0],
        "pages": [[512, 0], [1, 7]],
    }
    assert json.loads(told) == {"now_s": 1.235, "processes": [own, own]}
    assert moment.as_json() is told
    assert moment.outlines == ()


def test_a_moment_without_processes() -> None:
    assert json.loads(Moment(1.0, ()).as_json()) == {"now_s": 1.0, "processes": []}
