"""Problems for FLA's KDA kernels, and what is true of them by its recurrence in PyTorch. Without a GPU all is skipped."""

from dataclasses import dataclass, fields

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("fla.ops.kda")
import fla.utils  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from fla.ops.kda import chunk_kda  # noqa: E402
from fla.ops.kda.gate import naive_kda_gate, naive_kda_lowerbound_gate  # noqa: E402
from fla.ops.kda.naive import naive_recurrent_kda  # noqa: E402

if fla.utils.device_platform == "cpu":
    pytest.skip("no GPU", allow_module_level=True)
DEVICE, LOWER_BOUND = fla.utils.device, -5.0
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64}
# FLA's, for the ratio of the error to what is there.
TOLERANCES = {"o": 0.005, "final_state": 0.005, "q": 0.008, "k": 0.008, "v": 0.008, "g": 0.02, "beta": 0.02,
              "initial_state": 0.008, "A_log": 0.003, "dt_bias": 0.008}


@dataclass(frozen=True)
class Case:
    """A problem. What is not said is the default of the kernel."""

    dtype: str = "bf16"
    T: int = 130
    B: int = 1
    H: int = 2
    HV: int = 0  # 0: H
    K: int = 64
    V: int = 0  # 0: K
    scale: float = 0  # 0: none given
    state: bool = True
    lengths: tuple[int, ...] = ()  # of packed sequences
    gate: str = ""  # softplus, lower_bound: in the kernel; clamped: before it, and safe_gate
    A_log: tuple[int, ...] = (0,)  # its shape, 0: HV; (): none
    dt_bias: bool = True
    safe: bool = False
    slow: float = 1  # by how much slower the states forget
    kept: float = 0  # share of channels and tokens that keep all
    lost: float = 0  # and of those that lose all
    norm: bool = False
    beta: str = ""  # sigmoid, twice: in the kernel
    v_first: bool = False
    chunk: int = 0
    recompute: bool = True

    def __str__(self):
        values = ((field.name, getattr(self, field.name), field.default) for field in fields(self))
        return "-".join(f"{name}{value}".replace(" ", "") for name, value, default in values if value != default) or "plain"

    @property
    def heads(self):
        return self.HV or self.H

    @property
    def spans(self):
        ends = [sum(self.lengths[:n]) for n in range(len(self.lengths) + 1)]
        return list(zip(ends, ends[1:]))

    def tensors(self):
        """Drawn on the CPU, so that every GPU gets the same."""
        draw, dtype = torch.Generator().manual_seed(42), DTYPES[self.dtype]
        B, T, HV, K, V = self.B, sum(self.lengths) or self.T, self.heads, self.K, self.V or self.K

        def normal(*shape):
            return torch.randn(*shape, generator=draw)

        def uniform(*shape):
            return torch.rand(*shape, generator=draw)

        x = {"q": normal(B, T, self.H, K) if self.norm else F.normalize(normal(B, T, self.H, K), dim=-1),
             "k": uniform(B, T, self.H, K) if self.norm else F.normalize(uniform(B, T, self.H, K), dim=-1),
             "v": uniform(B, T, HV, V)}
        x = {name: tensor.to(dtype) for name, tensor in x.items()}
        g = normal(B, T, HV, K)
        if self.gate not in ("softplus", "lower_bound"):
            g = F.logsigmoid(g) / self.slow
            g = g * (uniform(*g.shape) >= self.kept)
        g = torch.where(uniform(*g.shape) >= self.lost, g, torch.tensor(-1000.0))
        x["g"] = g.clamp(-5, 0) if self.gate == "clamped" else g.to(dtype) if self.gate else g
        x["beta"] = normal(B, T, HV).to(dtype) if self.beta else normal(B, T, HV).sigmoid().to(dtype)
        if self.gate in ("softplus", "lower_bound"):
            if self.A_log:
                x["A_log"] = (1 + 15 * uniform(HV)).log().view([extent or HV for extent in self.A_log])
            if self.dt_bias:
                x["dt_bias"] = normal(HV * K)
        if self.state:
            shape = (V, K) if self.v_first else (K, V)
            x["initial_state"] = normal(len(self.lengths) or B, HV, *shape)
        return {name: tensor.to(DEVICE) for name, tensor in x.items()}

    def words(self, kernel):
        """What the kernel is told besides tensors."""
        words = {"scale": self.scale or None, "output_final_state": True, "use_qk_l2norm_in_kernel": self.norm,
                 "use_gate_in_kernel": self.gate in ("softplus", "lower_bound")}
        if self.gate == "lower_bound":
            words["lower_bound"] = LOWER_BOUND
        if self.beta:
            words.update(use_beta_sigmoid_in_kernel=True, allow_neg_eigval=self.beta == "twice")
        if self.v_first:
            words["state_v_first"] = True
        if self.lengths:
            ends = [0, *(end for _, end in self.spans)]
            words["cu_seqlens"] = torch.tensor(ends, dtype=torch.long, device=DEVICE)
        if kernel is chunk_kda:
            words.update(safe_gate=self.safe, disable_recompute=not self.recompute)
            words.update({"chunk_size": self.chunk} if self.chunk else {})
            words.update({"cu_seqlens_cpu": words["cu_seqlens"].cpu()} if self.lengths else {})
        return words


def truth(case, x):
    """(o, final_state) by the recurrence."""
    q, k = (F.normalize(x[name].float(), dim=-1) if case.norm else x[name] for name in ("q", "k"))
    g, beta, bias = x["g"], x["beta"], x.get("dt_bias")
    if case.gate == "softplus":
        g = naive_kda_gate(g, x["A_log"], bias)
    if case.gate == "lower_bound":
        g = naive_kda_lowerbound_gate(g, x.get("A_log"), bias, LOWER_BOUND)
    if case.beta:
        beta = beta.float().sigmoid() * (2 if case.beta == "twice" else 1)
    state = x.get("initial_state")
    if case.v_first and state is not None:
        state = state.mT
    parts = []
    for n, (begin, end) in enumerate(case.spans or [(0, q.shape[1])]):
        own = state[n : n + 1] if case.lengths and state is not None else state
        rows = (tensor[:, begin:end] for tensor in (q, k, x["v"], g, beta))
        parts.append(naive_recurrent_kda(*rows, case.scale or None, own, output_final_state=True))
    o, states = (torch.cat(found, axis) for found, axis in zip(zip(*parts), (1, 0)))
    return o, states.mT if case.v_first else states


def close(name, wanted, found):
    fla.utils.assert_close(name, wanted, found, TOLERANCES[name.removeprefix("d ")], warning=name == "d A_log")


def with_gradients(case, function):
    """o, final_state and the gradients of all inputs."""
    x = {name: tensor.requires_grad_() for name, tensor in case.tensors().items()}
    o, state = function(x)
    draw = torch.Generator().manual_seed(43)
    do, dht = (torch.randn(y.shape, generator=draw).to(y) for y in (o, state))
    ((o * do).sum() + (state * dht).sum()).backward()
    return {"o": o, "final_state": state, **{f"d {name}": tensor.grad for name, tensor in x.items()}}
