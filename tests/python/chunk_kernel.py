"""A chunk kernel in torch whose products are of 16 bits, as those of FLA are, and that can be wrong in its backward pass."""

import torch
import torch.nn.functional as F

CHUNK = 64


class Backwards(torch.autograd.Function):
    """x as it is; its gradient changed."""

    @staticmethod
    def forward(context, x, change):
        context.change = change
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        return context.change(gradient), None


class Inverse(torch.autograd.Function):
    """(I + L)^-1 of strictly lower L; with `is_wrong` its gradient is -A dA A for -A^T dA A^T."""

    @staticmethod
    def forward(context, lower, is_wrong):
        unit = torch.eye(lower.shape[-1], dtype=lower.dtype)
        inverse = torch.linalg.solve_triangular(unit + lower, unit.expand_as(lower), upper=False)
        context.save_for_backward(inverse)
        context.is_wrong = is_wrong
        return inverse

    @staticmethod
    def backward(context, gradient):
        (inverse,) = context.saved_tensors
        side = inverse if context.is_wrong else inverse.mT
        return -(side @ gradient @ side).tril(-1), None


def unit_rows(x, bug=""):
    factor = (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt()
    if bug == "norm_dropped":  # the gradient of the normalised rows is taken for that of the rows
        x = Backwards.apply(x, lambda d: d / factor.detach())
    return x * (factor.detach() if bug in ("norm_dropped", "norm_not_projected") else factor)


def log_decay(g, A_log, dt_bias, bug=""):
    """-exp(A_log) softplus(g + dt_bias)"""
    bias = dt_bias.view(g.shape[-2:])
    if bug == "bias_by_channel":
        bias = Backwards.apply(bias, lambda d: d.mT.reshape(d.shape))
    rate = A_log.exp()
    if bug == "amplitude_not_raised":
        rate = A_log.detach().exp() - A_log.detach() + A_log
    return -rate[:, None] * F.softplus(g + bias)


def chunk_kda(q, k, v, g, beta, scale=None, initial_state=None, output_final_state=True, use_qk_l2norm_in_kernel=False,
              use_gate_in_kernel=False, A_log=None, dt_bias=None, kind=None, carry=None, store=True, bug=""):
    """kind: what operands of products are rounded to, v's without; float64: nothing is. carry: what the state is kept in.
    store: o in the type of v. bug: what is wrong in the backward pass."""
    kind = kind or v.dtype
    work, dtype = (torch.float64 if kind == torch.float64 else torch.float32), v.dtype
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    q, k, v, g, beta = (x.to(work) for x in (q, k, v, g, beta))
    T, groups = q.shape[1], v.shape[2] // q.shape[2]

    def rounded(x):
        return x.to(kind).to(work)

    if use_qk_l2norm_in_kernel:
        q, k = unit_rows(q, bug), unit_rows(k, bug)
    if use_gate_in_kernel:
        g = log_decay(g, A_log.to(work), dt_bias.to(work), bug)
    if bug == "base_two":
        g = Backwards.apply(g, lambda d: d / torch.log(torch.tensor(2.0)))
    if bug == "first_token_masked":
        g = torch.cat([g[:, :1].detach(), g[:, 1:]], 1)
    if groups > 1:
        def last_only(d):
            parts = d.unflatten(2, (-1, groups))
            return torch.cat([torch.zeros_like(parts[..., 1:, :]), parts[..., -1:, :]], -2).flatten(2, 3)

        q, k = (x.repeat_interleave(groups, 2) for x in (q, k))
        if bug == "last_of_group":
            q, k = Backwards.apply(q, last_only), Backwards.apply(k, last_only)

    def chunks(x):  # [B,HV,chunk,token,...]
        x = F.pad(x.transpose(1, 2), [0, 0] * (x.ndim - 3) + [0, -T % CHUNK])
        return x.unflatten(2, (-1, CHUNK))

    q, k, v, g, beta = (chunks(x) for x in (q, k, v, g, beta[..., None]))
    G = g.cumsum(-2)
    mask = torch.ones(CHUNK, CHUNK, dtype=torch.bool).tril()[..., None]
    decay = torch.where(mask, G[..., :, None, :] - G[..., None, :, :], float("-inf")).exp()
    scores = torch.einsum("...ik,...jk,...ijk->...ij", q, k, decay)
    if bug == "unscaled_scores":
        scores = Backwards.apply(scores, lambda d: d / scale)
    L = (beta * torch.einsum("...ik,...jk,...ijk->...ij", k, k, decay)).tril(-1)
    A, scores = rounded(Inverse.apply(L, bug == "not_transposed")), rounded(scale * scores)
    w, u = (rounded(A @ rounded(beta * x)) for x in (k * G.exp(), v))
    last = G[..., -1:, :]
    if bug == "last_row_of_tile" and T % CHUNK:  # the row T would have in a full chunk is not there
        last = torch.cat([last[:, :, :-1], last[:, :, -1:].detach()], 2)
    queries, keys, kept = rounded(q * G.exp()), rounded(k * (last - G).exp()), last.exp().mT
    state = torch.zeros(*q.shape[:2], q.shape[-1], v.shape[-1], dtype=work) if initial_state is None else initial_state.to(work)
    parts = []
    for n in range(q.shape[2]):
        operand = rounded(state)
        new = rounded(u[:, :, n] - w[:, :, n] @ operand)
        parts.append(scale * (queries[:, :, n] @ operand) + scores[:, :, n] @ new)
        state = (state * kept[:, :, n] + keys[:, :, n].mT @ new).to(carry or work).to(work)
    o = torch.stack(parts, 2).flatten(2, 3)[:, :, :T].transpose(1, 2)
    if bug == "state_gradient_lost":
        state = state.detach() + 0 * state
    return (o.to(dtype) if store else o), state
