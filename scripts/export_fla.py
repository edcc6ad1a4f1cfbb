#!/usr/bin/env python3
"""Writes what goes into FLA's KDA kernels, and what comes out, as a fixture of kda-check. Needs h5py.

In your program, with the words that chunk_kda takes:

    from export_fla import save
    o, state = chunk_kda(**arguments, output_final_state=True)
    save("mine.h5", arguments, expected={"fla_chunk": {"o": o, "final_state": state}})

As a command it runs FLA's kernels itself, on inputs drawn at random; that needs a GPU, PyTorch and FLA (fla-core):

    scripts/export_fla.py -o fla.h5 -T 128 -H 2 --dtype bf16 --backward
"""
import argparse
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import export_fixture

# Words of chunk_kda and fused_recurrent_kda, and those of the format.
FLAGS = {"use_qk_l2norm_in_kernel": "qk_l2norm", "use_beta_sigmoid_in_kernel": "beta_sigmoid",
         "allow_neg_eigval": "allow_neg_eigval", "safe_gate": "safe_gate", "state_v_first": "state_v_first",
         "transpose_state_layout": "state_v_first"}
SAME = ("q", "k", "v", "g", "beta", "initial_state", "cu_seqlens", "scale", "chunk_size")
NO_MATHEMATICS = ("output_final_state", "disable_recompute", "return_intermediate_states", "cu_seqlens_cpu", "use_graph",
                  "max_num_seqs")


def save(path, arguments, expected=None, **more):
    """`arguments`: a dictionary of the words of chunk_kda. `expected` and `more` as for export_fixture.save. A word that
    changes the mathematics and has no place in the format raises TypeError."""
    words = dict(arguments)
    for word in NO_MATHEMATICS:
        words.pop(word, None)
    problem = {word: words.pop(word) for word in SAME if words.get(word) is not None}
    for word, flag in FLAGS.items():
        if words.pop(word, False):
            problem[flag] = True
    in_kernel = words.pop("use_gate_in_kernel", False)
    gate = {word: words.pop(word, None) for word in ("A_log", "dt_bias", "lower_bound")}
    if in_kernel:
        problem.update(gate, gate="softplus" if gate["lower_bound"] is None else "lower_bound")
    left = sorted(word for word, value in words.items() if value is not None)
    if left:
        raise TypeError(f"no place in a fixture for {', '.join(left)}")
    export_fixture.save(path, expected=expected, **problem, **more)


def parsed():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", required=True, metavar="FILE.h5")
    for axis, extent in {"B": 1, "T": 128, "H": 2, "K": 128, "V": 128}.items():
        parser.add_argument(f"-{axis}", type=int, default=extent)
    parser.add_argument("--dtype", choices=("fp32", "bf16", "fp16"), default="bf16")
    parser.add_argument("--backward", action="store_true", help="record do, dht and chunk_kda's gradients too")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def drawn(torch, options):
    """Inputs that FLA's own layers could give: unit keys and queries, gates in (-1, 0)."""
    generator = torch.Generator("cuda").manual_seed(options.seed)
    kind = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[options.dtype]
    b, t, h, k, v = options.B, options.T, options.H, options.K, options.V

    def normal(*shape):
        return torch.randn(*shape, device="cuda", generator=generator)

    unit = torch.nn.functional.normalize
    return dict(q=unit(normal(b, t, h, k), dim=-1).to(kind), k=unit(normal(b, t, h, k), dim=-1).to(kind),
                v=normal(b, t, h, v).to(kind), g=-torch.sigmoid(normal(b, t, h, k)), beta=torch.sigmoid(normal(b, t, h)),
                initial_state=0.1 * normal(b, h, k, v), output_final_state=True)


def gradients(torch, kernel, arguments, seed):
    """do and dht, drawn, and what the kernel's backward pass makes of them, by the names of the format."""
    inputs = {name: value.detach().requires_grad_() for name, value in arguments.items()
              if torch.is_tensor(value) and value.is_floating_point()}
    outputs = kernel(**{**arguments, **inputs})
    generator = torch.Generator("cuda").manual_seed(seed + 1)
    seeds = [torch.randn(x.shape, device="cuda", generator=generator).to(x.dtype) for x in outputs]
    found = torch.autograd.grad(outputs, list(inputs.values()), seeds)
    return {"do": seeds[0], "dht": seeds[1]}, {f"d{name}": value for name, value in zip(inputs, found)}


def main():
    options = parsed()
    try:
        import fla
        import torch
        from fla.ops.kda import chunk_kda, fused_recurrent_kda
    except ImportError as error:
        sys.exit(f"export_fla: {error}; hint: pip install torch fla-core, or save() tensors of your own")
    if not torch.cuda.is_available():
        sys.exit("export_fla: no GPU here; hint: run it where FLA's kernels run")
    arguments, expected = drawn(torch, options), {}
    with torch.no_grad():
        for who, kernel in {"fla_chunk": chunk_kda, "fla_recurrent": fused_recurrent_kda}.items():
            o, state = kernel(**arguments)
            compute = "fp32" if who == "fla_recurrent" else "tf32" if options.dtype == "fp32" else options.dtype
            expected[who] = {"o": o, "final_state": state, "compute": compute, "device": torch.cuda.get_device_name(),
                             "implementation": f"{kernel.__name__}, fla {getattr(fla, '__version__', 'unknown')}"}
    loss = {}
    if options.backward:
        loss, found = gradients(torch, chunk_kda, arguments, options.seed)
        expected["fla_chunk"].update(found)
    save(options.output, arguments, expected, **loss, provenance={"torch": torch.__version__, "seed": options.seed})
    print(f"{options.output}: {', '.join(expected)}")


if __name__ == "__main__":
    main()
