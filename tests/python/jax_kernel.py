"""A kernel for the tests in JAX, in the words of FLA."""

import jax.numpy as jnp
from jax import lax


def jax_kda(q, k, v, g, beta, scale=None, initial_state=None, output_final_state=True):
    """The recurrence by JAX, without packed sequences."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    first = jnp.zeros((*q.shape[:1], *v.shape[2:3], q.shape[-1], v.shape[-1])) if initial_state is None else initial_state

    def step(state, token):
        q, k, v, g, beta = (x.astype(jnp.float32) for x in token)
        state = state * jnp.exp(g)[..., None]
        error = (v - (state * k[..., None]).sum(-2)) * beta[..., None]
        state = state + k[..., None] * error[..., None, :]
        return state, (state * (q * scale)[..., None]).sum(-2)

    state, o = lax.scan(step, first.astype(jnp.float32), [jnp.swapaxes(x, 0, 1) for x in (q, k, v, g, beta)])
    return jnp.swapaxes(o, 0, 1).astype(v.dtype), state
