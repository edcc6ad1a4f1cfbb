#!/usr/bin/env python3
"""exports.py PROGRAM SCRIPTS: scripts/export_*.py on numpy arrays (bfloat16 of ml_dtypes) and on what looks like a torch
tensor, judged by PROGRAM against a recurrence written here. Exits with 77 where h5py or ml_dtypes is missing."""
import os
import subprocess
import sys
import tempfile
import types
import unittest

program, scripts = sys.argv[1:3]
sys.path.insert(0, scripts)
try:
    import h5py
    import ml_dtypes
    import numpy as np
except ImportError as missing:
    print(f"SKIPPED: {missing}")
    sys.exit(77)

import export_fixture
import export_fla
import export_jax

B, T, H, HV, K, V = 1, 9, 2, 4, 8, 6


def problem(kind=np.float64, seed=1):
    draw = np.random.default_rng(seed)
    q, k = draw.standard_normal((2, B, T, H, K))
    return {"q": (q / np.linalg.norm(q, axis=-1, keepdims=True)).astype(kind),
            "k": (k / np.linalg.norm(k, axis=-1, keepdims=True)).astype(kind),
            "v": draw.standard_normal((B, T, HV, V)).astype(kind), "g": -draw.random((B, T, HV, K)).astype(kind),
            "beta": draw.random((B, T, HV)).astype(kind)}


def recurrence(q, k, v, g, beta, initial_state=None, cu_seqlens=None, decay=lambda g, head: g):
    """docs/fixture-format.md, "Meaning", in fp64: o and the states."""
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


