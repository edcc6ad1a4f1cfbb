import numpy as np


def right(q, k, v, g, beta, scale, initial_state=None, output_final_state=True, cu_seqlens=None, fault=lambda state, t, v: state):
    """The recurrence in fp32, packed sequences too; `fault` changes the state before a token of a sequence."""
    ends = [0, q.shape[1]] if cu_seqlens is None else cu_seqlens
    kind, (q, k, v, g, beta) = v.dtype, (np.asarray(x, np.float32) for x in (q, k, v, g, beta))
    q, k = (np.repeat(x, v.shape[2] // q.shape[2], 2) for x in (q, k))
    o, states = np.zeros_like(v), []
    for n, (begin, end) in enumerate(zip(ends, ends[1:])):
        rows = slice(None) if cu_seqlens is None else slice(n, n + 1)
        state = np.zeros((q.shape[0], v.shape[2], q.shape[-1], v.shape[-1]), np.float32)
        state = state if initial_state is None else initial_state[rows].astype(np.float32)
        for t in range(begin, end):
            state = fault(state, t - begin, v) * np.exp(g[:, t])[..., None]
            error = beta[:, t, :, None] * (v[:, t] - np.einsum("bhkv,bhk->bhv", state, k[:, t]))
            state = state + k[:, t][..., None] * error[..., None, :]
            o[:, t] = np.float32(scale) * np.einsum("bhkv,bhk->bhv", state, q[:, t])
        states.append(state)
    return o.astype(kind), np.concatenate(states)
