#!/usr/bin/env python3
"""mpi.py PROGRAM: under mpirun several processes compute the bits of one with segments=tree:P, one of them reports, and when
one is killed, is stopped, has no memory, or is another program or has other work, all end with one line and exit code 4."""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

program = sys.argv[1]
mpirun = shutil.which("mpirun") or shutil.which("mpirun.openmpi") or shutil.which("orterun")
missing = ("no mpirun" if not mpirun else
           "built without MPI" if not os.path.exists(os.path.join(os.path.dirname(program), "kda-check-mpi.so")) else "")
ranks = [mpirun, "--quiet", "--oversubscribe", "--allow-run-as-root"]
base = ["run", "--segments", "mpi", "--test", "off", "--threads", "1"]


def together(count, *words, command=None, **how):
    return subprocess.run([*ranks, "-n", str(count), *(command or [program]), *words], capture_output=True, text=True,
                          timeout=120, check=False, **how)


def lines(result):
    return [line for line in result.stderr.splitlines() if line.startswith("kda-check: error")]


def document(path):
    with open(path, encoding="utf-8") as file:
        return {key: value for key, value in json.load(file).items() if key not in ("request", "plan")}


class WithoutMpi(unittest.TestCase):
    def test_a_program_without_the_module_says_so_in_a_line(self):
        with tempfile.TemporaryDirectory() as folder:
            alone = shutil.copy(program, folder)
            result = subprocess.run([alone, *base, "control:T=64"], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(result.returncode, 4, result.stderr)
        self.assertEqual(len(result.stderr.splitlines()), 1)
        self.assertIn("this build has no MPI", result.stderr)


@unittest.skipIf(missing, missing)
class Mpi(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="kda-check-mpi-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def path(self, name):
        return os.path.join(self.folder, name)

    def test_four_ranks_give_the_bits_of_one_process_in_four_parts(self):
        # One process writes its answers; four are held against them, bit for bit.
        for number, regime in enumerate(["gate_zero:T=700,H=2", "varlen", "lb_real:T=300", "gva:T=64", "layout_asym:T=200,v_first=1",
                                         "control:T=130,B=2,H=1"]):
            for dtype in ("fp32", "bf16", "fp64"):
                answered = self.path(f"{number}{dtype}.h5")
                inputs = regime + ("" if dtype == "fp64" else ("," if ":" in regime else ":") + "dtype=" + dtype)
                made = subprocess.run([program, "capture", inputs, "--variant", "chunk", "--dtype", dtype, "--arithmetic",
                                       "segments=tree:4", "--no-stages", "-o", answered], capture_output=True, text=True, check=False)
                self.assertEqual(made.returncode, 0, made.stderr)
                with self.subTest(regime=regime, dtype=dtype):
                    result = together(4, *base, answered, "--variant", "chunk", "--recorded", "none", "--dtype", dtype, "--against",
                                      "chunk@cpu", "--oracle", "none", "--limit", "max_ulp=exact", "--no-backward")
                    self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
                    self.assertIn("1 passed", result.stdout)

    def test_the_report_is_that_of_one_process(self):
        words = ["gate_zero:T=500,H=1", "varlen", "--dtype", "fp32,bf16"]
        one = subprocess.run([program, "run", "--test", "off", *words, "--arithmetic", "segments=tree:3", "--json", self.path("one")],
                             capture_output=True, text=True, check=False)
        three = together(3, *base, *words, "--json", self.path("three"))
        self.assertEqual((one.returncode, three.returncode), (0, 0), three.stderr)
        self.assertEqual(document(self.path("one")), document(self.path("three")))
        self.assertEqual(three.stdout.count("fixtures, "), 1)
        self.assertEqual(len([line for line in three.stderr.splitlines() if " of 3: " in line]), 3)

    def test_a_failure_is_the_exit_code_of_all(self):
        result = together(2, *base, "control:T=100,H=1", "--variant", "chunk", "--limit", "rms_ratio=1e-7")
        self.assertEqual(result.returncode, 1, result.stderr)

    def test_other_work_on_a_rank_ends_the_run_with_a_line(self):
        script = self.path("rank")
        with open(script, "w", encoding="utf-8") as file:
            file.write('#!/bin/sh\n[ "$OMPI_COMM_WORLD_RANK" = 2 ] && set -- "$@" --dtype bf16\nexec "$PROGRAM" "$@"\n')
        os.chmod(script, 0o755)
        result = together(3, *base, "control:T=100,H=1", command=[script], env={**os.environ, "PROGRAM": program})
        self.assertEqual(result.returncode, 4, result.stderr)
        self.assertEqual(len(lines(result)), 1, result.stderr)
        self.assertIn("rank 2 has other work", lines(result)[0])

    def test_another_program_on_a_rank_ends_the_run_with_a_line(self):
        other = shutil.copy(program, self.path("other"))
        shutil.copy(os.path.join(os.path.dirname(program), "kda-check-mpi.so"), self.folder)
        with open(other, "ab") as file:
            file.write(b"another build")
        script = self.path("rank")
        with open(script, "w", encoding="utf-8") as file:
            file.write('#!/bin/sh\n[ "$OMPI_COMM_WORLD_RANK" = 1 ] && exec "$OTHER" "$@"\nexec "$PROGRAM" "$@"\n')
        os.chmod(script, 0o755)
        result = together(3, *base, "control:T=100,H=1", command=[script],
                          env={**os.environ, "PROGRAM": program, "OTHER": other})
        self.assertEqual(result.returncode, 4, result.stderr)
        self.assertEqual(len(lines(result)), 1, result.stderr)
        self.assertIn("rank 1 is another program", lines(result)[0])

    def test_a_file_that_a_rank_does_not_have_ends_the_run_with_a_line(self):
        script = self.path("rank")
        with open(script, "w", encoding="utf-8") as file:
            file.write('#!/bin/sh\n[ "$OMPI_COMM_WORLD_RANK" = 1 ] && cd /\nexec "$PROGRAM" "$@"\n')
        os.chmod(script, 0o755)
        subprocess.run([program, "make", "control:T=64,H=1", "-o", self.path("x.h5")], check=True, capture_output=True)
        with open(self.path("limits.toml"), "w", encoding="utf-8") as file:
            file.write('[[rule]]\nrms_ratio = 1e-3\nreason = "a test"\n')
        for words, told in ((["x.h5"], "rank 1 has other work"), (["control:T=64,H=1", "--tolerance", "./limits.toml"], "rank 1 cannot go on")):
            result = together(2, *base, *words, command=[script], cwd=self.folder, env={**os.environ, "PROGRAM": program})
            with self.subTest(words=words):
                self.assertEqual(result.returncode, 4, result.stderr)
                self.assertEqual(len(lines(result)), 1, result.stderr)
                self.assertIn(told, lines(result)[0])

    def test_a_suite_and_a_shard_for_each_rank_are_refused_with_a_line(self):
        for words, told in ((["@smoke"], "lines with an arithmetic of their own"), (["control:T=64,H=1", "--shard", "auto"], "--shard I/N")):
            result = together(2, *base, *words)
            with self.subTest(words=words):
                self.assertEqual(result.returncode, 2, result.stderr)
                self.assertEqual(len(lines(result)), 1, result.stderr)
                self.assertIn(told, lines(result)[0])

    def test_a_timeout_of_no_ranks_is_refused(self):
        result = subprocess.run([program, "run", "control:T=64", "--rank-timeout", "5"], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertIn("--rank-timeout: of which ranks?", result.stderr)

    def after_signal(self, number, *words):
        """The one line of a run whose rank 1 gets a signal while it computes: the process that does, the largest of that rank."""
        process = subprocess.Popen([*ranks, "-n", "3", program, *base, "weak_contraction_long:T=262144,K=64,V=64", "--variant", "chunk",
                                    *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.kill)
        victim = None
        until = time.time() + 30
        while victim is None and time.time() < until:
            time.sleep(0.2)
            victim = computing_process(process.pid, 1)
        self.assertIsNotNone(victim)
        time.sleep(1)  # so that MPI has begun there
        os.kill(victim, number)
        _, errors = process.communicate(timeout=60)  # two seconds; machines of CI are shared
        self.assertEqual(process.returncode, 4, errors)
        told = [line for line in errors.splitlines() if line.startswith("kda-check: error")]
        self.assertEqual(len(told), 1, errors)
        while os.path.exists(f"/proc/{victim}") and time.time() < until + 60:
            time.sleep(0.1)
        self.assertFalse(os.path.exists(f"/proc/{victim}"), "the process is still there")
        return told[0]

    def test_a_killed_rank_ends_the_run_with_a_line(self):
        self.assertIn("rank 1 was ended by signal 9", self.after_signal(signal.SIGKILL))  # as by the kernel for its memory

    def test_a_rank_that_is_stopped_ends_the_run_with_a_line(self):
        told = self.after_signal(signal.SIGSTOP, "--rank-timeout", "3")
        self.assertIn("rank 1 has not been heard of for 3 s", told)

    def test_a_rank_without_the_memory_says_so_before_it_computes(self):
        script = self.path("rank")
        with open(script, "w", encoding="utf-8") as file:
            file.write('#!/bin/sh\n[ "$OMPI_COMM_WORLD_RANK" = 1 ] && set -- "$@" --memory-limit "$LIMIT"\nexec "$PROGRAM" "$@"\n')
        os.chmod(script, 0o755)
        for limit, told in (("1M", "rank 1: its tokens take"), ("2.6M", "rank 1, which holds 0.00")):
            result = together(2, *base, "control:T=4096,H=1,K=64,V=64", command=[script], env={**os.environ, "PROGRAM": program, "LIMIT": limit})
            with self.subTest(limit=limit):
                self.assertEqual(result.returncode, 4, result.stderr)
                self.assertEqual(len(lines(result)), 1, result.stderr)
                self.assertIn(told, lines(result)[0])


def computing_process(parent, rank):
    """The child of the process that mpirun started as that rank, once it has loaded MPI."""
    for pid in children(parent):
        for child in children(pid):
            try:
                with open(f"/proc/{child}/environ", "rb") as environment, open(f"/proc/{child}/maps", encoding="utf-8") as maps:
                    if f"OMPI_COMM_WORLD_RANK={rank}\0".encode() in environment.read() and "kda-check-mpi.so" in maps.read():
                        return child
            except OSError:
                pass
    return None


def children(parent):
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8") as file:
                if int(file.read().rsplit(")", 1)[1].split()[1]) == parent:
                    found.append(int(name))
        except (OSError, ValueError):
            pass
    return found


if __name__ == "__main__":
    print(f"SKIPPED: {missing}" if missing else "with MPI")
    outcome = unittest.main(argv=sys.argv[:1], verbosity=2, exit=False).result
    sys.exit(1 if not outcome.wasSuccessful() else 77 if missing else 0)
