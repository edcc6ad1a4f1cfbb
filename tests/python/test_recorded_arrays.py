"""The recorder on kernels of numpy."""

import kda_check
import numpy as np
import pytest
from conftest import drawn, recurrence
from kda_check import Signature, recording


@kda_check.kernel
def plain(q, k, v, g, beta):
    """Under the decorator as it is."""
    return recurrence(q, k, v, g, beta)


def test_the_decorator_needs_no_parentheses():
    assert plain.__name__ == "plain" and "as it is" in plain.__doc__
    with recording() as log:
        plain(**drawn())
    assert log.calls[0].kernel == "plain" and log.calls[0].report.passed
    with pytest.raises(TypeError, match="kernel: wanted a Signature, got dict"):
        kda_check.kernel({"query": "q"})


def test_a_call_that_options_leave_out_is_no_pass_and_says_so():
    with recording(options=["--variant", "none", "--tensor", "final_state"]) as log:
        plain(**drawn())
    (call,) = log.failed
    assert str(call) == "tests/python: plain: final_state PASS; plain: not judged: o (options: --tensor final_state)".replace(
        "tests/python", call.place)


def test_to_problem_sees_what_is_no_word_of_a_problem():
    def told(words):
        bits, gates = words.pop("bits"), words.pop("gates")
        return {**words, "g": gates * np.log(2) if bits else gates}

    @kda_check.kernel(Signature(to_problem=told, ignored=frozenset({"warps"})))
    def mine(q, k, v, gates, beta, bits=False, warps=4, more=None):
        return recurrence(q, k, v, gates * np.log(2) if bits else gates, beta)

    given = drawn()
    with recording() as log:
        mine(given["q"], given["k"], given["v"], given["g"], given["beta"], bits=True)
        mine(given["q"], given["k"], given["v"], given["g"], given["beta"], bits=True, more=7)
        mine(given["q"], given["k"], given["v"], given["g"], given["beta"])
    assert log.calls[0].report.passed and log.calls[2].report.passed
    assert log.calls[1].error == "Unsupported: no place in a fixture for more"
