"""Which kernels are recorded, and how their arguments are understood."""

import functools
import importlib.util
import sys
import types
from dataclasses import replace

import kda_check
import pytest
from kda_check import recording, signatures

torch = pytest.importorskip("torch")
import kernels  # noqa: E402
from calls import words  # noqa: E402


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


def test_kernels_of_a_module_that_the_program_names_are_recorded(monkeypatch):
    """With the words that vLLM's and SGLang's copies of FLA's functions have in some of their versions."""
    def chunk(q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False, use_qk_l2norm_in_kernel=False, cu_seqlens=None,
              **kwargs):
        o, state = kernels.chunk_kda(q, k, v.clone(), g, beta, scale, initial_state.mT, output_final_state, use_qk_l2norm_in_kernel)
        return v.copy_(o), state.mT  # over v

    def pooled(q, k, v, g, beta, scale=None, initial_state=None, initial_state_indices=None, use_qk_l2norm_in_kernel=False,
               cu_seqlens=None, A_log=None, dt_bias=None, lower_bound=None, beta_is_raw=False, **kwargs):
        o, state = kernels.chunk_kda(q, k, v, g, beta, scale, initial_state[initial_state_indices].mT, True, use_qk_l2norm_in_kernel,
                                     use_beta_sigmoid_in_kernel=beta_is_raw)
        initial_state[initial_state_indices] = state.mT
        return o

    modules = {"vllm.model_executor.layers.fla.ops.kda": chunk, "sglang.kernels.ops.attention.fla.kda": pooled}
    v_first = replace(signatures.FLA, fixed={"state_v_first": True})
    of_pools = replace(v_first, words={**v_first.words, "beta_is_raw": "beta_sigmoid"}, gate=None, results=("o",), in_place=True,
                       pool="initial_state_indices", accepted=None)
    for (name, kernel), signature in zip(modules.items(), (v_first, of_pools)):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        sys.modules[name].chunk_kda = kernel
        monkeypatch.setitem(signatures.KNOWN, name, {"chunk_kda": signature})
    states = torch.randn(4, 2, 8, 16)
    with recording() as log:
        sys.modules["vllm.model_executor.layers.fla.ops.kda"].chunk_kda(**words(), initial_state=states[:1], output_final_state=True)
        sys.modules["sglang.kernels.ops.attention.fla.kda"].chunk_kda(**words(), initial_state=states, initial_state_indices=torch.tensor([2]),
                                                                      beta_is_raw=True, use_qk_l2norm_in_kernel=True)
    assert [call.report is not None and call.report["final_state"].passed and call.report.passed for call in log.calls] == [True, True], log


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
