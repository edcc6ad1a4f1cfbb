"""Writes tensors of your own - PyTorch, JAX or numpy - as a fixture of kda-check (docs/fixture-format.md). Needs h5py.

    from export_fixture import save
    save("mine.h5", q=q, k=k, v=v, g=g, beta=beta, initial_state=h0,
         expected={"my_kernel": {"o": o, "final_state": ht, "compute": "bf16"}})

Then: kda-check show mine.h5 && kda-check run mine.h5
"""
import os
import sys

import h5py
import numpy as np

INPUTS = {"q": "BTHK", "k": "BTHK", "v": "BTJV", "g": "BTJK", "beta": "BTJ"}
FLAGS = ("qk_l2norm", "beta_sigmoid", "allow_neg_eigval", "state_v_first", "safe_gate")
ELEMENT_TYPES = ("float64", "float32", "float16", "bfloat16")


def stored(tensor, name):
    """(array, element type): bfloat16 as 16-bit integers. Takes torch tensors of any device, JAX arrays, numpy arrays,
    of ml_dtypes too; nothing is ever converted."""
    if hasattr(tensor, "detach"):  # PyTorch
        tensor = tensor.detach().cpu().contiguous()
        if str(tensor.dtype) == "torch.bfloat16":
            return tensor.view(sys.modules["torch"].int16).numpy().view(np.uint16), "bfloat16"
        return checked(tensor.numpy(), name)
    if not hasattr(tensor, "dtype"):
        raise TypeError(f"{name}: wanted a tensor, got {type(tensor).__name__}: its element type is part of the problem")
    return checked(np.asarray(tensor), name)


def checked(array, name):
    if array.dtype.name == "bfloat16" or array.dtype == np.dtype("V2"):  # V2: how numpy.savez stores bfloat16
        return np.ascontiguousarray(array).view(np.uint16), "bfloat16"
    if array.dtype.name not in ELEMENT_TYPES:
        raise TypeError(f"{name}: element type {array.dtype}; wanted float64, float32, float16 or bfloat16")
    return array, array.dtype.name


def extents(shapes, sequences):
    """The extents by letter. Raises ValueError where two tensors disagree."""
    found = {"N": sequences} if sequences is not None else {}
    for name, letters in INPUTS.items():
        shape = shapes[name]
        if len(shape) != len(letters):
            raise ValueError(f"{name}: shape {shape}; wanted {len(letters)} axes, {letters.replace('J', '[HV]')}")
        for letter, extent in zip(letters, shape):
            if found.setdefault(letter, extent) != extent:
                raise ValueError(f"{name}: shape {shape}; the extent of {letter.replace('J', 'HV')} is {found[letter]} elsewhere")
    found.setdefault("N", found["B"])
    return found


def check_shape(name, shape, letters, found):
    wanted = tuple(found[letter] for letter in letters)
    if tuple(shape) != wanted:
        raise ValueError(f"{name}: shape {tuple(shape)}; wanted {wanted}")


def put(group, name, array, element_type):
    dataset = group.create_dataset(name, data=array)
    if element_type == "bfloat16":
        dataset.attrs["dtype"] = "bfloat16"


