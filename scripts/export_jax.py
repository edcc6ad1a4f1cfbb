#!/usr/bin/env python3
"""Writes what goes into a KDA kernel in JAX, and what comes out, as a fixture of kda-check. Needs h5py.

In your program, `save` of export_fixture takes JAX arrays as they are; `record` calls the kernel too:

    from export_jax import record
    record("mine.h5", my_kernel, q=q, k=k, v=v, g=g, beta=beta)      # my_kernel(q=..., ...) gives o, or (o, final_state)

As a command it turns the arrays of a .npz file into a fixture (bfloat16 included), for programs that cannot have h5py:

    np.savez("mine.npz", q=q, k=k, v=v, g=g, beta=beta, **{"my_kernel/o": o, "my_kernel/final_state": state})
    scripts/export_jax.py mine.npz -o mine.h5 --compute bf16
"""
import argparse
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import export_fixture
from export_fixture import save

INPUTS = ("q", "k", "v", "g", "beta", "A_log", "dt_bias", "initial_state", "cu_seqlens")


def record(path, kernel, who=None, compute=None, **words):
    """Calls kernel(**inputs) and saves both. Words that are not inputs go to export_fixture.save alone. Returns what the
    kernel gave."""
    inputs = {word: words.pop(word) for word in INPUTS if words.get(word) is not None}
    answer = kernel(**inputs)
    o, state = answer if isinstance(answer, (tuple, list)) else (answer, None)
    recorded = {"o": o, "final_state": state, "compute": compute, "device": device_of(o)}
    save(path, **inputs, expected={who or getattr(kernel, "__name__", "kernel"): recorded}, **words)
    return answer


def device_of(array):
    """The kind of device a JAX array is on; None for others."""
    devices = getattr(array, "devices", None)
    return next(iter(devices())).device_kind if callable(devices) else None


def check_npz(source):
    """Raises ValueError for a file that is no .npz. numpy.load would advise to unpickle it, which runs what is in it."""
    with open(source, "rb") as file:
        first = file.read(512)
    then = "then save(path, q=..., k=...) of export_fixture.py"
    if first.startswith(b"PK\x03\x04") and b"data.pkl" not in first:
        return
    if first.startswith((b"PK\x03\x04", b"\x80")):
        raise ValueError(f"{source}: a PyTorch file: tensors = torch.load(file, weights_only=True), {then}")
    if first[8:10] == b'{"':
        raise ValueError(f"{source}: safetensors: tensors = safetensors.torch.load_file(file), {then}")
    if first.startswith(b"\x93NUMPY"):
        raise ValueError(f"{source}: one array (.npy): a problem has five at least; numpy.load each, {then}")
    raise ValueError(f"{source}: no .npz file; write one with numpy.savez")


def converted(source, target, compute=None, **words):
    """The arrays of a .npz file: inputs by name, answers as WHO/o and WHO/final_state."""
    import numpy as np

    check_npz(source)
    inputs, expected = {}, {}
    with np.load(source) as arrays:
        for key in arrays.files:
            who, slash, tensor = key.rpartition("/")
            if slash:
                expected.setdefault(who, {"compute": compute})[tensor] = arrays[key]
            elif key in INPUTS:
                inputs[key] = arrays[key]
            else:
                raise ValueError(f"{source}: nothing called '{key}'; wanted {', '.join(INPUTS)} or WHO/o, WHO/final_state")
    missing = [key for key in INPUTS[:5] if key not in inputs]
    if missing:
        raise ValueError(f"{source}: no {', '.join(missing)}")
    save(target, **inputs, expected=expected, **words)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", metavar="FILE.npz")
    parser.add_argument("-o", "--output", required=True, metavar="FILE.h5")
    parser.add_argument("--compute", choices=("fp64", "fp32", "tf32", "bf16", "fp16"), help="of the recorded kernels' products")
    parser.add_argument("--gate", choices=("none", "softplus", "lower_bound"))
    parser.add_argument("--lower-bound", type=float)
    parser.add_argument("--scale", type=float)
    parser.add_argument("--chunk-size", type=int, default=64)
    for flag in export_fixture.FLAGS:
        parser.add_argument("--" + flag.replace("_", "-"), action="store_true")
    options = vars(parser.parse_args())
    source, target = options.pop("source"), options.pop("output")
    try:
        converted(source, target, **options)
    except (OSError, TypeError, ValueError) as error:
        sys.exit(f"export_jax: {error}")
    print(target)


if __name__ == "__main__":
    main()
