#!/usr/bin/env python3
"""convert.py PROGRAM PYTHON: `python -m kda_check convert` on files of every kind that it knows, good and bad. What it makes
is judged by PROGRAM. PYTHON is the folder of the package. Exits with 77 where numpy is missing; .pt files are read where
torch is."""
import contextlib
import io
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
import types
import unittest
import zipfile

program, package = map(os.path.abspath, sys.argv[1:3])
try:
    import numpy as np
except ImportError as missing:
    print(f"SKIPPED: {missing}")
    sys.exit(77)
try:
    import torch
except ImportError:
    torch = None
sys.path.insert(0, package)
os.environ.update(PYTHONPATH=package, KDA_CHECK_PROGRAM=program)
from kda_check import __main__ as command  # noqa: E402

B, T, H, K, V = 1, 9, 2, 8, 6


def bfloat16(array):
    """Cut off, not rounded: numpy has no bfloat16, and any bits will do."""
    return (array.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16).view("V2")


def widened(array):
    return (array.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32) if array.dtype == "V2" else array


def problem():
    """A problem in bf16, and the answer of the recurrence in fp32."""
    draw = np.random.default_rng(5)
    unit = lambda array: array / np.linalg.norm(array, axis=-1, keepdims=True)
    inputs = {"q": bfloat16(unit(draw.standard_normal((B, T, H, K)))), "k": bfloat16(unit(draw.standard_normal((B, T, H, K)))),
              "v": bfloat16(draw.standard_normal((B, T, H, V))), "g": -draw.random((B, T, H, K)).astype(np.float32),
              "beta": draw.random((B, T, H)).astype(np.float32)}
    q, k, v, g, beta = (widened(array).astype(np.float64) for array in inputs.values())
    state, o = np.zeros((B, H, K, V)), np.zeros((B, T, H, V))
    for t in range(T):
        state *= np.exp(g[:, t, :, :, None])
        error = v[:, t] - np.einsum("bhkv,bhk->bhv", state, k[:, t])
        state += np.einsum("bhk,bhv->bhkv", k[:, t], beta[:, t, :, None] * error)
        o[:, t] = K ** -0.5 * np.einsum("bhkv,bhk->bhv", state, q[:, t])
    return inputs, {"o": o.astype(np.float32), "final_state": state.astype(np.float32)}


def write_safetensors(path, tensors, metadata=None, **damage):
    names = {"float64": "F64", "float32": "F32", "float16": "F16", "int64": "I64", "void16": "BF16"}
    header, content = {"__metadata__": metadata} if metadata else {}, b""
    for name, array in tensors.items():
        header[name] = {"dtype": names[array.dtype.name], "shape": list(array.shape),
                        "data_offsets": [len(content), len(content) + array.nbytes]}
        header[name].update(damage.get(name, {}))
        content += array.tobytes()
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + content)


def write_folder(path, tensors):
    for name, array in tensors.items():
        os.makedirs(os.path.dirname(os.path.join(path, name)), exist_ok=True)
        np.save(os.path.join(path, name + ".npy"), array)


def as_torch(array):
    return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16) if array.dtype == "V2" else torch.from_numpy(array)


