#!/usr/bin/env python3
"""exports.py PROGRAM PYTHON: kda_check.save and export-fla, of the package in PYTHON, on numpy arrays and on torch
tensors, judged by PROGRAM against a recurrence written here. Exits with 77 where numpy is missing; torch and ml_dtypes are
tried where they are."""
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
try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None
try:
    import torch
except ImportError:
    torch = None

import kda_check

B, T, H, HV, K, V = 1, 9, 2, 4, 8, 6


def problem(kind=np.float64, seed=1):
    draw = np.random.default_rng(seed)
    q, k = draw.standard_normal((2, B, T, H, K))
    return {"q": (q / np.linalg.norm(q, axis=-1, keepdims=True)).astype(kind),
            "k": (k / np.linalg.norm(k, axis=-1, keepdims=True)).astype(kind),
            "v": draw.standard_normal((B, T, HV, V)).astype(kind), "g": -draw.random((B, T, HV, K)).astype(kind),
            "beta": draw.random((B, T, HV)).astype(kind)}


def bits(array):
    """bfloat16, rounded towards zero: numpy has none, and any values will do."""
    return (array.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)


def widened(bits):
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def recurrence(q, k, v, g, beta, initial_state=None, cu_seqlens=None, decay=lambda g, head: g):
    """docs/file-format.md, "Meaning", in fp64: o and the states."""
    bounds = [0, T] if cu_seqlens is None else cu_seqlens
    o, states = np.zeros(v.shape), np.zeros((len(bounds) - 1, HV, K, V))
    if initial_state is not None:
        states[...] = initial_state
    for n in range(len(bounds) - 1):
        for t in range(bounds[n], bounds[n + 1]):
            for j in range(HV):
                head = j // (HV // H)
                state = np.exp(decay(g[0, t, j], j))[:, None] * states[n, j]
                error = v[0, t, j] - state.T @ k[0, t, head]
                states[n, j] = state + beta[0, t, j] * np.outer(k[0, t, head], error)
                o[0, t, j] = K ** -0.5 * states[n, j].T @ q[0, t, head]
    return o, states


