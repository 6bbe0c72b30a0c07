# SPDX-License-Identifier: MIT
"""Cases of the learned policy in the guest: settings by program, rows next to the comparison's."""

from __future__ import annotations

import json

import pytest

from bench.compare.campaign import CampaignResults, case_digest
from bench.compare.comparison_case import CaseResult, ComparisonCase, results
from bench.compare.guest_services import configuration
from bench.compare.policies import COMMITTED
from bench.compare.systems import HMD_DEFAULT
from bench.learned_policy.in_guest import CASES, LEARNED, PEERS, rows, table, vs_best_peer
from hmd.config.load import loads

CASE = ComparisonCase("cg", "1:2", LEARNED)


def test_configuration_with_settings_of_the_policy_is_one_of_the_daemon() -> None:
    written = configuration("learned", settings={"weights": "/tmp/weights.npz"})
    assert loads(json.dumps(written)).decide.policy == "learned"
    assert written["decide"]["learned"]["weights"] == "/tmp/weights.npz"
    assert written["decide"]["learned"]["headroom"] == "0%"


def test_digest_of_a_case_depends_on_the_settings_of_its_policy() -> None:
    plain = case_digest(CASE, 50.0)
    assert case_digest(CASE, 50.0, {}) == plain
    assert case_digest(CASE, 50.0, {"weights": "a.npz"}) != plain


def test_every_case_has_its_peers_in_the_committed_comparison() -> None:
    known = results(json.loads(COMMITTED.read_text())["cases"])
    for text in CASES:
        case = ComparisonCase.parse(f"{text}:{LEARNED}")
        for system in (*PEERS, HMD_DEFAULT):
            assert ComparisonCase(case.program, case.ratio, system) in known


def test_rows_have_the_comparisons_runtimes_and_ours() -> None:
    known = results(json.loads(COMMITTED.read_text())["cases"])
    ours = known[ComparisonCase("cg", "1:2", HMD_DEFAULT)]
    outcomes = CampaignResults({CASE: CaseResult(ours.trials, "digest", "commit")})
    (row,) = rows([CASE, ComparisonCase("drift", "1:2", LEARNED)], outcomes)
    assert row["seconds"][LEARNED] == row["seconds"][HMD_DEFAULT] == ours.trial.modelled_seconds
    best = min(row["seconds"][peer] for peer in PEERS)
    assert vs_best_peer(row) == pytest.approx(best / row["seconds"][LEARNED])
    assert "| cg | 1:2 |" in table([row])
