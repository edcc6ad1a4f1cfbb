#!/usr/bin/env python3
"""schema.py PROGRAM ROOT: the JSON of every command against ROOT/docs/report.schema.json: what passes and fails, what is
skipped, cannot be read or is interrupted, every section, shards and what is merged of them. And that the schema lets no
key pass which it does not know, and none be missing. Exits with 77 where jsonschema is missing."""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

program, root = sys.argv[1:3]
try:
    import jsonschema
    from jsonschema import Draft202012Validator
except ImportError as missing:
    print(f"SKIPPED: {missing}")
    sys.exit(77)

with open(f"{root}/docs/report.schema.json", encoding="utf-8") as file:
    schema = json.load(file)
validator = Draft202012Validator(schema)

fixtures = f"{root}/cases/fixtures"
small = f"{fixtures}/fla_fp32_small.h5"
backward = f"{fixtures}/fla_fp32_small_backward.h5"
tiny = "control:T=4,H=1,K=8,V=8"


class Schema(unittest.TestCase):
    """Every report that any test saw is kept, for those about the schema itself."""
    seen = {}

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def valid(self, document, what):
        errors = sorted(validator.iter_errors(document), key=lambda error: error.json_path)
        told = [f"{error.json_path}: {error.message[:300]}" for error in errors[:5]]
        self.assertEqual(told, [], what)
        Schema.seen[what] = document
        return document

    def report(self, *words, codes=(0, 1), **how):
        """The JSON of a command, valid. Its exit code is one of `codes`, and the one that is in the document."""
        path = f"{self.folder}/report.json"
        done = subprocess.run([program, *words, "--json", path], capture_output=True, text=True, timeout=900,
                              cwd=self.folder, **how)
        what = " ".join(words)
        self.assertIn(done.returncode, codes, f"{what}\n{done.stdout}{done.stderr}")
        with open(path, encoding="utf-8") as written:
            document = self.valid(json.load(written), what)
        self.assertEqual(document["summary"]["exit_code"], done.returncode, what)
        self.assertEqual(document["request"]["command"], words[0], what)
        return document

    def test_the_schema_is_one(self):
        Draft202012Validator.check_schema(schema)

    # ---- run

    def test_a_run_with_every_section_and_every_verdict(self):
        document = self.report("run", small, backward, tiny, "--dtype", "fp64,fp32,bf16", "--stages", "--invariants")
        verdicts = {case["verdict"] for case in document["cases"]}
        self.assertLessEqual({"pass", "skipped"}, verdicts)
        self.assertGreater(len(document["stages"]), 3)
        self.assertIn("plan", document)

    def test_a_run_with_a_parity_matrix(self):
        document = self.report("run", tiny, "--variant", "recurrent,chunk", "--against", "none", "--invariants=parity")
        self.assertEqual([entry["answer"] for entry in document["parity"]], ["recurrent", "chunk"])
        self.assertEqual(document["parity"][0]["ways"][0]["prefill"], "-")  # no longer than a chunk
        self.assertIn("bits", {cell for way in document["parity"][0]["ways"] for cell in way.values()})

    def test_a_run_that_fails_with_points(self):
        document = self.report("run", small, "--limit", "max_ulp=exact", "--atol", "1e-9", "--worst", "9", codes=(1,))
        self.assertGreater(document["summary"]["failed"], 0)
        self.assertTrue(any(tensor["worst_points"] for case in document["cases"] for tensor in case["tensors"]))

    def test_a_run_with_numbers_that_are_not_finite(self):
        document = self.report("run", "unbounded_softplus:T=64,A=16,H=1", "lb_const_sweep:T=128,H=1,g=-5", "--dtype",
                               "fp32,fp16", "--variant", "chunk", "--arithmetic", "decay=anchor-first:64", "--stages")
        self.assertTrue(any(word in json.dumps(document) for word in ('"inf"', '"nan"')))

    def test_a_run_of_what_cannot_be_read(self):
        bad = f"{root}/tests/fixtures_bad"
        document = self.report("run", f"{bad}/missing_q.h5", f"{bad}/not_hdf5.h5", tiny, "/no/such.h5", codes=(3,))
        self.assertEqual(len(document["errors"]), 3)

    def test_a_run_with_a_program_of_the_users(self):
        answering = f"{program} capture {{in}} --variant recurrent -o {self.folder}/answer.h5 -q && " \
                    f"mv {self.folder}/answer.h5 {{out}}"
        for command, codes in ((answering, (0, 1)), ("exit 1 # {in} {out}", (1,)), ("exit 77 # {in} {out}", (1,))):
            document = self.report("run", tiny, "--variant", "recurrent", "--external", command, "--external-name", "mine",
                                   "--invariants=repeat", codes=codes)
            self.assertTrue(any(case.get("external") for case in document["cases"]))

    def test_a_run_of_a_suite_with_rules_and_requirements(self):
        document = self.report("run", "@smoke", "--variant", "recurrent", "--require", "nobody", codes=(1,))
        self.assertGreater(len(document["cases"]), 20)

    def test_files_without_a_stated_precision(self):
        document = self.report("run", f"{root}/tests/fixtures_good", "--variant", "none")
        self.assertTrue(any(case.get("compute_assumed") for case in document["cases"]))

    def test_shards_empty_ones_and_the_whole_that_is_merged(self):
        parts = []
        for index in (1, 2, 3):
            document = self.report("run", small, tiny, "--stages", "--shard", f"{index}/3")
            parts.append(f"{self.folder}/part{index}.json")
            shutil.copy(f"{self.folder}/report.json", parts[-1])
        self.assertIn("nothing_to_do", document)
        merged = subprocess.run([program, "merge", *parts, "--json"], capture_output=True, text=True, check=False)
        self.assertEqual(merged.returncode, 0, merged.stderr)
        whole = self.valid(json.loads(merged.stdout), "merge")
        self.assertEqual(whole["plan"]["shards"], 1)
        self.assertEqual(sum(len(whole[key]) for key in ("cases", "stages")), whole["plan"]["cases"])

    def test_an_interrupted_run(self):
        path = f"{self.folder}/report.json"
        run = subprocess.Popen([program, "run", tiny, *[f"control:T=4000,seed={seed}" for seed in range(1, 60)], "--threads",
                                "1", "--json", path], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        try:
            while not os.path.exists(path) and not any(name.endswith(".tmp") for name in os.listdir(self.folder)):
                time.sleep(0.05)  # it is planned; its reports are not begun
            with self.assertRaises(subprocess.TimeoutExpired):
                run.wait(0.3)
            run.send_signal(signal.SIGTERM)
            self.assertEqual(run.wait(120), -signal.SIGTERM)
        finally:
            run.kill()
            run.wait()
        with open(path, encoding="utf-8") as written:
            document = self.valid(json.load(written), "run, interrupted")
        self.assertEqual(document["interrupted"]["signal"], signal.SIGTERM)
        self.assertEqual(document["summary"]["outcome"], "interrupted")

    def test_plans(self):
        for words in (("run", "@smoke", "--stages", "--invariants"), ("power", small),
                      ("explain", small, "--only", "bits,shares,growth,overflow,faults"), ("explain", small, "--between", "fla_chunk,chunk"),
                      ("run", tiny, "--shard", "2/2"), ("run", "/no/such.h5", tiny)):
            document = self.report(*words, "--dry-run", codes=(0, 3))
            self.assertEqual("cases_planned" in document, True, words)

    # ---- the other commands

    def test_diff(self):
        self.report("diff", f"{small}:torch_fp64", f"{small}:fla_chunk")
        self.report("diff", small, backward)
        for name in ("before", "after"):
            os.mkdir(f"{self.folder}/{name}")
            shutil.copy(small, f"{self.folder}/{name}")
        shutil.copy(backward, f"{self.folder}/after")
        self.report("diff", "before", "after", codes=(1,))
        self.report("diff", small, "/no/such.h5", codes=(3,))

    def test_explain(self):
        document = self.report("explain", small, "--between", "fla_chunk,recurrent", "--advise")
        self.assertEqual([item["pass"] for item in document["between"]], ["forward"])
        self.assertTrue(document["explained"][0]["advice"])
        bits = self.report("explain", small, "--only", "bits", "--recorded", "fla_chunk")
        self.assertEqual(bits["explained"][0]["shares"], [])

    def test_explain_growth(self):
        document = self.report("explain", small, backward, "--only", "growth", "--window", "8", "--tensor", "o,dq,dv")
        self.assertEqual({item["from"] for item in document["growth"]}, {"start", "end"})
        self.report("explain", small, "--only", "growth", "--against", "fla_chunk", "--window", "16")
        self.report("explain", tiny, "--only", "growth", "--variant", "naive")  # too few windows for a fit

    def test_explain_faults(self):
        wrong = f"{self.folder}/wrong.h5"
        self.report("make", "control:T=20,H=1,K=8,V=8,seed=2", "-o", wrong)
        self.report("capture", wrong, "--variant", "recurrent", "--arithmetic", "stored=e4m3", "--in-place")
        document = self.report("explain", wrong, small, "--only", "faults", codes=(1,))
        self.assertEqual({item["verdict"] for item in document["faults"]}, {"pass", "fail"})

    def test_explain_overflow(self):
        for regime in ("control:T=64,H=1", "lb_const_sweep:T=128,H=1,g=-5", "corr_keys:T=64,H=1,rho=0.999",
                       "varlen:H=1,K=8,V=8", "mask_m1000:T=64,H=1"):
            self.report("explain", regime, "--only", "overflow", "--dtype", "fp64,fp32,bf16,fp16")
            self.report("explain", regime, "--only", "overflow", "--arithmetic", "decay=anchor-first:64,inverse=doubling:64")

    def test_power(self):
        document = self.report("power", "control:T=70,H=2,K=16,V=16", "--class", "bf16,fp16,tf32,fp32", "--tensor", "o,final_state")
        self.assertEqual(len(document["power"]), 8)

    def test_make_capture_and_show(self):
        self.report("make", "varlen:H=1,K=8,V=8,loss=1", "-o", "made.h5")
        document = self.report("capture", "made.h5", "--variant", "chunk,recurrent", "-o", "captured.h5")
        self.assertEqual(len(document["captured"]), 2)
        self.report("show", "captured.h5", small)
        self.report("show", "captured.h5", "--headers")
        self.report("show", f"{root}/tests/fixtures_good")
        self.report("show", "captured.h5", "/no/such.h5", codes=(3,))

    def test_bench(self):
        document = self.report("bench", "-T", "8", "-H", "1", "-K", "8", "-V", "8", "--repeats", "1", "--dtype", "fp32,fp64")
        self.assertGreater(len(document["rows"]), 3)
        self.report("bench", "-T", "8", "-H", "1", "-K", "8", "-V", "8", "--repeats", "1", "--backward", "--variant", "recurrent")

    def test_list(self):
        self.assertEqual(len(self.report("list")["devices"]), 2)
        self.report("list", "regimes", "devices")
        probed = self.report("list", "devices", "--probe", codes=(0, 1, 4))
        self.assertEqual("models" in probed, not probed["errors"])

    def test_selftest(self):
        document = self.report("selftest", "scale", "looks_ahead", codes=(0,))
        self.assertGreater(len(document["rows"]), 20)

    def test_zz_the_schema_lets_no_key_pass_that_it_does_not_know(self):
        """After the reports above, in order of the alphabet."""
        def objects(node, path):
            if isinstance(node, dict):
                yield from [(path, node)] if "properties" in node and "/allOf/" not in path else []
            for key, value in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
                yield from objects(value, f"{path}/{key}")

        found = list(objects(schema, ""))
        self.assertGreater(len(found), 40)
        says = {"type", "enum", "const", "$ref", "anyOf", "oneOf", "allOf"}
        for path, node in found:
            closed = [node.get(key) for key in ("additionalProperties", "unevaluatedProperties")]
            self.assertIn(False, closed, path)
            self.assertTrue(node["required"], path)
            for name, value in node["properties"].items():
                self.assertTrue(isinstance(value, dict) and says & set(value), f"{path}: {name}")
        self.assertGreater(len(Schema.seen), 20)
        for document in list(Schema.seen.values())[:10]:  # nor a section of another command
            other = {**document, "captured" if document["request"]["command"] != "capture" else "growth": []}
            self.assertFalse(validator.is_valid(other))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
