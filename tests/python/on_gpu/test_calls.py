"""FLA's kernels, called as programs call them."""

import pytest

from .cases import DEVICE, Case, close, torch, truth, with_gradients

import fla.utils  # isort: skip
from fla.ops.gated_delta_rule import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule  # isort: skip
from fla.ops.kda import chunk_kda, fused_recurrent_kda  # isort: skip
from torch.utils.checkpoint import checkpoint  # isort: skip


def test_two_calls_in_a_row():
    """The second takes what the first answered; an input of both has the gradients of both."""
    case = Case("fp16", T=128, norm=True)

    def layers(kernel):
        def run(x):
            o, state = kernel(x)
            return kernel({**x, "v": o, "initial_state": state})

        return with_gradients(case, run)

    wanted = layers(lambda x: truth(case, x))
    found = layers(lambda x: chunk_kda(**x, **case.words(chunk_kda)))
    for name, tensor in wanted.items():
        close(name, tensor, found[name])


def test_one_tensor_for_two_arguments():
    case = Case("fp16", T=100)

    def shared(kernel):
        return with_gradients(case, lambda x: kernel({**x, "q": x["k"] + 0 * x["q"], "k": x["k"]}))

    def same(x):
        both = x["k"] + 0 * x["q"]
        return chunk_kda(both, both, x["v"], x["g"], x["beta"], initial_state=x["initial_state"], output_final_state=True)

    wanted, found = shared(lambda x: truth(case, x)), with_gradients(case, same)
    for name in ("o", "final_state", "d k", "d v", "d g"):
        close(name, wanted[name], found[name])


@pytest.mark.parametrize("loss", ["o", "final_state"])
@pytest.mark.parametrize("wanting", [("v", "beta"), ("q", "k", "initial_state")], ids=str)
def test_gradients_of_some_inputs_and_one_output(loss, wanting):
    case = Case("fp16", T=150, gate="softplus")

    def some(kernel):
        x = case.tensors()
        for name in wanting:
            x[name].requires_grad_()
        y = kernel(x)[loss == "final_state"]
        (y * torch.linspace(-1, 1, y.numel(), device=DEVICE).view(y.shape).to(y)).sum().backward()
        return {f"d {name}": x[name].grad for name in wanting if x[name].grad is not None}

    wanted, found = some(lambda x: truth(case, x)), some(lambda x: chunk_kda(**x, **case.words(chunk_kda)))
    for name, tensor in wanted.items():
        close(name, tensor, found[name] if name in found else torch.zeros_like(tensor))


def test_strided_and_positional():
    """q, k and v as parts of one projection."""
    case = Case(T=200, norm=True)
    x = case.tensors()
    whole = torch.cat([x["q"], x["k"], x["v"]], -1).requires_grad_()
    o, state = chunk_kda(*whole.chunk(3, -1), x["g"], x["beta"], None, x["initial_state"], True, True)
    o.float().square().sum().backward()
    wanted = truth(case, x)
    close("o", wanted[0], o)
    close("final_state", wanted[1], state)
    fla.utils.assert_close("d whole", whole.grad, whole.grad, 0)


@pytest.mark.parametrize("is_reentrant", [False, True])
def test_under_a_checkpoint(is_reentrant):
    """The kernel is called again in the backward pass."""
    case = Case(T=150)

    def run(x):
        names = list(x)

        def kernel(*tensors):
            return chunk_kda(**dict(zip(names, tensors)), **case.words(chunk_kda))

        return checkpoint(kernel, *x.values(), use_reentrant=is_reentrant)

    wanted, found = with_gradients(case, lambda x: truth(case, x)), with_gradients(case, run)
    for name, tensor in wanted.items():
        close(name, tensor, found[name])


def test_gradients_that_never_come_and_come_twice():
    case = Case(T=150)
    x = {name: tensor.requires_grad_() for name, tensor in case.tensors().items()}
    o, _ = chunk_kda(**x, **case.words(chunk_kda))
    again, _ = chunk_kda(**x, **case.words(chunk_kda))
    again.sum().backward(retain_graph=True)
    once = x["v"].grad.clone()
    again.sum().backward()
    close("o", o, again)
    close("d v", 2 * once, x["v"].grad)


def test_on_another_stream():
    case = Case(T=150)
    x = case.tensors()
    wanted = truth(case, x)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found = chunk_kda(**x, **case.words(chunk_kda))
    torch.cuda.current_stream().wait_stream(stream)
    for name, *tensors in zip(("o", "final_state"), wanted, found):
        close(name, *tensors)


def test_the_former_name_of_v_first():
    case = Case(T=100, v_first=True)
    x, words = case.tensors(), case.words(fused_recurrent_kda)
    del words["state_v_first"]
    with pytest.warns(DeprecationWarning):
        found = fused_recurrent_kda(**x, **words, transpose_state_layout=True)
    for name, *tensors in zip(("o", "final_state"), truth(case, x), found):
        close(name, *tensors)


def test_what_is_refused_is_refused():
    case = Case(T=64)
    x, words = case.tensors(), case.words(chunk_kda)
    with pytest.raises(ValueError, match="chunk_size"):
        chunk_kda(**x, **words, chunk_size=16)
    with pytest.raises(ValueError):
        fused_recurrent_kda(**x, allow_neg_eigval=True)


def test_gated_delta_rule():
    """One gate for a head, which is KDA with the same in every channel. FLA refuses its backward pass with some versions
    of Triton."""
    case = Case(T=200, K=128)
    x = case.tensors()
    wanted = truth(case, {**x, "g": x["g"][..., :1].expand_as(x["g"])})
    for kernel in (chunk_gated_delta_rule, fused_recurrent_gated_delta_rule):
        found = kernel(**{**x, "g": x["g"][..., 0]}, output_final_state=True)
        for name, *tensors in zip(("o", "final_state"), wanted, found):
            close(name, *tensors)
