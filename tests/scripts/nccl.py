#!/usr/bin/env python3
"""nccl.py PROGRAM STAND_IN: GPUs of a host that have a part of every sequence each compute the bits of one process with
segments=tree:P, and what cannot be shared ends with one line and exit code 4. With one GPU several ranks share it, and
STAND_IN carries their bytes in place of NCCL; NCCL itself carries those of all GPUs there are."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

program, stand_in = sys.argv[1], os.path.abspath(sys.argv[2])
problems = ["gate_zero:T=700,H=2", "varlen", "lb_real:T=300", "gva:T=64", "layout_asym:T=200,v_first=1", "control:T=130,B=2,H=1"]


def run(*words, devices=None, fault="", library=stand_in):
    environment = {**os.environ, "KDA_CHECK_STAND_IN": fault}
    for name, value in (("KDA_CHECK_NCCL", library), ("KDA_CHECK_NCCL_DEVICES", devices)):
        environment.pop(name, None)
        if value:
            environment[name] = value
    return subprocess.run([program, *words], capture_output=True, text=True, timeout=300, check=False, env=environment)


def lines(result):
    return [line for line in result.stderr.splitlines() if line.startswith("kda-check: error")]


def document(path):
    with open(path, encoding="utf-8") as file:
        return {key: value for key, value in json.load(file).items() if key not in ("request", "plan")}


first = run("run", "control:T=64,H=1", "--variant", "gpu-chunk", "--require", "gpu", "--test", "off")
missing = "" if first.returncode == 0 else "no GPU variants here"
shared = ["run", "--segments", "nccl", "--variant", "gpu-chunk", "--test", "off", "--require", "gpu"]


@unittest.skipIf(not missing, "there is a GPU")
class WithoutGpu(unittest.TestCase):
    def test_a_line_says_that_there_is_none(self):
        result = run("run", "control:T=64", "--segments", "nccl", "--variant", "gpu-chunk")
        self.assertEqual(result.returncode, 4, result.stderr)
        self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
        self.assertRegex(result.stderr, "--segments nccl: (built without CUDA|no device)")


class Usage(unittest.TestCase):
    def test_what_cannot_be_shared_is_refused_with_a_line(self):
        for words, told in ((["run", "@smoke", "--variant", "gpu-chunk"], "lines with an arithmetic of their own"),
                            (["run", "control:T=64,H=1", "--variant", "gpu-chunk", "--arithmetic", "segments=tree:4"], "is another cut"),
                            (["run", "control:T=64,H=1"], "shares gpu-chunk, which is not selected"),
                            (["bench", "--variant", "chunk"], "shares gpu-chunk, which is not selected"),
                            (["bench", "--variant", "gpu-chunk", "--backward"], "forward passes alone")):
            with self.subTest(words=words):
                result = run(*words, "--segments", "nccl")
                self.assertEqual(result.returncode, 2, result.stderr)
                self.assertEqual(len(lines(result)), 1, result.stderr)
                self.assertIn(told, lines(result)[0])


@unittest.skipIf(missing, missing)
class OneGpu(unittest.TestCase):
    """Ranks share the first GPU."""

    def test_ranks_give_the_bits_of_the_cpu_in_as_many_parts(self):
        for ranks in ("0", "0,0", "0,0,0", "0,0,0,0"):
            for dtype in ("fp32", "bf16"):
                with self.subTest(ranks=ranks, dtype=dtype):
                    result = run(*shared, *problems, "--dtype", dtype, "--against", "replay", "--oracle", "none", devices=ranks)
                    self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
                    self.assertEqual(len([line for line in result.stderr.splitlines() if ": rank " in line]), ranks.count("0"))

    def test_the_report_is_that_of_one_process(self):
        with tempfile.TemporaryDirectory() as folder:
            one, three = os.path.join(folder, "one"), os.path.join(folder, "three")
            words = ["gate_zero:T=500,H=1", "varlen", "--dtype", "fp32,bf16"]
            alone = run("run", "--variant", "gpu-chunk", "--test", "off", *words, "--arithmetic", "segments=tree:3", "--json", one)
            together = run(*shared, *words, "--json", three, devices="0,0,0")
            self.assertEqual((alone.returncode, together.returncode), (0, 0), alone.stderr + together.stderr)
            self.assertEqual(document(one), document(three))

    def test_an_exchange_that_fails_ends_the_run_with_a_line(self):
        for fault in ("start", "gather:0", "gather:1"):
            with self.subTest(fault=fault):
                result = run(*shared, "gate_zero:T=500,H=1", devices="0,0", fault=fault)
                self.assertEqual(result.returncode, 4, result.stderr)
                self.assertEqual(len(lines(result)), 1, result.stderr)
                self.assertIn("unhandled system error", lines(result)[0])

    def test_bytes_that_others_did_not_hand_out_end_the_run_with_a_line(self):
        result = run(*shared, "gate_zero:T=500,H=1", devices="0,0", fault="wrong")
        self.assertEqual(result.returncode, 4, result.stderr)
        self.assertEqual(len(lines(result)), 1, result.stderr)
        self.assertIn("do not get what others hand out", lines(result)[0])

    def test_without_the_library_a_line_says_so(self):
        result = run(*shared, "control:T=64,H=1", library="/nowhere/libnccl.so.2")
        self.assertEqual(result.returncode, 4, result.stderr)
        self.assertEqual(len(lines(result)), 1, result.stderr)
        self.assertIn("/nowhere/libnccl.so.2", lines(result)[0])


@unittest.skipIf(missing, missing)
class Nccl(unittest.TestCase):
    """NCCL itself, on all GPUs there are."""

    def test_all_gpus_give_the_bits_of_the_cpu_in_as_many_parts(self):
        result = run(*shared, *problems, "--dtype", "fp32,bf16", "--against", "replay", "--oracle", "none", library=None)
        for reason in ("no NCCL", "the devices differ"):
            if result.returncode == 4 and reason in result.stderr:
                self.skipTest(reason)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        print("\n".join(line for line in result.stderr.splitlines() if "NCCL" in line or ": rank " in line))


if __name__ == "__main__":
    print(f"SKIPPED: {missing}" if missing else "with a GPU")
    outcome = unittest.main(argv=sys.argv[:1], verbosity=2, exit=False).result
    sys.exit(1 if not outcome.wasSuccessful() else 77 if missing else 0)
