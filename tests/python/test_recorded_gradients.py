"""Gradients of recorded calls."""

import gc
import weakref
from dataclasses import replace

import kda_check
import pytest
from kda_check import recording, signatures

torch = pytest.importorskip("torch")
import torch.utils.checkpoint  # noqa: E402
import kernels  # noqa: E402
from calls import words  # noqa: E402


def test_gradients_of_a_call_are_judged_and_are_what_they_were(fla):
    def backward():
        given = words(requires_grad=True)
        o, state = fla.renamed(**given, output_final_state=True)
        more = given["q"].square().sum()  # another use of q, whose gradient is not the kernel's
        (o.square().sum() + state.sum() + more).backward()
        return [x.grad for x in given.values()]

    plain = backward()
    with recording() as log:
        recorded = backward()
    assert all(torch.equal(a, b) for a, b in zip(plain, recorded))
    (call,) = log.calls
    assert call.report.passed and {row.row["name"] for row in call.report.tensors()} == {"o", "final_state", "dq", "dk", "dv", "dg", "dbeta"}


def test_a_call_whose_gradients_never_come_is_judged_at_the_end(fla):
    with recording() as log:
        fla.renamed(**words(requires_grad=True))
        assert log.not_judged
    assert not log.not_judged and not log.failed


def test_wrong_gradients_are_found(fla, monkeypatch):
    right = kernels.chunk_kda

    class Doubled(torch.autograd.Function):
        forward = staticmethod(lambda context, x: x.clone())
        backward = staticmethod(lambda context, gradient: 2 * gradient)

    monkeypatch.setattr(kernels, "chunk_kda", lambda **given: right(**{**given, "v": Doubled.apply(given["v"])}))
    with recording() as log:
        fla.renamed(**words(requires_grad=True))[0].sum().backward()
    assert log.calls[0].report["dv"].verdict == "fail" and log.calls[0].report["o"].passed


@pytest.mark.parametrize("whole", [lambda *given: Fused.apply(*given)[0], lambda *given: kernels.chunk_kda(*given)[0]], ids=["fused", "composed"])
@pytest.mark.parametrize("reentrant", [False, True])
def test_a_call_that_is_computed_again_for_its_gradients_has_them(whole, reentrant):
    @kda_check.kernel()
    def mine(q, k, v, g, beta):
        return whole(q, k, v, g, beta)

    def gradients():
        given = list(words(requires_grad=True).values())
        layer = torch.utils.checkpoint.checkpoint(lambda *given: mine(*(x * 1 for x in given)) * 2, *given, use_reentrant=reentrant)
        layer.square().sum().backward()
        return [x.grad for x in given]

    plain = gradients()
    with recording() as log:
        recorded = gradients()
    assert all(torch.equal(a, b) for a, b in zip(plain, recorded))
    judged = [{row.row["name"] for row in call.report.tensors()} for call in log.calls]
    both = {"o", "dq", "dk", "dv", "dg", "dbeta"}
    assert judged == ([{"o"}, both] if reentrant else [both]) and not log.failed, log
    assert log.repeated == (not reentrant) and ("1 repeated by a checkpoint" in str(log)) == (not reentrant)


def test_every_call_under_a_checkpoint_is_recorded_or_counted():
    def entered(more, words_of_call):
        count, given = [], list(words(requires_grad=True).values())
        kernel = kda_check.kernel()(lambda q, k, v, g, beta, **words: count.append(1) or Fused.apply(q, k, v, g, beta)[0])

        def region(*given):
            return more(kernel(*given, **words_of_call))

        with recording() as log:
            torch.utils.checkpoint.checkpoint(region, *given, use_reentrant=False).sum().backward()
        return len(count), log

    for more, words_of_call, calls, errors in (
        (torch.neg, {}, 1, [""]),
        (torch.exp, {}, 2, ["", ""]),  # exp keeps its result: the second call comes to its end
        (torch.neg, {"cp_context": 1}, 1, ["Unsupported: no place in a fixture for cp_context"]),
    ):
        count, log = entered(more, words_of_call)
        assert count == 2 == len(log.calls) + log.repeated and len(log.calls) == calls, log
        assert [call.error for call in log.calls] == errors, log
        assert errors[0] or log.calls[0].report["dq"].passed


def test_a_tensor_that_is_two_arguments_has_two_gradients(fla):
    given = words(requires_grad=True)
    with recording() as log:
        for args in ((given["k"], *list(given.values())[1:]), (given["q"], given["k"])):
            more = {} if len(args) > 2 else {"v": given["v"], "g": given["g"], "beta": given["beta"]}
            fla.renamed(*args, **more)[0].square().sum().backward()
        fla.renamed(**{**given, "q": given["k"]})[0].square().sum().backward()
    assert [call.report.passed for call in log.calls] == [True] * 3 and all(call.report["dq"].passed for call in log.calls), log


