"""python -m kda_check time: how long a kernel of somebody else takes on a problem, and what it answers. For `bench --against`."""

from __future__ import annotations

import argparse
import importlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ._program import EnvironmentProblem
from .fixture import LOSS, Fixture
from .signatures import KNOWN, Unsupported, Words

# What `bench --against` calls a kernel -> the module that has it, and its name there.
KERNELS = {
    "fla": ("fla.ops.kda", "chunk_kda"),
    "fla-recurrent": ("fla.ops.kda", "fused_recurrent_kda"),
    "flash-kda": ("flash_kda", "fwd"),
}
# Where a call on a pool of states (docs/serving.md) is another function's: that one.
ON_POOLS = {"fla-recurrent": ("fla.ops.kda.fused_recurrent", "fused_recurrent_kda_fwd")}
WARM_UP = 3


def parsed(words: Sequence[str]) -> argparse.Namespace:
    about = "Times a kernel on a GPU, for `kda-check bench --against`."
    parser = argparse.ArgumentParser("python -m kda_check time", description=about)
    parser.add_argument("kernel", choices=tuple(KERNELS))
    parser.add_argument("problem", help="a fixture; with do or dht the gradients are timed")
    parser.add_argument("answer", help="a fixture with the answer and, under provenance, the seconds of each run")
    about = "so many runs behind each other on the same memory are timed, as a graph and launch by launch"
    parser.add_argument("--together", type=int, default=1, help=about)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--configs", type=int, default=0, help="launch configurations that each kernel may try; 0: all")
    return parser.parse_args(words)


def keep_few_configs(count: int) -> None:
    """At most `count` configurations, spread over those there are, for every Triton kernel defined from now on."""
    import triton

    whole = triton.autotune

    def autotune(configs: Sequence[Any], *arguments: Any, **options: Any) -> Any:
        some = [configs[i * len(configs) // count] for i in range(count)] if len(configs) > count else configs
        return whole(some, *arguments, **options)

    triton.autotune = autotune


def imported(module: str, name: str) -> tuple[Any, Any]:
    """The package of a kernel, and the kernel. Raises ImportError, AttributeError."""
    # FLA hands calls to kernels of others where these are installed; those are timed under their own names.
    os.environ.setdefault("FLA_DISABLE_BACKEND_DISPATCH", "1")
    return importlib.import_module(module.partition(".")[0]), getattr(importlib.import_module(module), name)


def captured(torch: Any, run: Callable[[], Any]) -> Callable[[], Any] | None:
    """A CUDA graph of it: what Python takes between launches is no kernel's time. None: it asks the device while it runs."""
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
            run()
    except RuntimeError:
        torch.cuda.synchronize()
        return None
    replay: Callable[[], Any] = graph.replay
    return replay


def measured(torch: Any, run: Callable[[], Any], repeats: int, is_alone: bool) -> list[float]:
    """Seconds of each run, by the clock of the device. Before a run alone the cache is written over."""
    size = 2 * torch.cuda.get_device_properties(0).L2_cache_size if is_alone else 0
    cache = torch.empty(size, dtype=torch.int8, device="cuda")
    found = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        cache.zero_()
        start.record()
        run()
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end) * 1e-3)
    return found


@dataclass(frozen=True)
class Times:
    """Seconds of a run: as a graph where there can be one; launch by launch where there is none, and where many runs are
    timed together."""

    graph: list[float] | None
    launched: list[float] | None

    def __str__(self) -> str:
        return "launch by launch" if self.graph is None else "as a CUDA graph"

    def provenance(self) -> dict[str, str]:
        times = {"seconds": self.launched} if self.graph is None else {"seconds": self.graph, "launched": self.launched}
        return {key: " ".join(f"{each:.9f}" for each in found) for key, found in times.items() if found is not None}


def seconds(torch: Any, run: Callable[[], Any], options: argparse.Namespace) -> Times:
    for _ in range(WARM_UP):
        run()
    torch.cuda.synchronize()

    def run_all() -> None:
        for _ in range(options.together):
            run()

    def each_of(body: Callable[[], Any]) -> list[float]:
        body()
        return [each / options.together for each in measured(torch, body, options.repeats, options.together == 1)]

    replay = captured(torch, run_all)
    return Times(replay and each_of(replay), each_of(run_all) if replay is None or options.together > 1 else None)


def timed(torch: Any, kernel: Any, signature: Any, problem: Fixture, options: argparse.Namespace) -> tuple[Words, Times]:
    """What the kernel answers, gradients where there is a loss, and how long it takes. Raises Unsupported."""
    inputs = {key: tensor.torch("cuda") for key, tensor in problem.inputs.items()}
    loss = {key: inputs.pop(key) for key in LOSS.values() if key in inputs}
    shapes = {key: problem.shape_of(key) for key in LOSS}
    empty = {"o": torch.empty(shapes["o"], dtype=inputs["v"].dtype, device="cuda"),
             "final_state": torch.empty(shapes["final_state"], dtype=torch.float32, device="cuda")}  # fmt: skip

    def call(more: Words) -> Words:
        answer: Words = signature.call(kernel, {**inputs, **more, **problem.options}, empty)
        return answer

    if not loss:
        with torch.no_grad():
            answer = {key: x.clone() for key, x in call({}).items()}  # a pool is written to again
            return answer, seconds(torch, lambda: call({}), options)
    leaves = {key: x.requires_grad_() for key, x in inputs.items() if x.is_floating_point()}
    answer = call(leaves)
    outputs = {key: answer[key] for key, gradient in LOSS.items() if gradient in loss}
    starts = [loss[LOSS[key]].to(x.dtype) for key, x in outputs.items()]

    def backward() -> Any:
        return torch.autograd.grad(list(outputs.values()), list(leaves.values()), starts, retain_graph=True)

    found = {f"d{key}": x for key, x in zip(leaves, backward())}
    return {**{key: x.detach() for key, x in answer.items()}, **found}, seconds(torch, backward, options)


def main(command: Sequence[str]) -> None:
    """The command. Raises InputError for a problem that cannot be read; EnvironmentProblem without a GPU, PyTorch or the
    kernel, and where it cannot take the problem."""
    options = parsed(command)
    problem = Fixture.read(options.problem)
    kernels = {**KERNELS, **ON_POOLS} if "state_pool" in problem.inputs else KERNELS
    module, name = kernels[options.kernel]
    try:
        import torch

        if options.configs:
            keep_few_configs(options.configs)
        package, kernel = imported(module, name)
    except (ImportError, AttributeError) as error:
        raise EnvironmentProblem(f"{error}; hint: install what has {module}.{name}") from None
    if not torch.cuda.is_available():
        raise EnvironmentProblem("no GPU here; hint: run it where the kernel runs")
    signature = KNOWN[module][name]
    try:
        # All of it on one stream, not the default one, which cannot be captured: gradients are computed on that of their
        # forward pass.
        cuda: Any = torch.cuda
        with cuda.stream(cuda.Stream()):
            answer, times = timed(torch, kernel, signature, problem, options)
            cuda.synchronize()
    except Unsupported as error:
        raise EnvironmentProblem(str(error)) from None
    implementation = f"{name}, {module.partition('.')[0]} {getattr(package, '__version__', 'of no version')}, {times}"
    about = {**signature.about(problem.inputs["q"].dtype), "implementation": implementation,
             "device": torch.cuda.get_device_name()}  # fmt: skip
    problem.add(options.kernel, {**answer, **about})
    problem.provenance = {**times.provenance()}
    problem.write(options.answer)
