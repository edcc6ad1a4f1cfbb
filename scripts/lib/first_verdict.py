"""The textbook recurrence in numpy, judged: what scripts/wheel tries in an environment where nothing else is."""
import numpy as np

import kda_check


def recurrence(q, k, v, g, beta, scale, initial_state=None):
    batch, tokens, heads, width = g.shape
    o = np.zeros(v.shape, np.float32)
    state = np.zeros((batch, heads, width, v.shape[-1]), np.float32) if initial_state is None else initial_state.copy()
    for t in range(tokens):
        state *= np.exp(g[:, t, :, :, None])
        error = v[:, t] - np.einsum("bhkv,bhk->bhv", state, k[:, t])
        state += np.einsum("bhk,bhv->bhkv", k[:, t], beta[:, t, :, None] * error)
        o[:, t] = scale * np.einsum("bhkv,bhk->bhv", state, q[:, t])
    return o, state


def wrong(q, k, v, g, beta, scale, initial_state=None):
    return recurrence(q, k, v, g, beta, 1.001 * scale, initial_state)


right = kda_check.verify(recurrence, "control:T=70,H=2,K=16,V=16", compute="fp32")
assert right.passed, right
assert not kda_check.verify(wrong, "control:T=70,H=2,K=16,V=16", compute="fp32").passed
print(right)
