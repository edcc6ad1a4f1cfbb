#!/usr/bin/env python3
"""shards.py PROGRAM: the shards of a run, by number, as a Slurm array and under mpirun, are together the whole: `merge` of
their reports is the report of a run that was not cut, and what is no whole is refused."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

program = sys.argv[1]
# Fixtures and regimes in several dtypes, tolerances, stages: all that a report can hold of a run.
words = ["run", "@smoke", "--variant", "recurrent,chunk", "--stages", "-q"]


def kda_check(*more, **how):
    return subprocess.run([program, *more], capture_output=True, text=True, timeout=300, check=False, **how)


def without_place(document):
    """What a report says of its results: not how it was asked for."""
    return {key: value for key, value in document.items() if key != "request"}


class Shards(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="kda-check-shards-")
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        done = kda_check(*words, "--json", f"{cls.folder}/whole.json", "--report", f"junit={cls.folder}/whole.xml")
        assert done.returncode == 0, done.stderr
        cls.whole = cls.read("whole.json")

    @classmethod
    def read(cls, name):
        with open(os.path.join(cls.folder, name), encoding="utf-8") as file:
            return json.load(file)

    def paths(self, name, count=3):
        return [f"{self.folder}/{name}{i}.json" for i in range(1, count + 1)]

    def check_merged(self, name):
        """Of three parts, whichever is named first."""
        out = f"{self.folder}/merged.json"
        done = kda_check("merge", *reversed(self.paths(name)), "-q", "--json", out, "--report", f"junit={self.folder}/merged.xml")
        self.assertEqual(done.returncode, 0, done.stderr)
        merged = self.read("merged.json")
        for key, value in without_place(self.whole).items():
            self.assertEqual(merged[key], value, key)
        self.assertEqual(merged.keys(), self.whole.keys())
        with open(f"{self.folder}/merged.xml", encoding="utf-8") as one, open(f"{self.folder}/whole.xml", encoding="utf-8") as other:
            self.assertEqual(one.read(), other.read())

    def test_by_number(self):
        sizes = []
        for i, path in enumerate(self.paths("part"), 1):
            done = kda_check(*words, "--shard", f"{i}/3", "--json", path)
            self.assertEqual(done.returncode, 0, done.stderr)
            sizes.append(len(self.read(os.path.basename(path))["cases"]))
        self.assertEqual(sum(sizes), len(self.whole["cases"]))
        self.assertGreater(min(sizes), 0)
        self.check_merged("part")

        first, second, third = self.paths("part")
        for parts, text in (([first, third], "shard 2 of 3 is missing"), ([first, second, second, third], "shard 2 is there twice"),
                            ([first, f"{self.folder}/whole.json"], "no shard of the same run")):
            done = kda_check("merge", *parts)
            self.assertEqual(done.returncode, 3)
            self.assertIn(text, done.stderr)

    def test_a_slurm_array(self):
        # --array=10-30:10
        for task in ("10", "20", "30"):
            slurm = {"SLURM_ARRAY_TASK_ID": task, "SLURM_ARRAY_TASK_MIN": "10", "SLURM_ARRAY_TASK_STEP": "10",
                     "SLURM_ARRAY_TASK_COUNT": "3"}
            done = kda_check(*words, "--shard", "auto", "--json", f"{self.folder}/task{{shard}}.json", env={**os.environ, **slurm})
            self.assertEqual(done.returncode, 0, done.stderr)
        self.check_merged("task")

    def test_under_mpirun(self):
        mpirun = shutil.which("mpirun")
        if not mpirun:
            self.skipTest("no mpirun here")
        here = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        if subprocess.run([mpirun, "-n", "3", "--oversubscribe", "true"], capture_output=True, env=here, check=False).returncode != 0:
            self.skipTest("mpirun does not start three ranks here")
        done = subprocess.run([mpirun, "-n", "3", "--oversubscribe", program, *words, "--threads", "1", "--shard", "auto", "--json",
                               f"{self.folder}/rank{{shard}}.json"], capture_output=True, text=True, env=here, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.check_merged("rank")

    def test_a_path_that_all_shards_would_write(self):
        done = kda_check(*words, "--shard", "auto", "--json", f"{self.folder}/one.json",
                         env={**os.environ, "CI_NODE_INDEX": "2", "CI_NODE_TOTAL": "3"})
        self.assertEqual(done.returncode, 2)
        self.assertIn("with --shard auto a path has {shard} in it", done.stderr)
        self.assertFalse(os.path.exists(f"{self.folder}/one.json"))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
