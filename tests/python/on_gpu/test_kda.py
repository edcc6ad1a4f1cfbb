"""FLA's KDA kernels, tested as FLA does: against its recurrence in PyTorch, within its tolerances.

    pytest tests/python/on_gpu                                           with fla-core and a GPU
    pytest tests/python/on_gpu --kda-check=strict --kda-check-save=DIR   every call judged as well
"""

import pytest

from .cases import DEVICE, Case, close, torch, truth, with_gradients

from fla.ops.kda import chunk_kda, fused_recurrent_kda  # isort: skip
from fla.ops.kda.fused_recurrent import fused_recurrent_kda_fwd  # isort: skip

CHUNK = [
    Case(),
    Case("fp16", T=63, H=1, scale=1),
    Case("fp16", B=2, T=500, H=3, K=60, scale=1, gate="clamped", safe=True, recompute=False),
    Case("fp16", B=2, T=300, scale=0.1, kept=0.5, recompute=False),
    Case("fp16", B=2, T=320, K=100, scale=1, slow=0.1),
    Case("fp16", B=2, T=512, H=4, K=128, scale=0.1, gate="clamped", safe=True, norm=True),
    Case("fp16", T=700, K=128, scale=0.1, gate="softplus", recompute=False),
    Case("fp16", T=513, H=4, scale=0.1, gate="lower_bound", safe=True),
    Case("fp32", T=200, norm=True),
    Case("fp32", T=190, K=32, V=64, gate="softplus", dt_bias=False),
    Case("fp32", T=130, K=16, V=16, state=False, slow=100),
    Case(T=256, H=2, HV=4, gate="lower_bound", safe=True, norm=True, scale=0.1),
    Case(T=256, H=2, HV=8, K=128, gate="softplus", norm=True),
    Case(T=160, H=2, HV=4, gate="lower_bound", safe=True, chunk=32, recompute=False),
    Case(T=160, gate="softplus", chunk=32),
    Case(T=200, gate="lower_bound", safe=True, A_log=(), dt_bias=False),
    Case(T=100, K=256, gate="clamped", safe=True),
    Case(T=1, B=3),
    Case(T=1024, H=4, K=128, norm=True, gate="softplus", beta="sigmoid"),
    Case("fp16", B=2, T=96, beta="twice"),
    Case("fp16", T=200, K=60, v_first=True),
    Case(T=300, K=128, V=64, v_first=True, norm=True),
    Case("fp16", lengths=(15,), H=4, K=60, gate="softplus", A_log=(1, 1, 0, 1), lost=0.1),
    Case("fp16", lengths=(256, 244, 500), gate="softplus", A_log=(1, 1, 0, 1), lost=0.9),
    Case("fp16", lengths=(256, 244, 500), K=128, kept=0.5, lost=0.5),
    Case(lengths=(15, 85, 200, 300, 1), K=100, gate="softplus", norm=True),
    Case(lengths=(31, 65, 64), K=60, gate="softplus", lost=0.1, recompute=False, chunk=32),
    Case("fp32", lengths=(64, 1, 70), state=False, H=2, HV=4),
    Case(lengths=(100, 200), K=128, gate="lower_bound", safe=True, norm=True, beta="sigmoid", v_first=True),
]


@pytest.mark.parametrize("case", CHUNK, ids=str)
def test_chunk_forward_and_backward(case):
    wanted = with_gradients(case, lambda x: truth(case, x))
    found = with_gradients(case, lambda x: chunk_kda(**{name: y.clone() for name, y in x.items()}, **case.words(chunk_kda)))
    for name, tensor in wanted.items():
        close(name, tensor, found[name])


RECURRENT = [
    Case("fp32", T=64, H=1, scale=1),
    Case("fp32", B=2, T=200, H=3, K=60, scale=1),
    Case("fp32", B=3, T=300, K=100, scale=0.1, norm=True),
    Case("fp32", T=200, H=2, HV=4, K=60, V=32),
    Case("fp64", T=100, norm=True),
    Case("fp32", T=256, gate="softplus", norm=True, dt_bias=False),
    Case("fp16", B=2, T=300, H=2, HV=8, K=128, gate="lower_bound", norm=True, scale=0.1),
    Case("fp32", T=200, gate="lower_bound", A_log=(), dt_bias=False, norm=True),
    Case("fp32", B=2, T=256, beta="sigmoid"),
    Case("fp32", T=300, K=60, beta="twice"),
    Case("fp32", T=200, K=64, V=128, v_first=True),
    Case(T=500, K=128, gate="softplus", norm=True, A_log=(1, 1, 0, 1)),
    Case(T=100, state=False, slow=100),
    Case(lengths=(40, 0, 100, 1), H=2, HV=4, lost=0.1),
    Case("fp16", lengths=(100, 30), gate="lower_bound", norm=True, beta="sigmoid", v_first=True),
]


