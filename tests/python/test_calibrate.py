"""What scripts/calibrate counts and draws."""

import importlib.machinery
import importlib.util
import os
import types

import pytest
from kda_check import _program

PATH = os.path.join(os.path.dirname(__file__), "../../scripts/calibrate")


@pytest.fixture
def calibrate(monkeypatch):
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    loader = importlib.machinery.SourceFileLoader("calibrate", PATH)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("calibrate", loader))
    loader.exec_module(module)
    return module


@pytest.mark.parametrize(("end", "explained", "again", "expected"), [
    ("identified", 1, None, "identified"), ("identified", 0.9, 0.9, "identified"), ("identified", 0.89, None, "fault"),
    ("identified", 1, 0.0, "fault"), ("stranger", 0.3, 0.0, "stranger"), ("too_few_errors", 0.0, None, "too_few_errors")])
def test_what_is_wrong_besides_is_no_identification(calibrate, end, explained, again, expected):
    assert calibrate.identity_of({"identity": end, "explained": explained, "explained_again": again}) == expected


def test_what_callers_do_around_a_kernel_is_not_drawn(calibrate, tmp_path):
    axes = calibrate.Draws(types.SimpleNamespace(program=_program.find()), tmp_path).axes
    assert "before" not in axes["scale"] and "output" in axes["scale"] and "decay" in axes
    assert not {"heads", "storage", "segments", "stored", "launch"} & set(axes)
