#!/usr/bin/env python3
"""relatives.py PROGRAM PYTHON: KDA and its relatives (docs/kda.md, "The family") as fixtures of the package in PYTHON, answered by a
recurrence in numpy that knows nothing of PROGRAM, which must find the two apart by no more than fp64 rounds; gradients
of its variants against central differences of that recurrence; and what commands of the package say where torch or FLA is missing.
Exits with 77 where numpy is missing."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

program, package = map(os.path.abspath, sys.argv[1:3])
sys.path.insert(0, package)
os.environ["KDA_CHECK_PROGRAM"] = program
try:
    import numpy as np
except ImportError as missing:
    print(f"SKIPPED: {missing}")
    sys.exit(77)

import kda_check

B, T, H, HV, K, V = 1, 37, 2, 4, 8, 6
SCALE = 0.3
RELATIVES = [(g, strength) for g in ("channels", "scalar") for strength in ("beta", "columns", "gates")]


def problem(g, strength):
    draw = np.random.default_rng(len(g) + 10 * len(strength))
    q, k = draw.standard_normal((2, B, T, H, K))
    words = {"q": q / np.linalg.norm(q, axis=-1, keepdims=True), "k": k / np.linalg.norm(k, axis=-1, keepdims=True),
             "v": draw.standard_normal((B, T, HV, V)), "initial_state": draw.standard_normal((B, HV, K, V)),
             "g": -0.3 * draw.random((B, T, HV, K) if g == "channels" else (B, T, HV))}
    if strength == "gates":
        return {**words, "erase": 2 * draw.random((B, T, HV, K)), "write": draw.random((B, T, HV, V))}
    return {**words, "beta": draw.random((B, T, HV) if strength == "beta" else (B, T, HV, V))}


def recurrence(q, k, v, g, initial_state, beta=None, erase=None, write=None):
    o, states = np.zeros(v.shape), initial_state.copy()
    for b in range(B):
        for j in range(HV):
            S = states[b, j]
            for t in range(q.shape[1]):
                query, key = q[b, t, j // (HV // H)], k[b, t, j // (HV // H)]
                decay = np.exp(g[b, t, j])
                S = S * (decay[:, None] if decay.ndim else decay)
                if erase is None:
                    error = beta[b, t, j] * (v[b, t, j] - key @ S)
                else:
                    error = write[b, t, j] * v[b, t, j] - (erase[b, t, j] * key) @ S
                S = S + np.outer(key, error)
                o[b, t, j] = SCALE * query @ S
            states[b, j] = S
    return o, states


def run(*words):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "report.json")
        done = subprocess.run([program, "run", *words, "--json", path], capture_output=True, text=True)
        with open(path, encoding="utf-8") as file:
            return done, json.load(file)


class Relatives(unittest.TestCase):
    def test_answers_of_numpy_are_the_truth_of_the_program_and_its_variants_agree(self):
        for g, strength in RELATIVES:
            with self.subTest(g=g, strength=strength), tempfile.TemporaryDirectory() as folder:
                words, path = problem(g, strength), os.path.join(folder, "relative.h5")
                o, states = recurrence(**words)
                kda_check.Fixture.of(**words, scale=SCALE, expected={"numpy": {"o": o, "final_state": states}}).write(path)
                done, report = run(path, "--dtype", "fp64")
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                seen = set()
                for case in report["cases"]:
                    for tensor in case.get("tensors", []):
                        seen.add((case["variant"], tensor["name"]))
                        self.assertLessEqual(tensor["metrics"]["rms_ratio"], 1e-12, (case["variant"], tensor["name"]))
                forms = {"numpy", "naive", "recurrent"} | ({"chunk"} if strength != "columns" else set())
                self.assertEqual({answer for answer, _ in seen if not answer.startswith("gpu-")}, forms)

    def test_gates_states_and_packed_sequences_mean_what_the_format_says(self):
        words, draw, ends = problem("channels", "beta"), np.random.default_rng(7), (0, 4, 4, T)
        states, bias, A_log = (draw.standard_normal(shape) for shape in ((3, HV, K, V), (HV, K), HV))
        g, amplitude = words["g"] + bias, np.exp(A_log)[:, None]
        for gate, decay in {"softplus": -amplitude * np.log1p(np.exp(g)), "lower_bound": -5 / (1 + np.exp(-amplitude * g))}.items():
            with self.subTest(gate), tempfile.TemporaryDirectory() as folder:
                parts = [recurrence(**{**{name: x[:, begin:end] for name, x in {**words, "g": decay}.items()},
                                       "initial_state": states[n:n + 1]}) for n, (begin, end) in enumerate(zip(ends, ends[1:]))]
                o, final = np.concatenate([o for o, _ in parts], 1), np.concatenate([state for _, state in parts])
                given = {**words, "initial_state": states.swapaxes(2, 3), "A_log": A_log, "dt_bias": bias, "cu_seqlens": ends,
                         "state_v_first": True, "scale": SCALE, "lower_bound": -5 if gate == "lower_bound" else None}
                for factor, code in {1: 0, 1.001: 1}.items():
                    path = os.path.join(folder, "mine.h5")
                    kda_check.save(path, **given, expected={"mine": {"o": factor * o, "final_state": final.swapaxes(2, 3)}})
                    self.assertEqual(kda_check.Fixture.read(path).options["gate"], gate)
                    self.assertEqual(run(path, "--against", "oracle")[0].returncode, code)

    def test_commands_say_what_they_lack(self):
        with tempfile.TemporaryDirectory() as folder:
            given, path = os.path.join(folder, "given.h5"), os.path.join(folder, "mine.h5")
            kda_check.save(given, **problem("channels", "beta"))
            for code, command in ((4, ["export-fla", "--family", "gdn", "-o", path]), (4, ["time", "fla", given, path]),
                                  (3, ["time", "fla", "none.h5", path])):
                done = subprocess.run([sys.executable, "-m", "kda_check", *command], capture_output=True, text=True,
                                      env={**os.environ, "PYTHONPATH": package})
                if code == 3 or done.returncode != 0:
                    self.assertEqual(done.returncode, code, done.stderr)
                    said = [line for line in done.stderr.splitlines() if "kda-check: " in line]  # torch and FLA may warn
                    self.assertEqual((len(said), "Traceback" in done.stderr, os.path.exists(path)), (1, False, False), done.stderr)

    def test_a_gradient_of_every_input_is_what_central_differences_of_numpy_say(self):
        for g, strength in RELATIVES:
            with self.subTest(g=g, strength=strength), tempfile.TemporaryDirectory() as folder:
                words, path = problem(g, strength), os.path.join(folder, "relative.h5")
                draw = np.random.default_rng(7)
                do, dht = draw.standard_normal((B, T, HV, V)), draw.standard_normal((B, HV, K, V))

                def loss(**changed):
                    o, states = recurrence(**{**words, **changed})
                    return (o * do).sum() + (states * dht).sum()

                fixture = kda_check.Fixture.of(**words, scale=SCALE, do=do, dht=dht)
                fixture.write(path)
                captured = os.path.join(folder, "captured.h5")
                subprocess.run([program, "capture", path, "--variant", "recurrent", "--dtype", "fp64", "--no-stages", "-o", captured],
                               check=True, capture_output=True)
                (answer,) = kda_check.Fixture.read(captured).expected.values()
                for name, x in words.items():
                    gradient = answer.tensors["d" + name].numpy()
                    self.assertEqual(gradient.shape, x.shape)
                    direction = draw.standard_normal(x.shape)
                    step = 1e-5
                    measured = (loss(**{name: x + step * direction}) - loss(**{name: x - step * direction})) / (2 * step)
                    self.assertAlmostEqual(measured, (gradient * direction).sum(), delta=1e-7 * max(1, abs(measured)), msg=name)


unittest.main(argv=sys.argv[:1])
