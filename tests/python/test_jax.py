"""Kernels in JAX on a CPU: jitted, mapped over the batch, with a vjp of their own; answers and gradients."""

import functools

import kda_check
import pytest

jax = pytest.importorskip("jax")
from jax_kernel import jax_kda  # noqa: E402

SMALL = "control:T=20,H=2,K=16,V=8,B=2"


def mapped(q, k, v, g, beta, scale=None, initial_state=None, output_final_state=True):
    """Each sequence of the batch by itself."""
    states = jax.numpy.zeros((*q.shape[:1], q.shape[2], q.shape[-1], v.shape[-1])) if initial_state is None else initial_state
    one = jax.vmap(lambda *x: tuple(y[0] for y in jax_kda(*(y[None] for y in x[:5]), scale, x[5][None])))
    return one(q, k, v, g, beta, states)


def with_vjp(factor):
    """A kernel with a backward pass of its own, whose dk is `factor` of what it should be."""

    @functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
    def inner(q, k, v, g, beta, scale):
        return jax_kda(q, k, v, g, beta, scale)

    def forward(q, k, v, g, beta, scale):
        return jax.vjp(lambda *x: jax_kda(*x, scale), q, k, v, g, beta)

    def backward(scale, pull, outputs):
        dq, dk, dv, dg, dbeta = pull(outputs)
        return dq, factor * dk, dv, dg, dbeta

    inner.defvjp(forward, backward)
    return lambda q, k, v, g, beta, scale=None, output_final_state=True: inner(q, k, v, g, beta, scale)


def inputs_of(problem):
    given = kda_check.regime(problem).inputs
    return {name: given[name].jax() for name in ("q", "k", "v", "g", "beta")}


KERNELS = {"jitted": jax.jit(jax_kda, static_argnames=["scale", "output_final_state"]), "mapped": mapped, "own vjp": with_vjp(1.0),
           "jitted and mapped": jax.jit(mapped, static_argnames=["scale", "output_final_state"])}


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_a_kernel_is_called_and_its_gradients_are_judged(kernel):
    report = kda_check.verify(kernel, SMALL, framework="jax", backward=True, compute="fp32")
    assert report.passed, report
    assert {row.row["name"] for row in report.tensors()} == {"o", "final_state", "dq", "dk", "dv", "dg", "dbeta"}


def test_laws_hold_for_mapped_kernels():
    report = kda_check.verify(mapped, SMALL, framework="jax", compute="fp32", invariants=["repeat", "batch", "causality"])
    assert report.passed and {case["against"] for case in report.cases} >= {"invariant:batch", "invariant:causality"}, report


def test_laws_hold_for_the_gradients_of_mapped_kernels():
    laws = ["repeat", "batch", "causality", "split", "inputs"]
    report = kda_check.verify(mapped, SMALL + ",C=16", framework="jax", compute="fp32", backward=True, invariants=laws)
    assert report.passed, report
    backwards = {case["against"] for case in report.cases if case["pass"] == "backward"}
    assert backwards == {"oracle", *(f"invariant:{law}" for law in laws)}


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_answers_and_gradients_at_hand_are_judged(kernel):
    inputs = inputs_of(SMALL)
    (o, state), pull = jax.vjp(lambda *x: kernel(*x), *inputs.values())
    do, dht = (jax.random.normal(jax.random.PRNGKey(n), x.shape) for n, x in enumerate((o, state)))
    gradients = {f"d{name}": x for name, x in zip(inputs, pull((do, dht)))}
    words = {**inputs, "do": do, "dht": dht, **gradients, "compute": "fp32"}
    assert kda_check.check(o, final_state=state, **words).passed
    report = kda_check.check(o, final_state=state, **{**words, "dg": 1.001 * gradients["dg"]})
    assert [row.row["name"] for row in report.tensors() if not row.passed] == ["dg"]


def test_a_wrong_vjp_behind_a_right_answer_fails():
    report = kda_check.verify(with_vjp(1.001), SMALL, framework="jax", backward=True, compute="fp32")
    assert [row.row["name"] for row in report.tensors() if not row.passed] == ["dk"], report


def test_a_wrong_kernel_fails_jitted_or_not():
    def doubled(q, k, v, g, beta, scale=None, output_final_state=True):
        return jax_kda(q, k, v, 1.01 * g, beta, scale)

    for kernel in (doubled, jax.jit(doubled, static_argnames=["scale", "output_final_state"])):
        assert not kda_check.verify(kernel, SMALL, framework="jax", compute="fp32").passed


def test_bfloat16_stays_what_it_is():
    seen = {}

    def kernel(q, k, v, g, beta, scale=None, output_final_state=True):
        seen.update(q=str(q.dtype), g=str(g.dtype))
        return jax_kda(q, k, v, g, beta, scale)

    report = kda_check.verify(kernel, f"{SMALL},dtype=bf16", framework="jax", backward=True, compute="fp32")
    assert report.passed and report["dq"].row["dtype"] == "bf16" and seen == {"q": "bfloat16", "g": "float32"}, report


def test_what_is_traced_has_no_elements_to_judge():
    def judged(q, k, v, g, beta):
        kda_check.check(v, q=q, k=k, v=v, g=g, beta=beta)
        return v

    with pytest.raises(TypeError, match="q: its elements cannot be had"):
        jax.jit(judged)(**inputs_of(SMALL))
