#!/usr/bin/env python3
"""Writes the files of this folder: one small problem in every way a fixture may be stored. All hold the same numbers,
which bfloat16 can represent. Run by hand (needs h5py)."""
import os

import h5py
import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
SHAPES = {"q": (1, 3, 1, 4), "k": (1, 3, 1, 4), "v": (1, 3, 1, 5), "g": (1, 3, 1, 4), "beta": (1, 3, 1)}


def values(name):
    """Element i of tensor number n is -(i + n + 1) / 64."""
    shape = SHAPES[name]
    return -(np.arange(np.prod(shape)) + list(SHAPES).index(name) + 1).reshape(shape) / 64.0


def bfloat16_type(order):
    datatype = h5py.h5t.IEEE_F32LE.copy()
    datatype.set_fields(15, 7, 8, 0, 7)
    datatype.set_size(2)
    datatype.set_ebias(127)
    datatype.set_order(order)
    return datatype


def bfloat16_bits(array):
    return (array.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def write(name, put, options=True, more=lambda file: None):
    with h5py.File(os.path.join(HERE, name + ".h5"), "w") as file:
        file.attrs["format"] = "kda-fixture"
        file.attrs["format_version"] = 1
        file.attrs["name"] = "tiny"
        file.create_group("inputs")
        for tensor in SHAPES:
            put(file["inputs"], tensor, values(tensor))
        if options:
            group = file.create_group("options")
            group.attrs["gate"] = "none"
            group.attrs["scale"] = 0.5
        more(file)


def numpy_type(dtype, **storage):
    return lambda group, name, array: group.create_dataset(name, data=array.astype(dtype), **storage)


def bfloat16(order):
    def put(group, name, array):
        space = h5py.h5s.create_simple(array.shape)
        dataset = h5py.h5d.create(group.id, name.encode(), bfloat16_type(order), space)
        h5py.Dataset(dataset)[...] = array.astype(np.float32)
    return put


def tagged(dtype):
    def put(group, name, array):
        dataset = group.create_dataset(name, data=bfloat16_bits(array).astype(dtype, casting="unsafe"))
        dataset.attrs["dtype"] = "bfloat16"
    return put


def odd_attributes(file):
    """Booleans as h5py writes them, variable and fixed strings, one-element arrays."""
    options = file["options"]
    options.attrs["qk_l2norm"] = np.bool_(True)
    options.attrs["beta_sigmoid"] = np.array([1], np.int32)
    options.attrs["chunk_size"] = np.uint8(32)
    options.attrs["gate"] = np.bytes_("none")
    file.attrs.create("name", "tiny", dtype=h5py.string_dtype("utf-8", 12))


def strangers(file):
    file["inputs/mask"] = np.zeros(3)
    file["expected/somebody/o"] = np.zeros(SHAPES["v"])
    file["expected/somebody/logits"] = np.zeros(3)
    file["expected/readme"] = "not a group"
    file["notes"] = "hello"
    file["options"].attrs["colour"] = "blue"
    file["provenance/anything"] = 1


def main():
    for name, dtype in (("fp64", "<f8"), ("fp32", "<f4"), ("fp16", "<f2"), ("fp64_big_endian", ">f8"),
                        ("fp32_big_endian", ">f4"), ("fp16_big_endian", ">f2")):
        write(name, numpy_type(dtype))
    write("bf16", bfloat16(h5py.h5t.ORDER_LE))
    write("bf16_big_endian", bfloat16(h5py.h5t.ORDER_BE))
    for name, dtype in (("bf16_uint16", "<u2"), ("bf16_int16", "<i2"), ("bf16_uint16_big_endian", ">u2"), ("bf16_int16_big_endian", ">i2")):
        write(name, tagged(dtype))
    write("chunked", lambda group, name, array: numpy_type("<f4", chunks=(1, 2) + array.shape[2:])(group, name, array))
    write("deflated", numpy_type("<f4", compression="gzip", shuffle=True, fletcher32=True))
    write("no_options", numpy_type("<f4"), options=False)
    write("odd_attributes", numpy_type("<f4"), more=odd_attributes)
    write("strangers", numpy_type("<f4"), more=strangers)


if __name__ == "__main__":
    main()
