import sys
import types

import kda_check
import pytest
from conftest import recurrence

WAYS = {"framework": "numpy", "compute": "fp32"}


def kernel(q, k, v, g, beta, scale, block=16, drift=0.0, raises=None):
    o, _ = recurrence(q, k, v, g, beta, scale)
    if raises:
        raise raises("no room")
    kernel.calls += 1
    return o * (1 + drift) + (1e-7 if block == 32 else 0) + (kernel.calls % 2 * 1e-8 if block == 64 else 0)


kernel.calls = 0


class OutOfResources(Exception):
    pass


def test_every_list_of_arguments_is_judged_and_a_wrong_one_fails_the_report():
    right = [{"block": 16}, {"block": 32}, {"block": 16, "drift": 0.0}, {"raises": OutOfResources}]
    report = kda_check.verify(kernel, "control:T=20,K=8,V=8", configs=right, **WAYS)
    assert report.passed, report
    assert [(row["verdict"], row["differ"]) for row in report.configs] == [("pass", ["o"]), ("", []), ("cannot run", [])]
    assert "beside the first: 3, of which 2 run here, 1 have other bits, 0 FAIL" in str(report)
    report = kda_check.verify(kernel, "control:T=20,K=8,V=8", configs=[{}, {"drift": 0.01}, {"block": 64}, {"raises": KeyError}], **WAYS)
    assert report.verdict == "fail" and report["o"].passed  # the first passes
    drifts, races, raised = report.configs
    assert drifts["reason"].startswith("o FAIL") and drifts["repeats"] and f"kernel: drift=0.01: {drifts['reason']}" in report.errors
    again = kda_check.verify(kernel, "control:T=20,K=8,V=8", configs=[{"block": 64}], **WAYS)
    assert again["o"].passed and again.errors == ["kernel: the first: o: other bits at another call"]
    assert races["reason"] == "o: other bits at another call" and "raised KeyError" in raised["reason"] and len(report.errors) == 3


def test_every_configuration_of_every_autotuner_is_tried_alone(monkeypatch):
    """With an autotuner as Triton has it: it times its configurations and runs the fastest, or its only one."""

    class Autotuner:
        def __init__(self, name, configs):
            self.fn = types.SimpleNamespace(__name__=name)
            self.configs, self.cache, self.arg_names = configs, {}, ["x"]

        def prune_configs(self, words):
            return [config for config in self.configs if config != "does not fit"]

        def run(self, x, **words):
            assert len(self.configs) == 1, "it would be timed"
            ran.append((self.fn.__name__, self.configs[0]))
            return x * (1.5 if self.configs[0] == "wrong" else 1)

    ran = []
    scores, output = Autotuner("scores", ["a", "wrong", "does not fit"]), Autotuner("output", ["a", "b", "c"])
    module = types.ModuleType("triton.runtime.autotuner")
    module.Autotuner = Autotuner
    for name in ("triton", "triton.runtime", "triton.runtime.autotuner"):
        monkeypatch.setitem(sys.modules, name, module)

    def tuned(q, k, v, g, beta, scale):
        return output.run(recurrence(scores.run(q), k, v, g, beta, scale)[0])

    own = Autotuner.run
    report = kda_check.verify(tuned, "control:T=20,K=8,V=8", configs="all", **WAYS)
    assert [(row["config"], row["verdict"]) for row in report.configs] == [("scores(wrong)", "fail"), ("output(b)", ""), ("output(c)", "")]
    assert report.verdict == "fail" and "scores(wrong)" in report.errors[0]
    assert ran.count(("scores", "wrong")) == 3 and ran.count(("scores", "a")) == 9 and Autotuner.run is own
    assert scores.configs == ["a", "wrong", "does not fit"]


def test_what_is_no_list_of_configurations_is_refused(monkeypatch):
    monkeypatch.delitem(sys.modules, "triton", raising=False)
    for configs, error in (("all", "no Triton"), ([], "wanted 'all'"), ("some", "wanted 'all'")):
        with pytest.raises(ValueError, match=error):
            kda_check.verify(kernel, "control:T=20,K=8,V=8", configs=configs, **WAYS)
    with pytest.raises(TypeError, match="configs"):
        kda_check.verify(kernel, "control:T=20,K=8,V=8", configs=[3], **WAYS)
    with pytest.raises(ValueError, match="configs of a suite"):
        kda_check.verify(kernel, "@smoke", configs=[{}], **WAYS)


def test_the_log_says_whom_a_call_was_handed_to_and_what_nobody_read(monkeypatch):
    """With a registry of backends as FLA has it."""

    class BaseBackend:
        backend_type = "fast"

        def get_implementation(self, name):
            return recurrence if name == "handed_on" else None

    backends = types.ModuleType("fla.backends")
    backends.BaseBackend = BaseBackend
    monkeypatch.setitem(sys.modules, "fla.backends", backends)

    @kda_check.kernel(kda_check.Signature(words={"use_beta_sigmoid": "beta_sigmoid"}))
    def handed_on(q, k, v, g, beta, **words):
        assert BaseBackend().get_implementation("something_else") is None
        return BaseBackend().get_implementation("handed_on")(q, k, v, g, beta)

    inputs = {key: x.numpy() for key, x in kda_check.regime("control", T=20, K=8, V=8).inputs.items() if key != "initial_state"}
    with kda_check.recording() as log:
        handed_on(**inputs)
        handed_on(**inputs, use_beta_sigmoid=True)
    right, unread = log.calls
    assert right.report.passed and right.backends == ["fast (handed_on)"] and right.swallowed == []
    assert unread.failed and unread.swallowed == ["use_beta_sigmoid"]
    assert "handed_on by fast (handed_on): o PASS" in str(right) and str(unread).endswith("not read: use_beta_sigmoid")
    report = kda_check.verify(handed_on, "control:T=20,K=8,V=8", signature=kda_check.Signature(), framework="numpy")
    assert "handed_on: answered by fast (handed_on)" in report.notes