class Convert(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.folder)
        self.inputs, answer = problem()
        self.tensors = {**self.inputs, **{f"mine/{name}": array for name, array in answer.items()}}

    def path(self, name):
        return os.path.join(self.folder, name)

    def run_convert(self, *words):
        """In this process: one that starts takes longer than most of these tests."""
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
            code = command.main(["convert", *words])
        return types.SimpleNamespace(returncode=code, stdout=out.getvalue(), stderr=err.getvalue())

    def converts(self, *words):
        done = self.run_convert(*words)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout.splitlines()

    def refused(self, code, said, *words):
        """One line on standard error that says all of `said`, and no file."""
        done = self.run_convert(*words)
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        self.assertTrue(done.stderr.startswith("kda-check: error: "), done.stderr)
        for words in said:
            self.assertIn(words, done.stderr)
        self.assertEqual([name for name in os.listdir(self.folder) if ".h5" in name], [])

    def judged(self, name, code=0):
        words = ["run", self.path(name), "--variant", "none", "--against", "oracle"]
        done = subprocess.run([program, *words], capture_output=True, text=True)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout

    def test_every_kind_of_file_becomes_the_same_fixture_bit_for_bit(self):
        write_safetensors(self.path("a.safetensors"), self.tensors, {"format": "pt"})
        write_safetensors(self.path("odd.safetensors"), self.tensors, {"format": "ptx"})  # elements at odd addresses
        np.savez(self.path("a.npz"), **self.tensors)
        np.savez_compressed(self.path("b.npz"), **self.tensors)
        write_folder(self.path("folder"), self.tensors)
        sources = ["a.safetensors", "odd.safetensors", "a.npz", "b.npz", "folder"]
        if torch:
            nested = {**{name: as_torch(array) for name, array in self.inputs.items()},
                      "mine": {name: as_torch(self.tensors[f"mine/{name}"]) for name in ("o", "final_state")}}
            torch.save(nested, self.path("a.pt"))
            torch.save(nested, self.path("old.pt"), _use_new_zipfile_serialization=False)
            os.mkdir(self.path("tensors"))
            for name, array in self.inputs.items():
                torch.save(as_torch(array), self.path(f"tensors/{name}.pt"))
            np.save(self.path("tensors/o.npy"), self.tensors["mine/o"])
            np.save(self.path("tensors/final_state.npy"), self.tensors["mine/final_state"])
            sources += ["a.pt", "old.pt", "tensors"]
        self.converts("a.safetensors", "first.h5", "--compute", "fp32")
        for source in sources:
            words = ["--answer", "mine"] if source == "tensors" else []
            self.assertEqual(self.converts(source, source + ".h5", "--compute", "fp32", *words), [source + ".h5"])
            self.assertRegex(self.judged(source + ".h5"), r"PASS +mine +fp32 +o ")
            files = self.path("first.h5"), self.path(source + ".h5")
            done = subprocess.run([program, "diff", *files], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_a_wrong_answer_stays_wrong(self):
        self.tensors["mine/o"] = self.tensors["mine/o"] * np.float32(1.001)
        np.savez(self.path("a.npz"), **self.tensors)
        self.converts("a.npz", "a.h5", "--compute", "fp32")
        self.assertRegex(self.judged("a.h5", 1), r"FAIL +mine +fp32 +o ")

    def test_a_mapping_renames_a_prefix_selects_and_the_rest_is_named_or_ignored(self):
        called = {"q": "query", "k": "key", "mine/o": "out", "mine/final_state": "ht"}
        layers = {f"layers.{layer}.{called.get(name, name)}": array for layer in (3, 4) for name, array in self.tensors.items()}
        write_safetensors(self.path("a.safetensors"), {**layers, "layers.3.step": np.array([7])})
        renaming = ("--prefix", "layers.3.", "--map", "q=query,k=key", "--map", "o=out,final_state=ht")
        self.refused(3, ["'step'", "a.safetensors", "--ignore step"], "a.safetensors", "a.h5", *renaming)
        for ignored in ("step", "st*", "*"):
            self.converts("a.safetensors", "a.h5", *renaming, "--ignore", ignored, "--answer", "mine", "--compute", "fp32")
            self.assertRegex(self.judged("a.h5"), r"PASS +mine +fp32 +o ")

    def test_options_come_from_the_source_and_from_the_words(self):
        A_log = np.zeros(H, np.float32)
        np.savez(self.path("a.npz"), **self.inputs, A_log=A_log, scale=np.float64(0.25), lower_bound=-5.0,
                 use_gate_in_kernel=True, use_qk_l2norm_in_kernel=np.True_, output_final_state=True)
        self.converts("a.npz", "a.h5", "--chunk-size", "32", "--beta-sigmoid")
        shown = subprocess.run([program, "show", self.path("a.h5")], capture_output=True, text=True).stdout
        self.assertIn("gate=lower_bound(-5) qk_l2norm beta_sigmoid chunk=32", shown)
        self.assertIn("scale 0.25", shown)
        self.converts("a.npz", "b.h5", "--scale", "0.5")
        self.assertIn("scale 0.5", subprocess.run([program, "show", self.path("b.h5")], capture_output=True, text=True).stdout)

    def test_a_folder_of_problems_becomes_a_folder_of_fixtures(self):
        os.makedirs(self.path("dumps/layer3"))
        np.savez(self.path("dumps/first.npz"), **self.tensors)
        write_safetensors(self.path("dumps/layer3/second.safetensors"), self.tensors)
        written = self.converts("dumps", "fixtures", "--compute", "fp32")
        self.assertEqual(written, ["fixtures/first.h5", "fixtures/layer3/second.h5"])
        self.assertIn("2 fixtures", self.judged("fixtures"))

    def test_a_header_of_any_size_is_one_of_safetensors(self):
        """One of 128 bytes begins as a pickle does."""
        for pad in range(256):
            write_safetensors(self.path("a.safetensors"), {"beta": self.inputs["beta"]}, {"pad": "." * pad})
            with open(self.path("a.safetensors"), "rb") as file:
                if file.read(1) == b"\x80":
                    return self.assertEqual(len(self.converts("a.safetensors")), 2)
        self.fail("no such header")

    def test_two_files_do_not_become_one(self):
        os.mkdir(self.path("calls"))
        np.savez(self.path("calls/a.npz"), **self.tensors)
        write_safetensors(self.path("calls/a.safetensors"), self.tensors)
        done = self.run_convert("calls", "made")
        self.assertEqual(done.returncode, 3)
        self.assertIn("two files would become 'made/a.h5' (calls/a.safetensors)", done.stderr)

    def test_a_file_is_not_written_over_itself(self):
        np.savez(self.path("a.npz"), **self.tensors)
        self.refused(2, ["'a.npz'", "written over"], "a.npz", "a.npz")
        self.converts("a.npz", "a.h5", "--compute", "fp32")

    def test_without_a_target_it_says_what_is_there(self):
        write_safetensors(self.path("a.safetensors"), {**self.tensors, "step": np.array([7])})
        lines = self.converts("a.safetensors")
        self.assertRegex(lines[1], r"^  q +bfloat16 +\[1,9,2,8\]$")
        self.assertRegex(lines[-1], r"step .*no place")
        for words, code in ((["a.safetensors"], 0), (["a.safetensors", "a.h5"], 3), (["a.safetensors", "--chunk-size", "x"], 2)):
            done = subprocess.run([sys.executable, "-m", "kda_check", "convert", *words], capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stdout.splitlines()), (code, [] if code else lines), done.stderr)

    def test_a_listing_reads_no_elements(self):
        for name, packed in (("stored.npz", zipfile.ZIP_STORED), ("packed.npz", zipfile.ZIP_DEFLATED)):
            with zipfile.ZipFile(self.path(name), "w", packed) as archive, archive.open("q.npy", "w") as file:
                np.lib.format.write_array_header_1_0(file, {"descr": "|V2", "fortran_order": False, "shape": (1, 1 << 40)})
            self.assertEqual(self.converts(name)[1:], [f"  {'q':<32} bfloat16   [1,{1 << 40}]"])
        with open(self.path("alone.npy"), "wb") as file:
            np.lib.format.write_array_header_2_0(file, {"descr": "<f4", "fortran_order": False, "shape": (1 << 40,)})
        os.mkdir(self.path("folder"))
        os.rename(self.path("alone.npy"), self.path("folder/k.npy"))
        self.assertEqual(self.converts("folder")[1:], [f"  {'k':<32} float32    [{1 << 40}]"])

    def test_names_in_a_file_are_text_to_a_terminal_and_to_the_log_of_a_workflow(self):
        name, shown = "\x1b[31m\n::error::\u202e", r"\x1b[31m\x0a::error::\u202e"
        write_safetensors(self.path("a.safetensors"), {**self.tensors, name: self.tensors["beta"]})
        np.savez(self.path("a.npz"), **{**self.tensors, name: self.tensors["beta"]})
        os.mkdir(self.path("\x1b"))
        np.savez(self.path("\x1b/::a.npz"), **self.tensors)
        for source in ("a.safetensors", "a.npz"):
            lines = self.converts(source)
            self.assertEqual(len(lines), 9)
            self.assertRegex(lines[-1], "^  " + re.escape(shown) + " +float32 +")
            self.refused(3, [f"'{shown}'", f"({source})"], source, "a.h5")
            self.refused(3, [f"no tensor 'z' for q; there are q, k, v, g, beta, mine/o, mine/final_state, {shown}"],
                         source, "a.h5", "--map", "q=z")
        write_safetensors(self.path("b.safetensors"), {**self.tensors, name: self.tensors["beta"]}, **{name: {"shape": [-1]}})
        self.refused(3, [f"{shown} has the shape"], "b.safetensors", "a.h5")
        np.savez(self.path("c.npz"), **{**self.tensors, "::error::/o": self.tensors["mine/o"][:, 1:]})
        self.refused(3, ["\\x3a:error::: o: shape", "(c.npz)"], "c.npz", "c.h5")
        self.refused(3, ["options/gate is \\x1b[31m; wanted"], self.write("d.npz", gate="\x1b[31m"), "d.h5")
        self.assertEqual(self.converts("\x1b")[0], r"\x1b/::a.npz")
        self.assertEqual(self.converts("\x1b", "::made"), [r"\x3a:made/::a.h5"])

    def test_tensors_that_share_bytes_or_a_name_are_refused(self):
        write_safetensors(self.path("a.safetensors"), self.tensors, k={"data_offsets": [0, 2 * B * T * H * K]})
        for target in (["a.h5"], []):
            self.refused(3, ["k and q have the same bytes, 0..288", "(a.safetensors)"], "a.safetensors", *target)
        text = b'{"q": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}, "q": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}'
        with open(self.path("b.safetensors"), "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text + b"0")
        self.refused(3, ["'q' is there twice (b.safetensors)"], "b.safetensors")
        np.savez(self.path("c.npz"), **self.tensors)
        with zipfile.ZipFile(self.path("c.npz"), "a") as archive:
            archive.writestr("q", archive.read("k.npy"))
        self.refused(3, ["'q' is there twice (c.npz)"], "c.npz")

    def test_what_names_nobody_belongs_to_the_one_who_is_named(self):
        o, state = self.tensors["mine/o"], self.tensors["mine/final_state"]
        groups = lambda name: {line.split()[1] for line in self.judged(name).splitlines() if line.startswith("  PASS")}
        np.savez(self.path("a.npz"), **self.inputs, out=o, final_state=state)
        for words, wanted in ((("--map", "my_kernel/o=out"), {"my_kernel"}), (("--map", "o=out"), {"kernel"}),
                              (("--map", "o=out", "--answer", "me"), {"me"}),
                              (("--map", "my_kernel/o=out", "--answer", "me"), {"my_kernel", "me"})):
            self.converts("a.npz", "a.h5", "--compute", "fp32", *words)
            self.assertEqual(groups("a.h5"), wanted)
        os.remove(self.path("a.h5"))
        # Somebody who has a final state already is somebody else; of two who have none it may be either's.
        np.savez(self.path("b.npz"), **self.inputs, out=o, final_state=state, **{"naive/o": o, "naive/final_state": state})
        self.converts("b.npz", "b.h5", "--compute", "fp32", "--map", "my_kernel/o=out")
        self.assertEqual(groups("b.h5"), {"my_kernel", "naive"})
        self.converts("b.npz", "b.h5", "--compute", "fp32", "--map", "o=out")
        self.assertEqual(groups("b.h5"), {"kernel", "naive"})
        os.remove(self.path("b.h5"))
        np.savez(self.path("c.npz"), **self.inputs, out=o, final_state=state, **{"naive/o": o})
        self.refused(3, ["final_state may be of my_kernel or naive", "(c.npz); hint: --answer my_kernel"],
                     "c.npz", "c.h5", "--map", "my_kernel/o=out")
        self.converts("c.npz", "c.h5", "--compute", "fp32", "--map", "my_kernel/o=out", "--answer", "my_kernel")
        self.assertEqual(groups("c.h5"), {"my_kernel", "naive"})

    def test_a_tensor_that_is_mapped_to_two_names_is_refused(self):
        np.savez(self.path("a.npz"), **self.inputs, out=self.tensors["mine/o"])
        self.refused(2, ["'out' is mapped to two names"], "a.npz", "a.h5", "--map", "o=out,mine/o=out")
        self.refused(2, ["--map says of o twice"], "a.npz", "a.h5", "--map", "o=out,o=q")

    def test_what_is_missing_or_has_no_place_is_named(self):
        np.savez(self.path("a.npz"), **{("query" if name == "q" else name): array for name, array in self.tensors.items()})
        self.refused(3, ["'query'", "(a.npz)", "--ignore query"], "a.npz", "a.h5")
        self.refused(3, ["no q;", "(a.npz)", "--map q=NAME"], "a.npz", "a.h5", "--ignore", "query")
        self.refused(3, ["no tensor 'querry'", "hint: --map q=query"], "a.npz", "a.h5", "--map", "q=querry")
        self.refused(2, ["'z=query'"], "a.npz", "a.h5", "--map", "z=query")
        self.refused(2, ["'query'"], "a.npz", "a.h5", "--map", "query")
        self.refused(4, ["nowhere"], "a.npz", "nowhere/a.h5", "--map", "q=query")
        self.refused(3, ["k: shape", "(b.npz)"], self.write("b.npz", k=self.inputs["k"][:, :, :1]), "b.h5")
        integers, short = np.ones((B, T, H, V), np.int64), self.tensors["mine/o"][:, 1:]
        self.refused(3, ["v: element type int64", "(c.npz)"], self.write("c.npz", v=integers), "c.h5")
        self.refused(3, ["mine: o: shape", "(d.npz)"], self.write("d.npz", **{"mine/o": short}), "d.h5")
        self.refused(3, ["cp_context", "(e.npz)"], self.write("e.npz", cp_context=np.ones(3)), "e.h5")
        # An answer by another name, and no word of FLA that would change what A_log means.
        self.refused(3, ["'out'", "(f.npz)"], self.write("f.npz", out=short, A_log=np.zeros(H)), "f.h5")

    def test_options_that_the_program_would_refuse_are_named(self):
        np.savez(self.path("a.npz"), **self.tensors)
        for words, said in ((("--scale", "nan"), "options/scale is nan; wanted a finite number (a.npz)"),
                            (("--scale=-inf",), "options/scale is -inf; wanted a finite number"),
                            (("--lower-bound", "nan"), "options/lower_bound is nan; wanted a negative number"),
                            (("--lower-bound=-inf",), "options/lower_bound is -inf; wanted a negative number"),
                            (("--gate", "softplus"), "options/gate is softplus; wanted none, lower_bound, or softplus and A_log"),
                            (("--chunk-size", "0"), "options/chunk_size is 0; wanted 1..1048576"),
                            (("--allow-neg-eigval",), "options/allow_neg_eigval is 1; wanted beta_sigmoid")):
            self.refused(2, [said], "a.npz", "a.h5", *words)
        for there, said in (({"scale": np.float64("inf")}, "options/scale is inf; wanted a finite number (b.npz)"),
                            ({"gate": "soft"}, "options/gate is soft; wanted none"),
                            ({"gate": "lower_bound"}, "options/lower_bound is missing; wanted a negative number"),
                            ({"chunk_size": np.float64("inf")}, "chunk_size: wanted a whole number, got inf (b.npz)"),
                            ({"use_qk_l2norm_in_kernel": "no"}, "qk_l2norm: wanted True or False, got 'no' (b.npz)"),
                            ({"scale": np.ones(3)}, "scale has the shape [3]; wanted one number (b.npz)")):
            self.refused(3, [said], self.write("b.npz", **there), "b.h5")

    def write(self, name, **other):
        np.savez(self.path(name), **{**self.tensors, **other})
        return name

    def test_damaged_files_are_one_line(self):
        np.savez(self.path("a.npz"), **self.tensors)
        write_safetensors(self.path("a.safetensors"), self.tensors)
        for name in ("a.npz", "a.safetensors"):
            with open(self.path(name), "rb") as file:
                content = file.read()
            for share in (0, 3, 9, 30, len(content) // 2, len(content) - 1):
                with open(self.path("cut"), "wb") as file:
                    file.write(content[:share])
                self.refused(3, ["(cut)"], "cut", "cut.h5")
        for damage, said in (({"dtype": "F8_E4M3"}, "F8_E4M3"), ({"shape": [B, T, H, K + 1]}, "bytes"),
                             ({"data_offsets": [-2, 286]}, "q has the shape"), ({"data_offsets": None}, "damaged"),
                             ({"shape": [1 << 62, 1 << 62, 4]}, "wants"), ({"shape": "many"}, "q has the shape")):
            write_safetensors(self.path("b.safetensors"), self.tensors, q=damage)
            self.refused(3, [said, "(b.safetensors)"], "b.safetensors", "b.h5")
        with open(self.path("list.safetensors"), "wb") as file:
            file.write(struct.pack("<Q", 9) + b'{"q": []}')
        self.refused(3, ["(list.safetensors)"], "list.safetensors", "a.h5")

    def test_files_that_hold_something_else_are_named_and_never_unpickled(self):
        class Trap:
            def __reduce__(self):
                return os.mkdir, ("trapped.h5",)

        np.savez(self.path("objects.npz"), **{**self.tensors, "q": np.array([Trap()])})
        self.refused(3, ["q holds Python objects", "(objects.npz)"], "objects.npz", "a.h5")
        for name, content, said in (("a.txt", b"hello", "no file of tensors"), ("empty", b"", "no file of tensors")):
            with open(self.path(name), "wb") as file:
                file.write(content)
            self.refused(3, [said, f"({name})"], name, "a.h5")
        np.save(self.path("q.npy"), self.inputs["q"])
        self.refused(3, ["one tensor", "(q.npy)"], "q.npy", "a.h5")
        self.refused(3, ["No such file", "(nowhere.npz)"], "nowhere.npz", "a.h5")
        os.mkdir(self.path("bare"))
        self.refused(3, ["no file that ends in", "(bare)"], "bare", "a.h5")
        import pickle

        with open(self.path("trap.pt"), "wb") as file:
            pickle.dump({"q": Trap()}, file, 2)
        said = [] if torch else ["PyTorch", "pip install torch"]
        self.refused(3 if torch else 4, ["(trap.pt)", *said], "trap.pt", "a.h5")
        if torch:
            torch.save({"q": Trap()}, self.path("zipped.pt"))
            self.refused(3, ["no tensors", "(zipped.pt)"], "zipped.pt", "a.h5")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