def test_gradients_of_two_losses_are_not_mixed(fla):
    given = words(requires_grad=True)
    with recording() as log:
        o, _ = fla.renamed(**given)
        for wanted in ("q", "k", "v"):
            torch.autograd.grad(o, [given[wanted]], torch.randn_like(o), retain_graph=True)
        torch.autograd.grad(o, list(given.values()), torch.randn_like(o))
    assert log.calls[0].report.passed and {row.row["name"] for row in log.calls[0].report.tensors()} == {"o", "dq"}


def test_a_call_whose_graph_is_gone_does_not_wait_for_the_end(fla):
    with recording() as log:
        fla.renamed(**words(requires_grad=True))
        gc.collect()
        o, _ = fla.renamed(**words(requires_grad=True))
        assert [call.verdict for call in log.calls] == ["pass", ""]
        o.sum().backward()
    assert log.calls[1].report["dq"].passed


def test_a_graph_without_a_backward_pass_is_not_kept(fla):
    class Counted(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            context.held = torch.zeros(1)
            seen.append(weakref.ref(context.held))
            return x.clone()

        @staticmethod
        def backward(context, gradient):
            return gradient

    seen, given = [], words(requires_grad=True)
    with recording() as log:
        fla.renamed(**{**given, "v": Counted.apply(given["v"])})
        gc.collect()
        assert seen[0]() is None
    assert log.calls[0].report.passed


class Fused(torch.autograd.Function):
    """A kernel that is one operation of autograd, as FLA's are."""

    @staticmethod
    def forward(ctx, *tensors):
        ctx.save_for_backward(*tensors)
        with torch.no_grad():
            return kernels.chunk_kda(*tensors, output_final_state=True)

    @staticmethod
    def backward(ctx, *gradients):
        with torch.enable_grad():
            tensors = [x.detach().requires_grad_() for x in ctx.saved_tensors]
            return torch.autograd.grad(kernels.chunk_kda(*tensors, output_final_state=True), tensors, gradients)


@pytest.mark.parametrize("used", [0, 1], ids=["o", "final_state"])
def test_gradients_of_one_output_of_two_are_judged(used):
    given = words(requires_grad=True)
    with recording() as log:
        kda_check.kernel()(lambda q, k, v, g, beta: Fused.apply(q, k, v, g, beta))(**given)[used].square().sum().backward()
    (call,) = log.calls
    assert call.error == "" and call.report.passed, str(log)
    assert {"dk", "dv", "dg", "dbeta"} <= {row.row["name"] for row in call.report.tensors()}


def test_what_flows_into_one_tensor_from_two_arguments_and_elsewhere_is_added_up_in_the_same_order():
    def gradient():
        given = words(T=70, requires_grad=True)
        both = given["k"].clone()
        kernel = kda_check.kernel()(lambda q, k, v, g, beta: Fused.apply(q, k, v, g, beta))
        o, state = kernel(both, both, given["v"], given["g"], given["beta"])
        (100 * (o.square().sum() + state.square().sum()) + both.exp().sum()).backward()
        return given["k"].grad

    plain = gradient()
    with recording() as log:
        assert torch.equal(gradient(), plain)
    assert log.calls[0].report.passed


def test_A_log_may_have_axes_of_one():
    from chunk_kernel import chunk_kda

    given = {**words(), "A_log": torch.randn(1, 1, 2, 1), "dt_bias": torch.randn(32), "use_gate_in_kernel": True}
    for name in ("q", "A_log"):
        given[name].requires_grad_()

    @kda_check.kernel(signatures.FLA)
    def mine(q, k, v, g, beta, A_log, dt_bias, use_gate_in_kernel):
        return chunk_kda(q, k, v, g, beta, A_log=A_log.view(-1), dt_bias=dt_bias, use_gate_in_kernel=use_gate_in_kernel)

    with recording() as log:
        mine(**given)[0].square().sum().backward()
    (call,) = log.calls
    assert call.error == "" and call.report.passed and call.report["dA_log"].passed


def drops_gradients(how):
    """A kernel that forgets the gradient of k: autograd hears nothing of k, or is told None."""
    class Forgets(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return x.clone()

        @staticmethod
        def backward(context, gradient):
            return None

    forget = Forgets.apply if how == "told None" else torch.Tensor.detach
    return lambda q, k, v, g, beta: kernels.chunk_kda(q, forget(k), v, g, beta)[0]


@pytest.mark.parametrize("how", ["told None", "not connected"])
def test_a_gradient_that_a_kernel_forgets_is_wrong(how):
    with recording() as log:
        kda_check.kernel()(drops_gradients(how))(**words(requires_grad=True)).square().sum().backward()
    (call,) = log.calls
    assert call.report["dk"].verdict == "fail" and call.report["dq"].passed


def test_an_output_that_is_a_view_and_is_changed_afterwards_is_judged_forward_only():
    def viewed(**given):
        o, state = kernels.chunk_kda(**given, output_final_state=True)
        return o.transpose(1, 2).contiguous().transpose(1, 2), state

    def backward(change):
        given = words(requires_grad=True)
        o, state = kda_check.kernel()(viewed)(**given)
        o = change(o)
        (o.sum() + state.sum()).backward()
        return [x.grad if x.grad is not None else torch.zeros(1) for x in given.values()]

    for change, judged in ((torch.clone, {"o", "final_state", "dq", "dk", "dv", "dg", "dbeta"}),
                           (lambda o: o.mul_(1.5), {"o", "final_state"}),
                           (lambda o: torch.zeros(1), {"o", "final_state", "dk", "dv", "dg", "dbeta"})):  # fmt: skip
        plain = backward(change)
        with recording() as log:
            assert all(torch.equal(a, b) for a, b in zip(plain, backward(change)))
        (call,) = log.calls
        assert call.report.passed and {row.row["name"] for row in call.report.tensors()} == judged
        assert ("no gradients" in str(call)) == (len(judged) == 2)


def test_no_gradient_is_judged_of_what_a_kernel_changes_in_place():
    def doubling(q, k, v, g, beta):
        return kernels.chunk_kda(q.mul_(2), k, v, g, beta, 0.125)[0]

    given = words(requires_grad=True)
    with recording() as log:
        signature = kda_check.Signature(fixed={"scale": 0.25})
        kda_check.kernel(signature)(doubling)(**{name: x * 1 for name, x in given.items()}).sum().backward()
    (call,) = log.calls
    assert call.report.passed and call.error == "no gradient of what the kernel changed in place: q"
    assert {row.row["name"] for row in call.report.tensors()} == {"o", "dk", "dv", "dg", "dbeta"}


def test_calls_that_wait_for_gradients_are_not_judged_yet(fla):
    with recording(judged=False) as log:
        o, _ = fla.renamed(**words(requires_grad=True))
        log.judge()
        assert log.not_judged
        o.sum().backward()
    log.judge()
    assert log.calls[0].report.passed and log.calls[0].report["dq"].passed


FACTORS = kda_check.Signature(words={"decay": "g"}, to_problem=lambda words: {**words, "g": words["g"].log()},
                              to_kernel=lambda words: {**words, "g": words["g"].exp()})  # fmt: skip


@pytest.mark.parametrize("error, verdicts", [(1, ["pass"] * 5), (1.01, ["pass", "pass", "pass", "fail", "pass"])])
def test_the_gradient_of_what_a_signature_converts_is_judged(error, verdicts):
    @kda_check.kernel(FACTORS)
    def mine(q, k, v, decay, beta):
        return kernels.chunk_kda(q, k, v, (decay.log() - decay.log().detach()) * error + decay.log().detach(), beta)[0]

    def flow(mine):
        given = words(requires_grad=True)
        factors = given.pop("g").detach().exp().requires_grad_()
        o = mine(**given, decay=factors)
        o.square().sum().backward()
        return o.detach(), factors.grad

    plain = flow(mine)
    with recording() as log:
        recorded = flow(mine)
    assert all(torch.equal(a, b) for a, b in zip(plain, recorded))
    (call,) = log.calls
    assert not call.error and [call.report[f"d{name}"].verdict for name in ("q", "k", "v", "g", "beta")] == verdicts, str(call)


@pytest.mark.parametrize("to_kernel", [dict, lambda given: {**given, "g": given["g"] * 2}, lambda given: given["none"]])
def test_a_gradient_that_is_lost_as_nothing_converts_it_back_is_said(to_kernel):
    @kda_check.kernel(replace(FACTORS, to_kernel=to_kernel))
    def mine(q, k, v, decay, beta):
        return kernels.chunk_kda(q, k, v, decay.log(), beta)[0]

    given = words(requires_grad=True)
    factors = given.pop("g").detach().exp().requires_grad_()
    with recording() as log:
        mine(**given, decay=factors).sum().backward()
        mine(**{name: x.detach() for name, x in given.items()}, decay=factors.detach())
    assert [call.error for call in log.calls] == ["no gradient of what to_problem converts and to_kernel does not convert back: g", ""]
    assert {row.row["name"] for row in log.calls[0].report.tensors()} == {"o", "dq", "dk", "dv", "dbeta"}
    assert all(call.report.passed for call in log.calls)


def test_the_gradient_of_what_a_signature_only_calls_otherwise_is_judged():
    def renamed(words):
        return {**{key: x for key, x in words.items() if key != "gates"}, "g": words["gates"]}

    @kda_check.kernel(kda_check.Signature(to_problem=renamed))
    def mine(q, k, v, gates, beta):
        return kernels.chunk_kda(q, k, v, gates, beta)[0]

    given = words(requires_grad=True)
    with recording() as log:
        mine(gates=given.pop("g"), **given).sum().backward()
    assert log.calls[0].report["dg"].passed and log.calls[0].report.passed, str(log)