@pytest.mark.parametrize("case", RECURRENT, ids=str)
def test_recurrent_forward(case):
    x = case.tensors()
    wanted = truth(case, x)
    found = fused_recurrent_kda(**x, **case.words(fused_recurrent_kda))
    for name, *tensors in zip(("o", "final_state"), wanted, found):
        close(name, *tensors)


@pytest.mark.parametrize("case", [
    Case(lengths=(256, 44, 300), K=128, gate="softplus", norm=True),
    Case("fp16", lengths=(15, 85, 200), K=100, kept=0.1),
    Case(lengths=(100, 200, 500), K=128, gate="lower_bound", safe=True, norm=True, beta="sigmoid", v_first=True),
], ids=str)
@torch.inference_mode()
def test_chunk_prefill(case):
    x = case.tensors()
    for name, *tensors in zip(("o", "final_state"), truth(case, x), chunk_kda(**x, **case.words(chunk_kda))):
        close(name, *tensors)


@torch.inference_mode()
def test_chunk_with_the_states_between_chunks():
    case = Case(B=2, T=200, K=128)
    x = case.tensors()
    *found, states = chunk_kda(**x, **case.words(chunk_kda), return_intermediate_states=True)
    assert states.shape == (2, 4, 2, 128, 128)
    for name, *tensors in zip(("o", "final_state"), truth(case, x), found):
        close(name, *tensors)


@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
@pytest.mark.parametrize("case", [
    Case(lengths=(1,) * 16, H=4, K=128, norm=True, scale=0.1),
    Case("fp16", lengths=(1,) * 32, H=2, slow=0.5, scale=1),
    Case(lengths=(1,) * 7, H=2, HV=8, K=128, norm=True, gate="softplus"),
    Case(lengths=(1,) * 7, H=2, K=128, norm=True, gate="lower_bound", beta="sigmoid", v_first=True),
], ids=str)
@torch.inference_mode()
def test_decode_with_states_in_a_pool(case, kind):
    """Three tokens for each sequence; rows of the pool that belong to none of them stay what they are."""
    x, words = case.tensors(), case.words(fused_recurrent_kda_fwd)
    state, n = x.pop("initial_state"), len(case.lengths)
    pool = torch.full((3 * n, *state.shape[1:]), 1e30, device=DEVICE)
    rows = torch.randperm(3 * n, generator=torch.Generator().manual_seed(44))[:n].to(DEVICE, kind)
    pool[rows] = state
    others = torch.ones(3 * n, dtype=torch.bool, device=DEVICE).index_fill(0, rows.long(), False)
    words.pop("output_final_state")
    for _ in range(3):
        o, state = truth(case, {**x, "initial_state": state})
        found, _ = fused_recurrent_kda_fwd(**x, **words, initial_state=pool, ssm_state_indices=rows)
        close("o", o, found)
        close("final_state", state, pool[rows])
        assert bool((pool[others] == 1e30).all())
        x["v"], x["g"] = x["v"].flip(1), x["g"].roll(1, 1)


@pytest.mark.parametrize("accepted", [None, (1, 3, 2)])
@torch.inference_mode()
def test_decode_with_a_row_for_each_token(accepted):
    """As speculative decoding has it: a state is kept after each token, and the next call begins after those accepted."""
    case = Case(lengths=(3, 2, 1), K=128, norm=True)
    x, words = case.tensors(), case.words(fused_recurrent_kda_fwd)
    state = x.pop("initial_state")
    words.pop("output_final_state")
    pool = torch.full((20, *state.shape[1:]), 1e30, device=DEVICE)
    rows = torch.randperm(20, generator=torch.Generator().manual_seed(45))[:9].to(DEVICE, torch.int32).view(3, 3)
    first = [0, 0, 0] if accepted is None else [count - 1 for count in accepted]
    pool[rows[range(3), first]] = state
    counts = None if accepted is None else torch.tensor(accepted, dtype=torch.int32, device=DEVICE)
    o, last = truth(case, {**x, "initial_state": state})
    found, _ = fused_recurrent_kda_fwd(**x, **words, initial_state=pool, ssm_state_indices=rows, num_accepted_tokens=counts)
    close("o", o, found)
    close("final_state", last, pool[rows[range(3), [length - 1 for length in case.lengths]]])


@pytest.mark.parametrize("given", ["over the initial states", "to others", "and o to a buffer"])
@torch.inference_mode()
def test_decode_of_a_batch_writes_states(given):
    case = Case(B=5, T=1, H=4, K=128, norm=True)
    x, words = case.tensors(), case.words(fused_recurrent_kda_fwd)
    is_over = given != "to others"
    buffer = {"out": torch.empty_like(x["v"])} if given == "and o to a buffer" else {}
    wanted = truth(case, x)
    words["output_final_state"] = not is_over
    o, state = fused_recurrent_kda_fwd(**x, **words, **buffer, inplace_final_state=is_over)
    assert (state is x["initial_state"]) == is_over
    for name, *tensors in zip(("o", "final_state"), wanted, (buffer.get("out", o), state)):
        close(name, *tensors)
