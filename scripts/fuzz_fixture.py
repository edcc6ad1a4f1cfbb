#!/usr/bin/env python3
"""Damage fixtures at random (cut them off, flip bits, overwrite bytes) and run kda-check on each: it must exit with 0, 1
or 3, within the time limit, with one error line when it is 3. The damage is a function of the case number, so a case
that misbehaves can be repeated; its file is kept. With --together so many damaged files are read by one run, among good
ones that must be read as if they were alone.

    scripts/fuzz_fixture.py build/release/bin/kda-check --cases 4000
    scripts/fuzz_fixture.py build/release/bin/kda-check --cases 4000 --together 50
"""
import argparse
import collections
import concurrent.futures
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SEEDS = ["tests/fixtures_bad/good.h5", "cases/fixtures/fla_fp16_c32.h5"]


def damaged(case):
    chance = random.Random(case)
    with open(os.path.join(ROOT, SEEDS[case % len(SEEDS)]), "rb") as file:
        data = bytearray(file.read())
    kind = chance.randrange(4)
    if kind == 0:
        return data[: chance.randrange(len(data))]
    reach = len(data) if kind == 1 else min(len(data), 16384)  # most of the structure is at the front
    for _ in range(chance.choice([1, 1, 2, 4, 16])):
        at = chance.randrange(reach)
        data[at] = data[at] ^ (1 << chance.randrange(8)) if chance.random() < 0.5 else chance.choice([0, 255, 127, 128])
    return data


def run(case, program, folder):
    path = os.path.join(folder, f"case{case}.h5")
    with open(path, "wb") as file:
        file.write(damaged(case))
    try:
        done = subprocess.run([program, "run", path, "-q", "--threads", "1", "--memory-limit", "1G"], capture_output=True, timeout=60)
        code, said = done.returncode, done.stderr.decode(errors="replace")
    except subprocess.TimeoutExpired:
        code, said = "timeout", ""
    errors = said.count("kda-check: error:")
    good = code in (0, 1) and errors == 0 or code == 3 and errors == 1
    if good:
        os.remove(path)
    return case, code, said, good


def run_together(first, count, program, folder):
    """Damaged files first ... first + count - 1 in one run, a good one behind every second."""
    paths, good = [], []
    for case in range(first, first + count):
        paths.append(os.path.join(folder, f"case{case}.h5"))
        with open(paths[-1], "wb") as file:
            file.write(damaged(case))
        if case % 2 == 0:
            good.append(os.path.join(folder, f"good{case}.h5"))
            shutil.copy(os.path.join(ROOT, SEEDS[case % len(SEEDS)]), good[-1])
            paths.append(good[-1])
    try:
        done = subprocess.run([program, "run", *paths, "-q", "--threads", "1", "--memory-limit", "1G", "--variant", "recurrent",
                               "--json", "-"], capture_output=True, timeout=60 * count)
        code, said = done.returncode, done.stderr.decode(errors="replace")
        document = json.loads(done.stdout)
        fine = (code in (0, 1, 3) and said.count("kda-check: error:") == len(document["errors"])
                and {fixture["path"] for fixture in document["fixtures"]} >= set(good) and not any(path in said for path in good))
    except (subprocess.TimeoutExpired, ValueError) as reason:
        code, said, fine = type(reason).__name__, str(reason), False
    if fine:
        for path in paths:
            os.remove(path)
    return first, code, said, fine


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--together", type=int, metavar="N", help="read N damaged files in one run")
    arguments = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="kda-check-fuzz-")
    codes, failures = collections.Counter(), 0
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        cases = range(arguments.first, arguments.first + arguments.cases, arguments.together or 1)
        if arguments.together:
            results = pool.map(lambda case: run_together(case, arguments.together, arguments.program, folder), cases)
        else:
            results = pool.map(lambda case: run(case, arguments.program, folder), cases)
        for case, code, said, good in results:
            codes[code] += 1
            if not good:
                failures += 1
                print(f"case {case}: exit {code}, kept in {folder}\n{said.strip()[-400:]}")
    print(", ".join(f"exit {code}: {count}" for code, count in sorted(codes.items(), key=str)))
    if not failures:
        os.rmdir(folder)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
