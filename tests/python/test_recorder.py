import functools
import gc
import importlib.util
import os
import shlex
import sys
import threading
import types
import weakref

import kda_check
import pytest
from kda_check import _program, recording, signatures

torch = pytest.importorskip("torch")
import torch.utils.checkpoint  # noqa: E402
import kernels  # noqa: E402


def words(dtype=torch.float32, T=40, requires_grad=False):
    torch.manual_seed(1)
    q, k = (torch.nn.functional.normalize(torch.randn(1, T, 2, 16), dim=-1).to(dtype) for _ in range(2))
    found = {"q": q, "k": k, "v": torch.randn(1, T, 2, 8).to(dtype), "g": -torch.rand(1, T, 2, 16), "beta": torch.rand(1, T, 2)}
    return {name: x.requires_grad_(requires_grad) for name, x in found.items()}


@pytest.fixture
def fla(monkeypatch):
    """A module that looks like FLA's, and one that took a kernel from it."""
    package, user = types.ModuleType("fla.ops.kda"), types.ModuleType("user_of_fla")
    package.chunk_kda = user.renamed = functools.wraps(kernels.chunk_kda)(lambda *args, **words: kernels.chunk_kda(*args, **words))
    monkeypatch.setitem(sys.modules, "fla.ops.kda", package)
    monkeypatch.setitem(sys.modules, "user_of_fla", user)
    return user


def wrong(monkeypatch):
    """A kernel that is off by 2 %."""
    right = kernels.chunk_kda
    monkeypatch.setattr(kernels, "chunk_kda", lambda *args, **words: (lambda o, s: (o * 1.02, s))(*right(*args, **words)))


def test_a_call_is_judged_and_its_answer_is_what_it_was(fla):
    before = fla.renamed
    plain = fla.renamed(**words(), output_final_state=True)
    with recording() as log:
        recorded = fla.renamed(**words(), output_final_state=True)
        assert fla.renamed is not before
    assert fla.renamed is before
    assert all(torch.equal(a, b) for a, b in zip(plain, recorded))
    (call,) = log.calls
    assert call.kernel == "chunk_kda" and call.report.passed and call.report["final_state"].passed
    assert "1 calls: 1 passed" in str(log) and log.cost > 0


def test_a_wrong_call_is_in_the_log_with_its_file(fla, monkeypatch, tmp_path):
    wrong(monkeypatch)
    with recording(save=tmp_path / "failed") as log:
        fla.renamed(*words().values())
    (call,) = log.failed
    assert call.path == str(tmp_path / "failed" / "0001-chunk_kda.h5") and call.path in call.report.repro
    assert _program.run(["run", call.path, "--variant", "none"]).exit_code == 1


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


def test_inputs_are_as_they_were_before_the_call(fla, monkeypatch):
    right = kernels.chunk_kda

    def scribbling(**given):
        answer = right(**given)
        given["v"].zero_()
        return answer

    monkeypatch.setattr(kernels, "chunk_kda", scribbling)
    with recording() as log:
        fla.renamed(**words())
    assert log.calls[0].report.passed


def test_states_in_a_pool_are_recorded(fla, monkeypatch):
    def decode(q, k, v, g, beta, initial_state, ssm_state_indices, inplace_final_state=True):
        o, state = right(q, k, v, g, beta, None, initial_state[ssm_state_indices], True)
        initial_state[ssm_state_indices] = state
        return o, initial_state

    right = kernels.chunk_kda
    monkeypatch.setattr(kernels, "chunk_kda", decode)
    pool, rows = torch.randn(5, 2, 16, 8), torch.tensor([3])
    with recording() as log:
        fla.renamed(**words(T=1), initial_state=pool, ssm_state_indices=rows)
    assert log.calls[0].report["final_state"].passed and log.calls[0].report.passed, log


def test_what_cannot_be_recorded_is_said_and_the_call_is_made(fla):
    with recording() as log:
        o, _ = fla.renamed(**words(), cp_context=object())
        assert o.shape == (1, 40, 2, 8)
        with pytest.raises(IndexError):
            fla.renamed(**{**words(), "v": torch.randn(1, 39, 2, 8)})
        with pytest.raises(IndexError):
            fla.renamed(**words(), cu_seqlens=torch.tensor([0, 41]))
    assert log.calls[0].error == "Unsupported: no place in a fixture for cp_context"
    assert "v: shape (1, 39, 2, 8)" in log.calls[1].error
    assert log.calls[2].error == "it raised IndexError" and len(log.calls) == 3


