"""Kernels for the tests, in the words of FLA."""

import torch


def chunk_kda(q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False, use_qk_l2norm_in_kernel=False,
              use_gate_in_kernel=False, A_log=None, dt_bias=None, use_beta_sigmoid_in_kernel=False, cu_seqlens=None, **other):
    """The recurrence in fp32, by torch; packed sequences too."""
    assert not use_gate_in_kernel and not other.get("state_v_first")
    dtype, scale = v.dtype, q.shape[-1] ** -0.5 if scale is None else scale
    q, k, v, g, beta = (x.float() for x in (q, k, v, g, beta))
    if use_qk_l2norm_in_kernel:
        q, k = (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
    if use_beta_sigmoid_in_kernel:
        beta = beta.sigmoid()
    q, k = (x.repeat_interleave(v.shape[2] // x.shape[2], 2) for x in (q, k))
    ends = [0, q.shape[1]] if cu_seqlens is None else cu_seqlens.tolist()
    parts, states = [], []
    for n, (begin, end) in enumerate(zip(ends, ends[1:])):
        rows = slice(None) if cu_seqlens is None else slice(n, n + 1)
        state = torch.zeros(q.shape[0], v.shape[2], q.shape[-1], v.shape[-1])
        if initial_state is not None:
            state = initial_state[rows].float()
        for t in range(begin, end):
            state = state * g[:, t].exp()[..., None]
            error = (v[:, t] - (state * k[:, t][..., None]).sum(-2)) * beta[:, t][..., None]
            state = state + k[:, t][..., None] * error[..., None, :]
            parts.append((state * (q[:, t] * scale)[..., None]).sum(-2))
        states.append(state)
    o = torch.stack(parts, 1).to(dtype)
    return o, torch.cat(states) if output_final_state else None
