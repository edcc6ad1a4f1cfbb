"""python -m kda_check export-fla: runs FLA's kernels on inputs drawn at random, and writes what came out."""

from __future__ import annotations

import argparse
import importlib
import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

from ._program import EnvironmentProblem
from .fixture import save
from .signatures import KNOWN

# The kernels of a family: the module of FLA that has them, and by group of the file what they are called there.
FAMILIES = {
    "kda": ("fla.ops.kda", {"fla_chunk": "chunk_kda", "fla_recurrent": "fused_recurrent_kda"}),
    "column-beta": ("fla.ops.kda", {"fla_recurrent": "fused_recurrent_kda"}),
    "gdn": ("fla.ops.gated_delta_rule",
            {"fla_chunk": "chunk_gated_delta_rule", "fla_recurrent": "fused_recurrent_gated_delta_rule"}),
    "gdn2": ("fla.ops.gdn2", {"fla_chunk": "chunk_gdn2", "fla_recurrent": "fused_recurrent_gdn2"}),
}  # fmt: skip


def parsed(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m kda_check export-fla", description="Runs FLA's kernels, which needs a GPU.")
    parser.add_argument("-o", "--output", required=True, metavar="FILE.h5")
    parser.add_argument(
        "--family", choices=tuple(FAMILIES), default="kda", help="KDA, KDA with a beta for each column of v, or a relative"
    )
    for axis, extent in {"B": 1, "T": 128, "H": 2, "K": 128, "V": 128}.items():
        parser.add_argument(f"-{axis}", type=int, default=extent, help=f"{extent} unless stated")
    parser.add_argument("--dtype", choices=("fp32", "bf16", "fp16"), default="bf16")
    parser.add_argument("--backward", action="store_true", help="record do, dht and the chunk kernel's gradients too")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--launch", type=int, metavar="SEED", help="draw each kernel's launch configuration in place of tuning it; 0: its first"
    )
    return parser.parse_args(words)


def drawn(torch: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Inputs that FLA's own layers could give: unit keys and queries, gates in (-1, 0)."""
    generator = torch.Generator("cuda").manual_seed(options.seed)
    kind = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[options.dtype]
    b, t, h, k, v = options.B, options.T, options.H, options.K, options.V

    def normal(*shape: int) -> Any:
        return torch.randn(*shape, device="cuda", generator=generator)

    def share(*shape: int) -> Any:
        return torch.sigmoid(normal(*shape))

    unit = torch.nn.functional.normalize
    q, keys = (unit(normal(b, t, h, k), dim=-1).to(kind) for _ in range(2))
    gates = {"g": -(share(b, t, h) if options.family == "gdn" else share(b, t, h, k))}
    if options.family == "gdn2":
        gates.update(b=share(b, t, h, k), w=share(b, t, h, v))
    else:
        gates["beta"] = share(b, t, h, v) if options.family == "column-beta" else share(b, t, h)
    return {"q": q, "k": keys, "v": normal(b, t, h, v).to(kind), **gates, "initial_state": 0.1 * normal(b, h, k, v),
            "output_final_state": True}  # fmt: skip


def gradients(
    torch: Any, kernel: Any, words: Mapping[str, str], arguments: Mapping[str, Any], seed: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """do and dht, drawn, and what the kernel's backward pass makes of them, by the names of the format; `words`: a
    name of the kernel's -> that of the format."""
    inputs = {
        name: value.detach().requires_grad_()
        for name, value in arguments.items()
        if torch.is_tensor(value) and value.is_floating_point()
    }
    outputs = kernel(**{**arguments, **inputs})
    generator = torch.Generator("cuda").manual_seed(seed + 1)
    seeds = [torch.randn(x.shape, device="cuda", generator=generator).to(x.dtype) for x in outputs]
    found = torch.autograd.grad(outputs, list(inputs.values()), seeds)
    return {"do": seeds[0], "dht": seeds[1]}, {f"d{words.get(name, name)}": value for name, value in zip(inputs, found)}


def launched(autotuner: Any, too_large: type[Exception], seed: int) -> dict[str, str]:
    """Has Triton's autotuner use one configuration of each kernel, the first that the device has room for of those drawn.
    Returns which, by kernel, as they come to run."""
    draws = random.Random(seed)
    chosen: dict[int, Any] = {}
    told: dict[str, str] = {}
    tune = autotuner.Autotuner.run

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        left = [chosen[id(self)]] if id(self) in chosen else list(self.configs)
        kernel = self.fn
        while not hasattr(kernel, "__name__") and hasattr(kernel, "fn"):
            kernel = kernel.fn
        while True:
            self.configs = [left.pop(draws.randrange(len(left)) if seed else 0)]
            try:
                answer = tune(self, *args, **kwargs)
            except too_large:
                if not left:
                    raise
                continue
            if id(self) not in chosen:
                chosen[id(self)] = self.configs[0]
                told[f"{getattr(kernel, '__name__', 'kernel')} {len(told)}"] = str(self.configs[0])
            return answer

    autotuner.Autotuner.run = run
    return told


def main(command: Sequence[str]) -> None:
    """The command. Raises EnvironmentProblem without a GPU, PyTorch or FLA, and what `save` raises."""
    options = parsed(command)
    module, names = FAMILIES[options.family]
    try:
        import fla
        import torch

        kernels = {who: getattr(importlib.import_module(module), name) for who, name in names.items()}
    except (ImportError, AttributeError) as error:
        raise EnvironmentProblem(f"{error}; hint: pip install torch fla-core, or kda_check.save() tensors of your own") from None
    if not torch.cuda.is_available():
        raise EnvironmentProblem("no GPU here; hint: run it where FLA's kernels run")
    if options.backward and "fla_chunk" not in kernels:
        raise EnvironmentProblem(f"FLA has no gradients of {options.family}; hint: leave out --backward")
    launches: dict[str, str] = {}
    if options.launch is not None:
        from triton.runtime import autotuner, errors

        launches = launched(autotuner, errors.OutOfResources, options.launch)
    arguments, expected = drawn(torch, options), {}
    with torch.no_grad():
        for who, kernel in kernels.items():
            o, state = kernel(**arguments)
            compute = KNOWN[module][names[who]].compute.get(str(o.dtype).rpartition(".")[2], options.dtype)
            expected[who] = {"o": o, "final_state": state, "compute": compute, "device": torch.cuda.get_device_name(),
                             "implementation": f"{names[who]}, fla {getattr(fla, '__version__', 'unknown')}"}  # fmt: skip
    loss: dict[str, Any] = {}
    if options.backward:
        words = KNOWN[module][names["fla_chunk"]].words
        loss, found = gradients(torch, kernels["fla_chunk"], words, arguments, options.seed)
        expected["fla_chunk"].update(found)
    about = {"torch": torch.__version__, "seed": options.seed, "launches": json.dumps(launches)}
    problem = KNOWN[module][names["fla_recurrent"]].problem(arguments)
    save(options.output, **problem, expected=expected, **loss, provenance=about)
    print(f"{options.output}: {', '.join(expected)}")