def test_a_recorder_that_breaks_does_not_break_the_program(fla, monkeypatch):
    monkeypatch.setenv("KDA_CHECK_PROGRAM", "/nowhere/kda-check")
    with recording() as log:
        o, _ = fla.renamed(**words(requires_grad=True))
        o.sum().backward()
    assert "ProgramMissing" in log.calls[0].error


def test_the_innermost_recorder_has_the_call(fla):
    with recording() as outer:
        with recording() as inner:
            fla.renamed(**words())
        fla.renamed(**words())
        fla.renamed(**words())
    assert (len(outer.calls), len(inner.calls)) == (2, 1) and inner.calls[0].report.passed


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


def test_flashinfers_gate_of_heads_that_share_keys_is_recorded():
    @kda_check.kernel(signatures.FLASHINFER_KDA)
    def recurrent_kda(q, k, v, g, beta, A_log=None, dt_bias=None, scale=None, initial_state=None, output_final_state=False,
                      use_qk_l2norm_in_kernel=True, use_gate_in_kernel=False, lower_bound=None, output=None):
        head = torch.arange(v.shape[2]) // (v.shape[2] // q.shape[2])  # as its kernels have it
        if use_gate_in_kernel:
            gate = g + dt_bias.view(q.shape[2], -1)[head]
            amplitude = A_log.exp()[head][:, None]
            g = -amplitude * torch.nn.functional.softplus(gate) if lower_bound is None else lower_bound * (amplitude * gate).sigmoid()
        o, state = kernels.chunk_kda(q, k, v, g, beta, scale, None, True, use_qk_l2norm_in_kernel)
        state = state.transpose(-1, -2)
        return (o, state) if initial_state is None else (output.copy_(o), initial_state.copy_(state))

    given = {**words(), "v": torch.randn(1, 40, 6, 8), "g": torch.randn(1, 40, 6, 16), "beta": torch.rand(1, 40, 6)}
    given.update(A_log=torch.randn(2), dt_bias=torch.randn(32), use_gate_in_kernel=True)
    with recording() as log:
        recurrent_kda(**given)
        recurrent_kda(**{**given, "dt_bias": given["dt_bias"].view(2, 16)}, lower_bound=-5.0)
    assert [call.report is not None and call.report.passed for call in log.calls] == [True, True], log
    problem = kda_check.Fixture.of(**{**forward(given), "A_log": given["A_log"].repeat_interleave(3),
                                      "dt_bias": given["dt_bias"].view(2, 16).repeat_interleave(3, 0)})  # fmt: skip
    verify = functools.partial(kda_check.verify, recurrent_kda, signature=signatures.FLASHINFER_KDA, compute="fp32", framework="torch")
    assert verify(problem).passed
    problem.inputs["A_log"].data[1] += 1
    with pytest.raises(kda_check.Unsupported, match="one A_log for the heads of v that share a head of k"):
        verify(problem)


def forward(given):
    return {**{name: given[name] for name in ("q", "k", "v", "g", "beta")}, "qk_l2norm": True, "state_v_first": True}


def test_other_names_of_a_kernel_are_recorded_too(monkeypatch):
    package, module = types.ModuleType("fla.ops.gated_delta_rule"), types.ModuleType("fla.ops.gated_delta_rule.chunk")

    def chunk_gated_delta_rule(q, k, v, g, beta):
        return kernels.chunk_kda(q, k, v, g[..., None].expand(k.shape), beta)[0]

    package.chunk_gated_delta_rule = package.chunk_gdn = module.chunk_gdn = chunk_gated_delta_rule
    for each in (package, module):
        monkeypatch.setitem(sys.modules, each.__name__, each)
    given = {**words(), "g": -torch.rand(1, 40, 2)}
    with recording() as log:
        package.chunk_gdn(**given), module.chunk_gdn(**given)
    assert [call.report.passed for call in log.calls] == [True, True], log