def kda_check(*words):
    done = subprocess.run([program, *words], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


class Exports(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder, self.path = folder.name, os.path.join(folder.name, "mine.h5")

    def passes(self, *words):
        code, text = kda_check("run", self.path, "--against", "oracle", *words)
        self.assertEqual(code, 0, text)
        self.assertIn(" mine ", text)

    def test_a_right_answer_passes_and_a_wrong_one_fails(self):
        inputs = problem()
        o, state = recurrence(**inputs)
        export_fixture.save(self.path, **inputs, expected={"mine": {"o": o, "final_state": state}})
        self.passes()
        export_fixture.save(self.path, **inputs, expected={"mine": {"o": o * 1.001, "final_state": state}})
        self.assertEqual(kda_check("run", self.path)[0], 1)

    def test_gates_states_and_packed_sequences_mean_what_the_format_says(self):
        inputs, draw = problem(), np.random.default_rng(7)
        offsets, states = np.array([0, 4, 4, T]), draw.standard_normal((3, HV, K, V))
        bias, A_log = draw.standard_normal((HV, K)), draw.standard_normal(HV)
        gates = {"softplus": lambda g, j: -np.exp(A_log[j]) * np.log1p(np.exp(g + bias[j])),
                 "lower_bound": lambda g, j: -5 / (1 + np.exp(-np.exp(A_log[j]) * (g + bias[j])))}
        for gate, decay in gates.items():
            o, final = recurrence(**inputs, initial_state=states, cu_seqlens=offsets, decay=decay)
            export_fixture.save(self.path, **inputs, A_log=A_log, dt_bias=bias, cu_seqlens=offsets, state_v_first=True,
                                initial_state=states.swapaxes(2, 3), lower_bound=-5 if gate == "lower_bound" else None,
                                expected={"mine": {"o": o, "final_state": final.swapaxes(2, 3)}})
            with h5py.File(self.path) as file:
                self.assertEqual(file["options"].attrs["gate"], gate)
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
            export_fixture.save(self.path, **inputs, do=do, dht=dht, expected={"mine": answer},
                                provenance={"torch": version, "seed": 1})
            found, text = kda_check("run", self.path, "--against", "oracle")
            self.assertEqual(found, code, text)
            self.assertRegex(text, r" mine +fp64 +dv ")

    def test_bfloat16_keeps_its_bits(self):
        inputs = problem(ml_dtypes.bfloat16)
        o, _ = recurrence(**{key: array.astype(np.float64) for key, array in inputs.items()})
        export_fixture.save(self.path, **inputs, expected={"mine": {"o": o.astype(ml_dtypes.bfloat16)}})
        with h5py.File(self.path) as file:
            self.assertEqual(file["inputs/q"].attrs["dtype"], "bfloat16")
            np.testing.assert_array_equal(file["inputs/q"][()], inputs["q"].view(np.uint16))
            self.assertNotIn("compute", file["expected/mine"].attrs)  # nobody said it: reports are to say so
        self.assertRegex(kda_check("show", self.path)[1], r"inputs/q +bf16 ")
        self.passes("--tensor", "o")
        self.assertIn("compute assumed bf16", kda_check("run", self.path, "-v")[1])

    def test_torch_tensors_go_in_by_their_bits(self):
        """Real ones where torch is here, else objects that answer as they do."""
        inputs = problem(ml_dtypes.bfloat16)
        try:
            import torch
            tensor = lambda array: torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        except ImportError:
            sys.modules["torch"] = types.SimpleNamespace(int16=np.int16)
            self.addCleanup(sys.modules.pop, "torch")
            tensor = LikeTorch
        export_fla.save(self.path, {key: tensor(array) for key, array in inputs.items()})
        other = os.path.join(self.folder, "other.h5")
        export_fixture.save(other, **inputs)
        self.assertEqual(kda_check("diff", self.path, other)[0], 0)

    def test_words_of_fla_become_options(self):
        inputs = problem(np.float32)
        export_fla.save(self.path, {**inputs, "use_qk_l2norm_in_kernel": True, "use_gate_in_kernel": True, "safe_gate": True,
                                    "A_log": np.zeros(HV, np.float32), "lower_bound": -5.0, "output_final_state": True})
        with h5py.File(self.path) as file:
            options = file["options"].attrs
            self.assertEqual((options["gate"], options["lower_bound"], options["qk_l2norm"]), ("lower_bound", -5.0, 1))
        self.assertEqual(kda_check("run", self.path, "--variant", "recurrent")[0], 0)
        with self.assertRaisesRegex(TypeError, "no place .* cp_context"):
            export_fla.save(self.path, {**inputs, "cp_context": object()})
        # Without use_gate_in_kernel FLA takes g for the decay, whatever else it is given.
        export_fla.save(self.path, {**inputs, "A_log": np.zeros(HV, np.float32), "use_gate_in_kernel": False})
        with h5py.File(self.path) as file:
            self.assertEqual(file["options"].attrs["gate"], "none")

    def test_what_is_no_npz_is_named_and_never_unpickled(self):
        files = {"mine.safetensors": (b"\x40" + bytes(7) + b'{"q":{}}', "safetensors.torch.load_file"),
                 "mine.pt": (b"PK\x03\x04 mine/data.pkl", "weights_only=True"), "old.pt": (b"\x80\x02\x8a\x0a", "weights_only=True"),
                 "q.npy": (b"\x93NUMPY\x01\x00", "one array"), "empty.npz": (b"", "no .npz file")}
        for name, (first, words) in files.items():
            source = os.path.join(self.folder, name)
            with open(source, "wb") as file:
                file.write(first)
            done = subprocess.run([sys.executable, os.path.join(scripts, "export_jax.py"), source, "-o", self.path],
                                  capture_output=True, text=True)
            self.assertEqual(done.returncode, 1)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
            self.assertIn(words, done.stderr)
            self.assertIn(name, done.stderr)
            self.assertNotIn("allow_pickle", done.stderr)
            self.assertFalse(os.path.exists(self.path))

    def test_record_calls_the_kernel_and_npz_holds_bfloat16(self):
        def mine(**inputs):
            o, state = recurrence(**{key: array.astype(np.float64) for key, array in inputs.items()})
            return o.astype(np.float32), state.astype(np.float32)

        inputs = problem(np.float32)
        o, state = export_jax.record(self.path, mine, **inputs)
        self.passes()
        inputs = problem(ml_dtypes.bfloat16)
        o, state = mine(**inputs)
        source = os.path.join(self.folder, "mine.npz")
        np.savez(source, **inputs, **{"mine/o": o.astype(ml_dtypes.bfloat16), "mine/final_state": state})
        done = subprocess.run([sys.executable, os.path.join(scripts, "export_jax.py"), source, "-o", self.path],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.passes("--tensor", "o")

    def test_what_does_not_fit_is_refused_and_nothing_is_left_behind(self):
        inputs = problem()
        for wrong, message in (({"beta": inputs["beta"][:, :-1]}, "beta: shape"), ({"q": [1.0]}, "element type"),
                               ({"v": inputs["v"].astype(int)}, "int64"), ({"initial_state": np.zeros((1, HV, V, K))}, "wanted"),
                               ({"expected": {"mine": {"o": inputs["v"][:, 1:]}}}, "expected/mine/o"),
                               ({"normalise": True}, "no option")):
            with self.assertRaisesRegex((TypeError, ValueError), message):
                export_fixture.save(self.path, **{**inputs, **wrong})
        self.assertEqual(os.listdir(self.folder), [])

    def test_the_command_says_what_it_lacks(self):
        done = subprocess.run([sys.executable, os.path.join(scripts, "export_fla.py"), "-o", self.path],
                              capture_output=True, text=True)
        if done.returncode != 0:
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
            self.assertFalse(os.path.exists(self.path))


class LikeTorch:
    """What export_fixture asks of a tensor, answered by a numpy array."""

    def __init__(self, array):
        self.array, self.shape = array, array.shape
        self.dtype = f"torch.{array.dtype.name}"

    def detach(self):
        return self

    cpu = contiguous = detach

    def view(self, kind):
        return LikeTorch(self.array.view(kind))

    def numpy(self):
        if self.dtype == "torch.bfloat16":
            raise TypeError("Got unsupported ScalarType BFloat16")
        return self.array


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