def kda_check_run(*words):
    done = subprocess.run([program, *words], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


class Exports(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder, self.path = folder.name, os.path.join(folder.name, "mine.h5")

    def passes(self, *words):
        code, text = kda_check_run("run", self.path, "--against", "oracle", *words)
        self.assertEqual(code, 0, text)
        self.assertIn(" mine ", text)

    def test_a_right_answer_passes_and_a_wrong_one_fails(self):
        inputs = problem()
        o, state = recurrence(**inputs)
        kda_check.save(self.path, **inputs, expected={"mine": {"o": o, "final_state": state}})
        self.passes()
        kda_check.save(self.path, **inputs, expected={"mine": {"o": o * 1.001, "final_state": state}})
        self.assertEqual(kda_check_run("run", self.path)[0], 1)

    def test_gates_states_and_packed_sequences_mean_what_the_format_says(self):
        inputs, draw = problem(), np.random.default_rng(7)
        offsets, states = np.array([0, 4, 4, T]), draw.standard_normal((3, HV, K, V))
        bias, A_log = draw.standard_normal((HV, K)), draw.standard_normal(HV)
        gates = {"softplus": lambda g, j: -np.exp(A_log[j]) * np.log1p(np.exp(g + bias[j])),
                 "lower_bound": lambda g, j: -5 / (1 + np.exp(-np.exp(A_log[j]) * (g + bias[j])))}
        for gate, decay in gates.items():
            o, final = recurrence(**inputs, initial_state=states, cu_seqlens=offsets, decay=decay)
            kda_check.save(self.path, **inputs, A_log=A_log, dt_bias=bias, cu_seqlens=offsets, state_v_first=True,
                                initial_state=states.swapaxes(2, 3), lower_bound=-5 if gate == "lower_bound" else None,
                                expected={"mine": {"o": o, "final_state": final.swapaxes(2, 3)}})
            self.assertEqual(kda_check.Fixture.read(self.path).options["gate"], gate)
            self.passes()

    def test_gradients_are_those_of_the_loss(self):
        inputs, draw = problem(), np.random.default_rng(9)
        do, dht = draw.standard_normal((B, T, HV, V)), draw.standard_normal((B, HV, K, V))
        dv = np.zeros((B, T, HV, V))
        for place in np.ndindex(dv.shape):  # the loss is linear in v
            v = np.zeros_like(dv)
            v[place] = 1
            o, state = recurrence(**{**inputs, "v": v})
            dv[place] = np.sum(o * do) + np.sum(state * dht)
        o, state = recurrence(**inputs)
        version = type("Version", (str,), {})("2.11")  # as PyTorch has it
        for factor, code in {1: 0, 1.001: 1}.items():
            answer = {"o": o, "final_state": state, "dv": dv * factor, "dq": None}
            kda_check.save(self.path, **inputs, do=do, dht=dht, expected={"mine": answer},
                                provenance={"torch": version, "seed": 1})
            found, text = kda_check_run("run", self.path, "--against", "oracle")
            self.assertEqual(found, code, text)
            self.assertRegex(text, r" mine +fp64 +dv ")

    def bfloat16(self):
        """A problem in bfloat16 as each framework that is here has it, and its bits."""
        whole = {name: bits(array) for name, array in problem().items()}
        yield "numpy", {name: array.view("V2") for name, array in whole.items()}, whole  # as numpy.savez stores it
        if ml_dtypes:
            yield "ml_dtypes", {name: array.view(ml_dtypes.bfloat16) for name, array in whole.items()}, whole
        if torch:
            of = lambda array: torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
            yield "torch", {name: of(array) for name, array in whole.items()}, whole

    def test_bfloat16_keeps_its_bits(self):
        for framework, inputs, whole in self.bfloat16():
            with self.subTest(framework):
                o = bits(recurrence(**{name: widened(array).astype(np.float64) for name, array in whole.items()})[0])
                kda_check.save(self.path, **inputs, expected={"mine": {"o": o.view("V2")}})
                fixture = kda_check.Fixture.read(self.path)
                self.assertEqual(fixture.inputs["q"].dtype, "bfloat16")
                np.testing.assert_array_equal(fixture.inputs["q"].data, whole["q"])
                self.assertNotIn("compute", fixture.expected["mine"].about)  # nobody said it: reports are to say so
                self.assertRegex(kda_check_run("show", self.path)[1], r"inputs/q +bf16 ")
                self.passes("--tensor", "o")
                self.assertIn("compute assumed bf16", kda_check_run("run", self.path, "-v")[1])

    def test_words_of_fla_become_options(self):
        def save(**words):
            kda_check.save(self.path, **kda_check.signatures.FLA.problem(words))

        inputs = problem(np.float32)
        save(**inputs, use_qk_l2norm_in_kernel=True, use_gate_in_kernel=True, safe_gate=True, A_log=np.zeros(HV, np.float32),
             lower_bound=-5.0, output_final_state=True)
        options = kda_check.Fixture.read(self.path).options
        self.assertEqual((options["gate"], options["lower_bound"], options["qk_l2norm"]), ("lower_bound", -5.0, 1))
        self.assertEqual(kda_check_run("run", self.path, "--variant", "recurrent")[0], 0)
        with self.assertRaisesRegex(TypeError, "no place .* cp_context"):
            save(**inputs, cp_context=object())
        # Without use_gate_in_kernel FLA takes g for the decay, whatever else it is given.
        save(**inputs, A_log=np.zeros(HV, np.float32), use_gate_in_kernel=False)
        self.assertEqual(kda_check.Fixture.read(self.path).options["gate"], "none")

    def test_what_does_not_fit_is_refused_and_nothing_is_left_behind(self):
        inputs = problem()
        for wrong, message in (({"beta": inputs["beta"][:, :-1]}, "beta: shape"), ({"q": [1.0]}, "element type"),
                               ({"v": inputs["v"].astype(int)}, "int64"), ({"initial_state": np.zeros((1, HV, V, K))}, "wanted"),
                               ({"expected": {"mine": {"o": inputs["v"][:, 1:]}}}, "mine: o: shape"),
                               ({"normalise": True}, "no place .* normalise")):
            with self.assertRaisesRegex((TypeError, ValueError), message):
                kda_check.save(self.path, **{**inputs, **wrong})
        self.assertEqual(os.listdir(self.folder), [])

    def test_commands_say_what_they_lack(self):
        given = os.path.join(self.folder, "given.h5")
        kda_check.save(given, **problem())
        for code, command in ((4, ["export-fla", "--family", "gdn", "-o", self.path]), (4, ["time", "fla", given, self.path]),
                              (3, ["time", "fla", "none.h5", self.path])):
            words = [sys.executable, "-m", "kda_check", *command]
            done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": package})
            if code == 3 or done.returncode != 0:
                self.assertEqual(done.returncode, code, done.stderr)
                said = [line for line in done.stderr.splitlines() if "kda-check: " in line]  # torch and FLA may warn
                self.assertEqual(len(said), 1, done.stderr)
                self.assertNotIn("Traceback", done.stderr)
                self.assertFalse(os.path.exists(self.path))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