def save(path, *, q, k, v, g, beta, A_log=None, dt_bias=None, initial_state=None, cu_seqlens=None, expected=None,
         do=None, dht=None, gate=None, lower_bound=None, scale=None, chunk_size=64, name=None, description="", provenance=None, **flags):
    """Writes one problem and what was answered, whole or not at all.

    Shapes: q, k [B,T,H,K]; v [B,T,HV,V]; g [B,T,HV,K]; beta [B,T,HV]; A_log [HV]; dt_bias [HV*K] or [HV,K];
    initial_state [N,HV,K,V], with state_v_first [N,HV,V,K]; cu_seqlens [N+1] integers, then B = 1.
    gate: "none" (g is the natural log of the decay), "softplus" or "lower_bound"; without it "none", or what A_log and
    lower_bound say. scale: 1/sqrt(K) without. flags: qk_l2norm, beta_sigmoid, allow_neg_eigval, state_v_first, safe_gate.
    expected: {who: {"o": ..., "final_state": ..., "compute": "bf16", "implementation": ..., "device": ...}}; compute is
    the precision of the operands of matrix products (fp64, fp32, tf32, bf16, fp16). Say it: limits follow from it. Without
    it the element type of q, k and v is assumed, or of o where that is more precise, and reports say so.
    do, dht: gradients of a loss with respect to o and final_state; then expected may have the gradients of the inputs
    too: dq dk dv dg dbeta dinitial_state dA_log ddt_bias, shaped like those.
    """
    unknown = set(flags) - set(FLAGS)
    if unknown:
        raise TypeError(f"no option {sorted(unknown)}; there are {', '.join(FLAGS)}")
    inputs = {"q": q, "k": k, "v": v, "g": g, "beta": beta, "A_log": A_log, "dt_bias": dt_bias, "initial_state": initial_state,
              "do": do, "dht": dht}
    inputs = {key: stored(tensor, key) for key, tensor in inputs.items() if tensor is not None}
    offsets = None if cu_seqlens is None else np.asarray(getattr(cu_seqlens, "tolist", lambda: cu_seqlens)(), np.int64)
    found = extents({key: array.shape for key, (array, _) in inputs.items()}, None if offsets is None else len(offsets) - 1)
    state = "NJVK" if flags.get("state_v_first") else "NJKV"
    for key, letters in {"initial_state": state, "do": "BTJV", "dht": state}.items():
        if key in inputs:
            check_shape(key, inputs[key][0].shape, letters, found)
    gate = gate or ("lower_bound" if lower_bound is not None else "softplus" if A_log is not None else "none")
    temporary = f"{os.fspath(path)}.{os.getpid()}.tmp"
    try:
        with h5py.File(temporary, "w") as file:
            file.attrs.update({"format": "kda-fixture", "format_version": 1, "description": description,
                               "name": name or os.path.splitext(os.path.basename(os.fspath(path)))[0]})
            group = file.create_group("inputs")
            for key, (array, element_type) in inputs.items():
                put(group, key, array, element_type)
            if offsets is not None:
                group["cu_seqlens"] = offsets
            options = file.create_group("options")
            options.attrs.update({"gate": gate, "chunk_size": chunk_size, **{flag: int(flags.get(flag, 0)) for flag in FLAGS}})
            options.attrs["scale"] = float(found["K"]) ** -0.5 if scale is None else float(scale)
            if lower_bound is not None:
                options.attrs["lower_bound"] = float(lower_bound)
            for who, answer in (expected or {}).items():
                put_answer(file.create_group(f"expected/{who}"), who, answer, state, found)
            file.create_group("provenance").attrs.update({key: value if isinstance(value, (int, float)) else str(value)
                                                           for key, value in (provenance or {}).items()})
        os.replace(temporary, path)
    finally:
        if os.path.exists(temporary):
            os.remove(temporary)


def put_answer(group, who, answer, state, found):
    """`answer` without tensors that are None."""
    answer = {key: value for key, value in answer.items() if value is not None}
    if "o" not in answer:
        raise ValueError(f"expected {who}: no o")
    found = {**found, "P": found["J"] * found["K"]}
    tensors = {"o": "BTJV", "final_state": state, "dq": "BTHK", "dk": "BTHK", "dv": "BTJV", "dg": "BTJK", "dbeta": "BTJ",
               "dinitial_state": state, "dA_log": "J", "ddt_bias": "P"}
    for key, letters in tensors.items():
        if key in answer:
            array, element_type = stored(answer.pop(key), f"expected/{who}/{key}")
            if key == "ddt_bias":
                array = array.reshape(-1)
            check_shape(f"expected/{who}/{key}", array.shape, letters, found)
            put(group, key, array, element_type)
    unknown = set(answer) - {"compute", "implementation", "device"}
    if unknown:
        raise ValueError(f"expected {who}: nothing called {sorted(unknown)}")
    group.attrs.update(answer)