def test_filters_and_budgets_skip_calls(fla):
    with recording(every=2, where=lambda name, problem: problem["q"].shape[1] > 20) as log:
        for T in (40, 40, 10, 10, 40):
            fla.renamed(**words(T=T))
    assert (len(log.calls), log.skipped) == (2, 3)
    for budget in ({"seconds": 0}, {"nbytes": 1000, "judged": False}):
        with recording(**budget) as log:
            fla.renamed(**words()), fla.renamed(**words())
        assert (len(log.calls), log.skipped) == (1, 1)


def test_calls_are_kept_and_judged_later(fla, tmp_path):
    with recording(judged=False) as log:
        fla.renamed(**words())
    assert log.not_judged and log.calls[0].fixture.inputs["q"].shape == (1, 40, 2, 16)
    log.judge()
    assert log.calls[0].report.passed
    with recording(judged=False, save=tmp_path) as log:
        fla.renamed(**words())
    assert os.listdir(tmp_path) == ["0001-chunk_kda.h5"]


def test_layers_of_a_model_name_their_calls(fla):
    class Layer(torch.nn.Module):
        def forward(self, given):
            return fla.renamed(**given)[0]

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList([Layer(), Layer()])

        def forward(self, given):
            return [layer(given) for layer in self.layers]

    model = Model()
    with recording(model) as log:
        recorded = model(words())
    assert len(recorded) == 2 and all(torch.equal(a, b) for a, b in zip(recorded, model(words())))
    assert [call.place for call in log.calls] == ["layers.0", "layers.1"]


def test_modules_imported_meanwhile_are_recorded(tmp_path, monkeypatch):
    (tmp_path / "flash_kda").mkdir()
    (tmp_path / "flash_kda" / "__init__.py").write_text("def fwd(q, k, v, g, beta, scale, out, A_log, dt_bias, lower_bound):\n    out.zero_()\n")
    monkeypatch.syspath_prepend(tmp_path)
    given = words(torch.bfloat16)
    with recording() as log:
        import flash_kda

        flash_kda.fwd(**given, scale=1.0, out=torch.empty(1, 40, 2, 8).bfloat16(), A_log=torch.zeros(2), dt_bias=torch.zeros(32), lower_bound=-5)
    assert log.calls[0].report["o"].verdict == "fail"
    sys.modules.pop("flash_kda")


def test_a_kernel_of_ones_own_is_recorded_where_recording_is_on():
    @kda_check.kernel(kda_check.Signature(words={"query": "q", "factor": "scale"}, results=("final_state", "o")))
    def mine(query, k, v, g, beta, factor=None):
        o, state = kernels.chunk_kda(query, k, v, g, beta, factor, output_final_state=True)
        return state, o

    given = list(words().values())
    mine(*given)
    with recording() as log:
        mine(*given, factor=0.5)
    assert mine.__name__ == "mine" and log.calls[0].report.passed and len(log.calls[0].report.tensors()) == 2


def test_kernels_of_jax_are_recorded_outside_of_transformations():
    jax = pytest.importorskip("jax")
    from jax_kernel import jax_kda

    mine = kda_check.kernel()(jax_kda)
    given = {name: jax.numpy.asarray(x.numpy()) for name, x in words().items()}
    with recording() as log:
        mine(**given)
        jax.jit(mine)(**given)
    assert log.calls[0].report.passed and "its elements cannot be had" in log.calls[1].error


def test_the_gate_of_a_head_is_recorded_as_that_of_every_channel():
    @kda_check.kernel(signatures.FLASHINFER_GDN)
    def chunk_gated_delta_rule(q, k, v, g, beta, scale=None, output_final_state=False, cu_seqlens=None, output=None):
        o, state = kernels.chunk_kda(*(x[None] for x in (q, k, v)), g.log()[None, ..., None].expand(1, *k.shape), beta[None], scale,
                                     None, True, cu_seqlens=cu_seqlens)
        return o[0], state.transpose(-1, -2)

    given = {name: x[0] for name, x in words().items()}
    given["g"] = torch.rand(40, 2)
    with recording() as log:
        chunk_gated_delta_rule(**given, cu_seqlens=torch.tensor([0, 13, 40]))
    assert log.calls[0].report["o"].passed and log.calls[0].report["final_state"].passed, log


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


