# SPDX-License-Identifier: MIT
"""The digest of the code that a result depends on."""

from __future__ import annotations

import pytest

from bench.source_closure import ROOT, closure_digest, source_closure


def names(*modules: str) -> set[str]:
    return {str(path.relative_to(ROOT)) for path in source_closure(*modules)}


def test_source_closure_follows_imports_within_functions() -> None:
    found = names("hmd.policy.builtin.benefit")
    assert "hmd/policy/saving.py" in found  # of savings_ledger, for its kernels
    assert "hmd/policy/horizon.py" in found


def test_source_closure_has_nothing_that_is_not_imported() -> None:
    assert "hmd/policy/builtin/learned.py" not in names("hmd.policy.builtin.benefit")


def test_source_closure_of_an_unknown_module_fails() -> None:
    with pytest.raises(FileNotFoundError, match=r"no module hmd\.emacs"):
        source_closure("hmd.emacs")


def test_closure_digest_differs_by_module() -> None:
    rule = closure_digest("hmd.policy.builtin.benefit")
    assert rule == closure_digest("hmd.policy.builtin.benefit")
    assert rule != closure_digest("hmd.policy.builtin.histogram")
