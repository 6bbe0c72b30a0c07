"""The digest of the code that a result depends on."""

from __future__ import annotations

import pytest

from bench.source_closure import ROOT, closure_digest, source_closure


def names(*modules: str) -> set[str]:
    return {str(path.relative_to(ROOT)) for path in source_closure(*modules)}


def test_source_closure_follows_imports_within_functions() -> None:
    found = names("hmd.decide.policies.benefit")
    assert "hmd/decide/cost_benefit/move_values.py" in found  # of savings_ledger, for its kernels
    assert "hmd/decide/cost_benefit/persistence.py" in found


def test_source_closure_has_nothing_that_is_not_imported() -> None:
    assert "hmd/decide/policies/learned.py" not in names("hmd.decide.policies.benefit")


def test_source_closure_of_an_unknown_module_fails() -> None:
    with pytest.raises(FileNotFoundError, match=r"no module hmd\.emacs"):
        source_closure("hmd.emacs")


def test_closure_digest_differs_by_module() -> None:
    rule = closure_digest("hmd.decide.policies.benefit")
    assert rule == closure_digest("hmd.decide.policies.benefit")
    assert rule != closure_digest("hmd.decide.policies.histogram")