def test_compiled_code_is_compiled_once_and_not_recorded():
    @kda_check.kernel()
    def mine(q, k, v, g, beta):
        return v * 2

    torch._dynamo.reset(), torch._dynamo.utils.counters.clear()
    compiled = torch.compile(lambda given: mine(**given) + 1, backend="eager", fullgraph=True)
    with recording() as log:
        for _ in range(4):
            compiled(words())
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1 and not log.calls


def test_cuda_is_not_begun_by_the_recorder(fla, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: pytest.fail("asked for CUDA"))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: pytest.fail("asked for CUDA"))
    with recording() as log:
        fla.renamed(**words())
    assert log.calls[0].report.passed


def test_final_states_in_tensors_of_their_own_are_recorded(fla, monkeypatch):
    def decode(q, k, v, g, beta, initial_state, ssm_state_indices, inplace_final_state=True, output_final_state=False):
        return right(q, k, v, g, beta, None, initial_state[ssm_state_indices], output_final_state)

    right = kernels.chunk_kda
    monkeypatch.setattr(kernels, "chunk_kda", decode)
    given = {**words(T=1), "initial_state": torch.randn(5, 2, 16, 8), "inplace_final_state": False}
    with recording() as log:
        fla.renamed(**given, ssm_state_indices=torch.tensor([3]))
        fla.renamed(**given, ssm_state_indices=torch.tensor([3]), output_final_state=True)
        fla.renamed(**given, ssm_state_indices=torch.tensor([-1]))
    assert [[row.row["name"] for row in call.report.tensors()] for call in log.calls[:2]] == [["o"], ["o", "final_state"]]
    assert not log.failed and "negative rows" in log.calls[2].error, log


def test_flashinfers_prefill_with_a_pool_is_recorded():
    @kda_check.kernel(signatures.FLASHINFER_GDN)
    def chunk_gated_delta_rule(q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False, cu_seqlens=None,
                               output_state=None, use_cp="auto", state_indices=None, _cp_chunk_len=None):
        first = initial_state if state_indices is None else initial_state[state_indices]
        o, state = kernels.chunk_kda(*(x[None] for x in (q, k, v)), g.log()[None, ..., None].expand(1, *k.shape), beta[None], scale,
                                     first.transpose(-1, -2), True, cu_seqlens=cu_seqlens)
        if output_final_state:
            output_state[state_indices] = state.transpose(-1, -2)
        return (o[0], output_state) if output_final_state else o[0]

    given = {name: x[0] for name, x in words().items()}
    given.update(g=torch.rand(40, 2), cu_seqlens=torch.tensor([0, 13, 40]), initial_state=torch.randn(5, 2, 8, 16),
                 output_state=torch.randn(5, 2, 8, 16), state_indices=torch.tensor([4, 1]))
    with recording() as log:
        chunk_gated_delta_rule(**given)
        chunk_gated_delta_rule(**given, output_final_state=True)
        chunk_gated_delta_rule(**{**given, "output_state": given["initial_state"]}, output_final_state=True)
    assert [[row.row["name"] for row in call.report.tensors()] for call in log.calls] == [["o"], *[["o", "final_state"]] * 2], log
    assert not log.failed
    problem = kda_check.regime("corr_keys:T=32,H=2,K=16,V=8")
    problem.options["state_v_first"] = 1
    report = kda_check.verify(lambda q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False, cu_seqlens=None,
                              output_state=None: chunk_gated_delta_rule(q, k, v, g, beta, scale, torch.zeros(1, 2, 8, 16), True, cu_seqlens,
                                                                        output_state, state_indices=torch.arange(1)),
                              problem, signature=signatures.FLASHINFER_GDN, compute="fp32", framework="torch")
    assert report["o"].passed and report["final_state"].passed, report


def test_two_gates_of_a_call_are_not_mistaken_for_one():
    @kda_check.kernel(signatures.FLA_GDN_RECURRENT)
    def fused_recurrent_gated_delta_rule(q, k, v, g=None, gk=None, beta=None):
        return kernels.chunk_kda(q, k, v, gk if g is None else gk + g[..., None], beta)

    given = words()
    with recording() as log:
        fused_recurrent_gated_delta_rule(**{**given, "g": given["beta"]}, gk=given["g"])
        fused_recurrent_gated_delta_rule(**{**given, "g": None}, gk=given["g"])
    assert log.calls[0].error == "Unsupported: no place in a fixture for a second g, gk" and log.calls[1].report.passed


