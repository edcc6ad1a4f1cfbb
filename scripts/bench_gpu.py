#!/usr/bin/env python3
"""Times kda-check's GPU variants beside FLA's kernels, in one run on one device.

Needs a GPU, PyTorch, Triton and FLA (pip install fla-core). FLA tunes its launch configurations first, for
minutes; --configs N lets it try N of each kernel's only. Every figure is the median of CUDA events, after a
warm-up; FLA's include what its Python does between kernels, which matters for small shapes. Clocks drift, so
ours and FLA's take turns. In fp32 FLA multiplies in TF32.

    scripts/bench_gpu.py                                   B=1 T=8192 H=64 K=V=128, bf16
    scripts/bench_gpu.py --kda-check build/gpu/bin/kda-check -T 2048 --dtype bf16,fp32
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys


def parsed():
    root = pathlib.Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kda-check", default=str(root / "build/release/bin/kda-check"), metavar="PROGRAM")
    parser.add_argument("-B", type=int, default=1)
    parser.add_argument("-T", type=int, default=8192)
    parser.add_argument("-H", type=int, default=64)
    parser.add_argument("-K", type=int, default=128)
    parser.add_argument("-V", type=int, default=128)
    parser.add_argument("--dtype", default="bf16", help="bf16, fp16, fp32; several with commas")
    parser.add_argument("--rounds", type=int, default=3, help="turns that ours and FLA's take")
    parser.add_argument("--configs", type=int, default=0, help="launch configurations FLA may try; 0: all")
    return parser.parse_args()


def keep_few_configs(count):
    """At most `count` configurations, spread over those there are, for every kernel defined from now on."""
    import triton

    whole = triton.autotune

    def autotune(configs, *arguments, **options):
        if count and len(configs) > count:
            configs = [configs[i * len(configs) // count] for i in range(count)]
        return whole(configs, *arguments, **options)

    triton.autotune = autotune


def ours(options, dtype):
    """Rows of `kda-check bench`, by variant."""
    shape = [f"-{name}={getattr(options, name)}" for name in "BTHKV"]
    command = [options.kda_check, "bench", "--variant", "gpu-recurrent,gpu-chunk", "--dtype", dtype, "--json",
               *[word for part in shape for word in part.split("=")]]
    finished = subprocess.run(command, capture_output=True, text=True)
    if finished.returncode != 0:
        print(finished.stderr.strip() or f"{' '.join(command)}: failed", file=sys.stderr)
        sys.exit(finished.returncode)
    return {row["variant"]: row for row in json.loads(finished.stdout)["rows"]}


def fla_problem(options, dtype):
    import torch

    generator = torch.Generator("cuda").manual_seed(1)
    kind = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[dtype]

    def uniform(low, high, *shape):
        return torch.empty(*shape, device="cuda").uniform_(low, high, generator=generator)

    b, t, h, k, v = options.B, options.T, options.H, options.K, options.V
    unit = (3 / k) ** 0.5
    return dict(q=uniform(-unit, unit, b, t, h, k).to(kind), k=uniform(-unit, unit, b, t, h, k).to(kind),
                v=uniform(-1.7, 1.7, b, t, h, v).to(kind), g=uniform(-0.2, 0, b, t, h, k),
                beta=uniform(0.1, 0.9, b, t, h), output_final_state=True)


def milliseconds(kernel, problem, repeats=7):
    import torch

    for _ in range(3):
        kernel(**problem)
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        kernel(**problem)
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def main():
    options = parsed()
    keep_few_configs(options.configs)
    import torch
    from fla.ops.kda import chunk_kda, fused_recurrent_kda

    def chunk(**problem):
        return chunk_kda(**problem, safe_gate=True)

    beside = {"gpu-recurrent": ("fused_recurrent_kda", fused_recurrent_kda), "gpu-chunk": ("chunk_kda", chunk)}
    print(f"B={options.B} T={options.T} H={options.H} K={options.K} V={options.V}  {torch.cuda.get_device_name()}  "
          f"FLA may try {options.configs or 'all'} launch configurations")
    print(f"{'variant':<14} {'dtype':<6} {'ms':>8} {'floor ms':>9} {'x floor':>8}  "
          f"{'FLA':<20} {'ms':>8} {'FLA / ours':>11}")
    with torch.no_grad():
        for dtype in options.dtype.split(","):
            mine, theirs, rows = {}, {}, {}
            for _ in range(options.rounds):
                problem = fla_problem(options, dtype)
                for variant, (_, kernel) in beside.items():
                    theirs.setdefault(variant, []).append(milliseconds(kernel, problem))
                del problem
                torch.cuda.empty_cache()
                rows = ours(options, dtype)
                for variant in beside:
                    mine.setdefault(variant, []).append(rows[variant]["ms"])
            for variant, (name, _) in beside.items():
                a, b = statistics.median(mine[variant]), statistics.median(theirs[variant])
                floor = rows[variant]["floor_ms"]
                print(f"{variant:<14} {dtype:<6} {a:>8.2f} {floor:>9.3f} {a / floor:>8.1f}  "
                      f"{name:<20} {b:>8.2f} {b / a:>11.2f}")


if __name__ == "__main__":
    main()
