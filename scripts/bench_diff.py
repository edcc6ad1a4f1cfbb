#!/usr/bin/env python3
"""Speed and memory of `kda-check diff` beside `cat`, on two fixtures of 2 GiB.

Writes a regime with `kda-check make --compression 0`, copies it and alters one bit in a few places, reads both
once, then runs `cat A B > /dev/null` and `kda-check diff A B` in turns. The page cache must hold both files.

    scripts/bench_diff.py build/release/bin/kda-check [--gib 2] [--runs 3] [--dtype fp32] [--folder DIR]
"""
import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HEADS, WIDTH = 16, 128
ELEMENT_BYTES = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--gib", type=float, default=2, help="size of each file")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--dtype", choices=ELEMENT_BYTES, default="fp32")
    parser.add_argument("--folder", help="where the files are written (default: the temporary folder)")
    return parser.parse_args()


def write_files(program, folder, gib, dtype):
    """Two fixtures without compression; the second differs in a bit of 16 elements."""
    token = ELEMENT_BYTES[dtype] * HEADS * (4 * WIDTH + 1)  # q k v g beta
    tokens = int(gib * 2**30) // token | 1  # odd: no multiple of any block
    first, second = os.path.join(folder, "a.h5"), os.path.join(folder, "b.h5")
    subprocess.run([program, "make", f"control:T={tokens},H={HEADS},dtype={dtype}", "--compression", "0",
                    "--memory-limit", "1024G", "-o", first], check=True, stdout=subprocess.DEVNULL)
    shutil.copyfile(first, second)
    size = os.path.getsize(second)
    with open(second, "r+b") as file:
        for part in range(16):
            offset = (size // 17 * (part + 1)) // 8 * 8
            file.seek(offset)
            byte = file.read(1)[0]
            file.seek(offset)
            file.write(bytes([byte ^ 1]))  # the last bit of an element, which stays finite
    return first, second


def timed(command):
    """Wall-clock seconds, exit status, processor seconds, and the largest resident set in bytes: that of the
    program or of one of its readers."""
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - begin
    return seconds, os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def main():
    wanted = arguments()
    with tempfile.TemporaryDirectory(dir=wanted.folder) as folder:
        first, second = write_files(wanted.program, folder, wanted.gib, wanted.dtype)
        bytes_read = os.path.getsize(first) + os.path.getsize(second)
        print(f"two {wanted.dtype} fixtures, {bytes_read / 2**30:.2f} GiB together")
        cat, diff = ["cat", first, second], [wanted.program, "diff", first, second]
        timed(cat)  # into the page cache
        ratios, peak = [], 0
        for _ in range(wanted.runs):
            cat_seconds, _, _, _ = timed(cat)
            diff_seconds, status, processor, memory = timed(diff)
            if status != 1:
                sys.exit(f"diff left with status {status}; wanted 1: 16 bits differ")
            peak = max(peak, memory)
            ratios.append(cat_seconds / diff_seconds)
            print(f"cat {cat_seconds:.2f} s   diff {diff_seconds:.2f} s, {processor:.2f} s of processor time   "
                  f"{bytes_read / 2**30 / diff_seconds:.1f} GiB/s   speed over cat {ratios[-1]:.2f}")
        print(f"median of speed over cat {statistics.median(ratios):.2f} (wanted >= 0.5)   "
              f"peak memory {peak / 2**20:.0f} MiB (wanted <= 256)")
        if statistics.median(ratios) < 0.5 or peak > 256 * 2**20:
            sys.exit(1)


if __name__ == "__main__":
    main()
