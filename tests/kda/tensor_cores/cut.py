#!/usr/bin/env python3
"""Write vectors.bin from a checkout of MATLAB-tensor-core: cut.py CHECKOUT COUNT TARGET (README.md)."""
import struct
import sys

OLDER, NEWER = ["A100", "A2", "Ada"], ["H100", "H200", "B200"]


def operands(folder, name, gpu, form, count):
    with open(f"{folder}/{gpu}/{form}/{name}_{gpu}_{form}.txt") as lines:
        words = [int(word, 16) for _, line in zip(range(count), lines) for word in line.split()]
    if form == "tf32":
        return struct.pack(f"<{len(words)}I", *words)
    if form == "bf16":
        assert not any(word & 0xFFFF for word in words)
        return struct.pack(f"<{len(words)}H", *(word >> 16 for word in words))
    return fp16(words)


def fp16(words):
    floats = struct.unpack(f"<{len(words)}f", struct.pack(f"<{len(words)}I", *words))
    halves = struct.pack(f"<{len(words)}e", *floats)
    assert struct.unpack(f"<{len(words)}e", halves) == floats
    return halves


def sums(folder, name, gpu, form, kind, count):
    with open(f"{folder}/{gpu}/{form}/{name}_{gpu}_{kind}.txt") as lines:
        words = [int(line, 2) for _, line in zip(range(count), lines)]
    assert len(words) == count
    return fp16(words) if name == "d" and kind == "fp16" else struct.pack(f"<{count}I", *words)


def main():
    folder, count, target = sys.argv[1] + "/model_validation", int(sys.argv[2]), sys.argv[3]
    data = struct.pack("<I", count)
    for gpus, forms in ((OLDER, ["bf16", "fp16"]), (NEWER, ["bf16", "fp16"]), (OLDER + NEWER, ["tf32"])):
        for form in forms:
            for name in "ab":
                of_first = operands(folder, name, gpus[0], form, count)
                assert all(operands(folder, name, gpu, form, count) == of_first for gpu in gpus)
                data += of_first
    for gpu in OLDER + NEWER:
        for form in ["bf16", "fp16", "tf32"]:
            data += sums(folder, "c", gpu, form, "fp32", count) + sums(folder, "d", gpu, form, "fp32", count)
            if form == "fp16":
                data += sums(folder, "d", gpu, form, "fp16", count)
    with open(target, "wb") as file:
        file.write(data)


main()