def test_calls_of_several_threads_have_names_of_their_own(fla):
    with recording(judged=False) as log:
        threads = [threading.Thread(target=lambda: [fla.renamed(**words(T=2)) for _ in range(20)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len({call.fixture.name for call in log.calls}) == len(log.calls) == 80


def test_modules_that_load_when_they_are_used_are_not_loaded(fla, monkeypatch, tmp_path):
    (tmp_path / "lazy_one.py").write_text("raise RuntimeError('loaded')")
    monkeypatch.syspath_prepend(tmp_path)
    spec = importlib.util.find_spec("lazy_one")
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "lazy_one", module)
    spec.loader.exec_module(module)
    with recording() as log:
        fla.renamed(**words())
    assert log.calls[0].report.passed


def test_calls_of_forked_processes_are_saved_apart(fla, monkeypatch, tmp_path):
    with recording(judged=False, save=tmp_path) as log:
        fla.renamed(**words(T=2))
        monkeypatch.setattr(os, "getpid", lambda: 7)  # as a child sees it, which has a recorder of its own
        fla.renamed(**words(T=2))
    assert [os.path.basename(call.path) for call in log.calls] == ["0001-chunk_kda.h5", "0002-7-chunk_kda.h5"]


def test_the_command_for_a_call_in_a_folder_of_any_name_runs(fla, monkeypatch, tmp_path):
    wrong(monkeypatch)
    with recording(save=tmp_path / "my project's") as log:
        fla.renamed(**words(T=2))
    (call,) = log.failed
    command = shlex.split(call.report.repro)
    assert command[2] == call.path == str(tmp_path / "my project's" / "0001-chunk_kda.h5") and f"repro: {call.report.repro}" in str(call.report)
    assert _program.run(command[1:]).exit_code == 1


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


def decoded(q, k, v, g, beta, initial_state, ssm_state_indices, num_accepted_tokens=None, cu_seqlens=None):
    """As FLA's: the state before is the one after the last accepted token; one is kept after each token."""
    ends, o = cu_seqlens.tolist(), torch.empty_like(v)
    for n, (begin, end) in enumerate(zip(ends, ends[1:])):
        first = 0 if num_accepted_tokens is None else int(num_accepted_tokens[n]) - 1
        state = initial_state[ssm_state_indices[n, first]][None]
        for i in range(begin, end):
            step = slice(i, i + 1)
            o[:, step], state = kernels.chunk_kda(*(x[:, step] for x in (q, k, v, g, beta)), None, state, True)
            initial_state[ssm_state_indices[n, i - begin]] = state[0]
    return o, initial_state


@pytest.mark.parametrize("accepted", [None, [1, 3, 2]])
def test_a_pool_with_a_row_for_each_token_is_judged(accepted):
    lengths = torch.tensor([0, 3, 5, 5])
    given = {**words(T=5), "initial_state": torch.randn(12, 2, 16, 8), "cu_seqlens": lengths,
             "ssm_state_indices": torch.randperm(12)[:9].view(3, 3)}
    if accepted:
        given["num_accepted_tokens"] = torch.tensor(accepted)
    with recording() as log:
        kda_check.kernel(signatures.FLA_RECURRENT)(decoded)(**given)
    (call,) = log.calls
    assert call.error == "" and call.report.passed and call.report["final_state"].passed, str(log)


def test_a_pool_with_fewer_rows_than_tokens_is_not_judged():
    given = {**words(T=3), "initial_state": torch.randn(4, 2, 16, 8), "ssm_state_indices": torch.tensor([[1, 2]])}
    with pytest.raises(kda_check.Unsupported, match="fewer rows than tokens"):
        signatures.FLA.problem(given)


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


def test_a_call_that_the_program_refuses_keeps_no_other_from_its_verdict(fla):
    with recording(judged=False) as log:
        fla.renamed(**{**words(), "scale": float("nan")})
        fla.renamed(**words())
    log.judge()
    assert "options/scale is nan" in log.calls[0].error and log.calls[1].report.passed
