"""python -m kda_check time: how long a kernel of somebody else takes on a problem, and what it answers. For `bench --against`."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Sequence
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
WARM_UP = 3


def parsed(words: Sequence[str]) -> argparse.Namespace:
    about = "Times a kernel on a GPU, for `kda-check bench --against`."
    parser = argparse.ArgumentParser("python -m kda_check time", description=about)
    parser.add_argument("kernel", choices=tuple(KERNELS))
    parser.add_argument("problem", help="a fixture; with do or dht the gradients are timed")
    parser.add_argument("answer", help="a fixture with the answer and, under provenance, the seconds of each run")
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


def seconds(torch: Any, run: Callable[[], Any], repeats: int) -> tuple[list[float], str]:
    """Of each run, by the clock of the device, and how it was launched. As a graph where it can be captured: what Python
    takes between launches is no kernel's time. Between runs the cache is written over."""
    for _ in range(WARM_UP):
        run()
    torch.cuda.synchronize()
    how = "as a CUDA graph"
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
            run()
        graph.replay()
        run = graph.replay
    except RuntimeError:  # it asks the device while it runs
        torch.cuda.synchronize()
        how = "launch by launch"
    cache = torch.empty(2 * torch.cuda.get_device_properties(0).L2_cache_size, dtype=torch.int8, device="cuda")
    found = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        cache.zero_()
        start.record()
        run()
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end) * 1e-3)
    return found, how


def timed(torch: Any, kernel: Any, signature: Any, problem: Fixture, repeats: int) -> tuple[Words, tuple[list[float], str]]:
    """What the kernel answers, gradients where there is a loss, and seconds with how. Raises Unsupported."""
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
            return call({}), seconds(torch, lambda: call({}), repeats)
    leaves = {key: x.requires_grad_() for key, x in inputs.items() if x.is_floating_point()}
    answer = call(leaves)
    outputs = {key: answer[key] for key, gradient in LOSS.items() if gradient in loss}
    starts = [loss[LOSS[key]].to(x.dtype) for key, x in outputs.items()]

    def backward() -> Any:
        return torch.autograd.grad(list(outputs.values()), list(leaves.values()), starts, retain_graph=True)

    found = {f"d{key}": x for key, x in zip(leaves, backward())}
    return {**{key: x.detach() for key, x in answer.items()}, **found}, seconds(torch, backward, repeats)


def main(command: Sequence[str]) -> None:
    """The command. Raises EnvironmentProblem without a GPU, PyTorch or the kernel, and where it cannot take the problem."""
    options = parsed(command)
    module, name = KERNELS[options.kernel]
    try:
        import torch

        if options.configs:
            keep_few_configs(options.configs)
        package = importlib.import_module(module.partition(".")[0])
        kernel = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise EnvironmentProblem(f"{error}; hint: install what has {module}.{name}") from None
    if not torch.cuda.is_available():
        raise EnvironmentProblem("no GPU here; hint: run it where the kernel runs")
    signature, problem = KNOWN[module][name], Fixture.read(options.problem)
    try:
        # All of it on one stream, not the default one, which cannot be captured: gradients are computed on that of their
        # forward pass.
        cuda: Any = torch.cuda
        with cuda.stream(cuda.Stream()):
            answer, (times, how) = timed(torch, kernel, signature, problem, options.repeats)
            cuda.synchronize()
    except Unsupported as error:
        raise EnvironmentProblem(str(error)) from None
    implementation = f"{name}, {module.partition('.')[0]} {getattr(package, '__version__', 'of no version')}, {how}"
    about = {**signature.about(problem.inputs["q"].dtype), "implementation": implementation,
             "device": torch.cuda.get_device_name()}  # fmt: skip
    problem.add(options.kernel, {**answer, **about})
    problem.provenance = {"seconds": " ".join(f"{each:.9f}" for each in times)}
    try:
        problem.write(options.answer)
    except OSError as failure:
        raise EnvironmentProblem(f"cannot write the file: {failure.strerror} ({options.answer})") from None
