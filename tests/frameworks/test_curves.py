"""Loss curves of short training runs, judged as benchmarks/curves.py judges those of 500 steps."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from curves import SYSTEMS, all_runs, judge
from curves_cases import MODELS, OPTIMIZERS, Where

STEPS = 12


@pytest.mark.parametrize("case, amp, system", [("gan", True, "whole"), ("lora", False, "apart")])
def test_a_curve_is_as_near_to_eager_as_eager_in_another_order(case: str, amp: bool, system: str) -> None:
    result = all_runs(MODELS[case], Where("cpu", amp), STEPS, {system: SYSTEMS[system]})
    assert not judge(result, system).wrong and not result.errors


def test_the_rule_sees_a_step_that_is_a_thousandth_too_long() -> None:
    def longer(step):
        def update() -> None:
            before = [p.detach().clone() for p in step.__self__.param_groups[0]["params"]]
            step()
            with torch.no_grad():
                for p, old in zip(step.__self__.param_groups[0]["params"], before, strict=True):
                    p.add_(p - old, alpha=1e-3)

        return update

    wrong = dataclasses.replace(SYSTEMS["apart"], model=lambda model: model, update=longer)
    result = all_runs(OPTIMIZERS["Adam"], Where("cpu", False), STEPS, {"wrong": wrong})
    assert not result.errors and "gap" in judge(result, "wrong").wrong


def test_the_rule_sees_a_run_that_differs_from_its_second() -> None:
    result = all_runs(OPTIMIZERS["SGD"], Where("cpu", False), STEPS, {})
    result.curves |= {"have": result.curves["eager"], "have again": [x + 1e-9 for x in result.curves["eager"]]}
    assert judge(result, "have").wrong == "the same seed gives another run"
