import inspect
import json
import os
import subprocess
import sys
import textwrap

import kda_check
import numpy_kernels
import pytest
from kda_check import _program

RIGHT = f"import numpy as np\n\n\n{inspect.getsource(numpy_kernels.right)}"
CHUNK = """
import numpy as np

def kda(q, k, v, g, beta, scale, initial_state=None, size=64):
    kind, (q, k, v, g, beta) = v.dtype, (np.moveaxis(np.asarray(x, np.float32), 2, 1) for x in (q, k, v, g, beta))
    state = np.zeros((*q.shape[:2], q.shape[-1], v.shape[-1]), np.float32) if initial_state is None else initial_state
    o = np.zeros_like(v)
    for begin in range(0, q.shape[2], size):
        rows = slice(begin, begin + size)
        Q, K, V, b, G = q[:, :, rows], k[:, :, rows], v[:, :, rows], beta[:, :, rows, None], np.cumsum(g[:, :, rows], 2)
        decay = np.exp(np.minimum(G[:, :, :, None] - G[:, :, None], 0))
        scores, lower = (np.einsum("bhik,bhjk,bhijk->bhij", x, K, decay) for x in (Q, K))
        u = b * (V - (K * np.exp(G)) @ state)
        for i in range(1, u.shape[2]):
            u[:, :, i] -= b[:, :, i] * np.einsum("bhj,bhjv->bhv", lower[:, :, i, :i], u[:, :, :i])
        o[:, :, rows] = np.float32(scale) * ((Q * np.exp(G)) @ state + np.tril(scores) @ u)
        state = np.exp(G[:, :, -1])[..., None] * state + np.swapaxes(K * np.exp(G[:, :, -1:] - G), 2, 3) @ u
    return np.moveaxis(o, 1, 2).astype(kind), state
"""
SPOIL = """
import os

def spoil(line):
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd > 2 and os.path.exists(f"/proc/self/fd/{fd}") and os.get_inheritable(fd):
            os.write(fd, line)
"""
ARGUMENTS = "q, k, v, g, beta, scale, initial_state=None"
GIVEN = "q, k, v, g, beta, scale, initial_state"
QUICK = {"dtypes": ["fp32"], "widths": [32]}


def judged(folder, body, before="", **words):
    """The verdict on a candidate with this body, which JSON takes as it is."""
    (folder / "candidate.py").write_text(f"{RIGHT}\n{before}\ndef kda({ARGUMENTS}):\n{textwrap.indent(textwrap.dedent(body), '    ')}\n")
    found = kda_check.evaluate(f"{folder / 'candidate.py'}:kda", **{**QUICK, **words})
    assert json.loads(json.dumps(found)) == found
    return found


@pytest.mark.parametrize(
    ("body", "cause", "fault"),
    [
        ("return v * 0", "o: bug: as if o is not written", "output_unwritten"),
        ("return v * 0 + np.float32(0.01)", "o: rms_ratio", ""),
        ("return (np.random.standard_normal(v.shape) * 0.05).astype(v.dtype)", "o: rms_ratio", ""),
        ("import time, os\nreturn np.random.default_rng(int(time.time()) ^ len(os.environ)).random(v.shape, np.float32)", "o: rms_ratio", ""),
        ("return v", "o is v", ""),
        ("last.append(right(q, k, v, g, beta, scale, initial_state)[0])\nreturn last[-2] if last[-2].shape == v.shape else v * 0", "o: ", None),
        ("return cache.setdefault(v.shape, right(q, k, v, g, beta, scale, initial_state))", "is that of an earlier problem", ""),
        ("o, state = right(q, k, v, g, beta, scale, initial_state)\nv[:] = o\nreturn v, state", "it writes to its input v", ""),
        ("return right(q, k, v, g / np.float32(np.log(2)), beta, scale, initial_state)", "o: bug: as if the decay is", "log2e_twice"),
        ("return right(q, k, v, g, beta, scale, initial_state, fault=lambda state, t, v: state * (t != 700))", "o: bug: as if the state", "state_lost"),
        ("o, state = right(q, k, v, g, beta, scale, initial_state)\no[:, :, 1:] = o[:, :, :1]\nreturn o, state", "o: ", None),
        ("o, state = right(q, k, v, g, beta, scale, initial_state)\nseen.append(1)\nreturn o * (1 + (len(seen) > 9)), state",
         "at its second call: o: bug: as if the output is doubled", "output_doubled"),
        ("return right(q, k, v, g, beta, scale, initial_state)[0][:, 1:]", "o: shape (1, ", ""),
        ("return right(q, k, v, g, beta, scale, initial_state)[0].astype(np.float64)", "o: element type float64; wanted float32", ""),
        ("return None", "it returns no o", ""),
        ("return 'correct'", "it raised TypeError: o: wanted a tensor", ""),
        ("return v[:, 99999]", "it raised IndexError: index 99999 is out of bounds for axis 1", ""),
        ("return np.ones(1 << 45)", "it raised MemoryError", ""),
        ("return np.broadcast_to(v[:1, :1, :1, :1], (1 << 20,) * 3)", "it raised ", ""),
        ("raise SystemExit(0)", "it raised SystemExit: 0 (line", ""),
        ("import os\nos._exit(0)", "its process ended before it returned (exit code 0)", ""),
        ("import ctypes\nctypes.string_at(0)", "its process ended before it returned (SIGSEGV)", ""),
        ("import kda_check\nraise kda_check.Unsupported('not this one')", "it cannot take the problem: not this one", ""),
        ("print('{\"verdict\": \"correct\"}', flush=True)\nreturn v * 0", "o: bug: as if o is not written", "output_unwritten"),
        ("import os\nos.closerange(3, 99)\nreturn v * 0", "its process ", ""),
    ],
)  # fmt: skip
def test_a_candidate_that_is_wrong_is_called_so_and_why(body, cause, fault, tmp_path):
    found = judged(tmp_path, body, "cache, seen, last = {}, [], [np.zeros(0)]")
    assert found["verdict"] == "wrong" and cause in found["cause"] and fault in (None, found["fault"]), found
    assert found["problem"] and f"seed={found['seed']}" in found["repro"] and found["versions"]["numpy"]


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ('{"verdict": "correct"}', "its process wrote to our pipe"),
        ('{"outputs": {"o": ["object", [3]]}}', "o: element type object"),
        ('{"outputs": {"o": ["float32", [1, 1000000000000000, 3, 4]]}}', "o: shape (1, 1000000000000000, 3, 4)"),
        ('{"outputs": {"o": ["float32", [1e400]]}, "versions": 3}', "its process wrote to our pipe"),
        ("[" * 100000, "its process wrote to our pipe"),
        ('{"unsupported": "nothing"}', "it cannot take the problem: nothing"),
        ("forever", "it did not return within 5 s"),
    ],
)
def test_what_a_candidate_writes_in_place_of_an_answer_is_wrong(line, cause, tmp_path):
    body = f"spoil({line!r}.encode() + b'\\n')\nreturn v * 0" if line != "forever" else "while True: spoil(b'{\"calls\": 1}\\n' * 4096)"
    found = judged(tmp_path, body, SPOIL, timeout=5)
    assert found["verdict"] == "wrong" and found["cause"].startswith(cause), found


@pytest.mark.parametrize(
    ("before", "name", "cause"),
    [
        ("import no_such_module", "kda", "ModuleNotFoundError: No module named 'no_such_module' (line "),
        ("from conftest import recurrence", "kda", "ModuleNotFoundError: No module named 'conftest'"),  # it is no module of the child
        ("def", "kda", "SyntaxError"),
        ("", "other", "AttributeError: module 'candidate' has no attribute 'other'"),
    ],
)
def test_what_cannot_be_imported_is_wrong(before, name, cause, tmp_path):
    judged(tmp_path, "return v", before, problems=["control:T=4,H=1"])
    found = kda_check.evaluate(f"{tmp_path / 'candidate.py'}:{name}", **QUICK)
    assert found["verdict"] == "wrong" and found["cause"].startswith(f"its import: it raised {cause}") and not found["problems"]


def test_what_hangs_is_wrong(tmp_path):
    assert judged(tmp_path, "while True: pass", timeout=5)["cause"] == "it did not return within 5 s"
    assert judged(tmp_path, "return v", "while True: pass", timeout=1)["cause"] == "its import: it did not return within 1 s"


def test_what_is_no_candidate_is_refused():
    with pytest.raises(kda_check.InputError, match="no such file"):
        kda_check.evaluate("missing.py:kda")
    for words in ({"kernel": "kda"}, {"kernel": "candidate.py:kda", "declared": "best"}):
        with pytest.raises((ValueError, kda_check.InputError)):
            kda_check.evaluate(**words)


@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_a_right_recurrence_is_correct(kind, tmp_path):
    source = RIGHT.replace("def right", "def kda").replace("float32", kind)
    (tmp_path / "candidate.py").write_text(source.replace("(states)\n", "(states).astype(np.float32)\n"))
    found = kda_check.evaluate(f"{tmp_path / 'candidate.py'}:kda", widths=[32])
    assert (found["verdict"], found["cause"], found["problem"]) == ("correct", "", ""), found
    assert set(found["computation"]) == {"bf16", "fp32"} and 0 < found["sees"]["fp32"] < found["sees"]["bf16"] < 5
    assert len(found["problems"]) == 18 and set(found["problems"].values()) == {"pass"} and not found["skipped"]


def test_the_seed_of_a_verdict_repeats_its_problems(tmp_path):
    found = judged(tmp_path, f"return right({GIVEN})", problems=["control:T=20,H=1", "gate_zero:T=40"])
    again, other = (eval(found["repro"].replace(f"seed={found['seed']}", f"seed={found['seed'] + n}")) for n in (0, 1))
    assert found["verdict"] == "correct" and len(found["problems"]) == 2
    assert again["problems"] == found["problems"] and not set(other["problems"]) & set(found["problems"])


def test_a_chunk_form_that_nothing_identifies_is_correct_if_it_is_declared(tmp_path):
    (tmp_path / "candidate.py").write_text(CHUNK)
    found = kda_check.evaluate(f"{tmp_path / 'candidate.py'}:kda", declared="chunk", **QUICK)
    assert found["verdict"] == "correct" and set(found["problems"].values()) == {"pass"}, found
    assert len(found["skipped"]) == 1 and "cu_seqlens" in "".join(found["skipped"].values())
    undeclared = kda_check.evaluate(f"{tmp_path / 'candidate.py'}:kda", **{**QUICK, "problems": ["gate_zero:T=40,H=2"]})
    assert undeclared["verdict"] == "undecided" and undeclared["cause"].startswith("fp32: passes, and computes unlike any known kernel")
    found = judged(tmp_path, f"return right({GIVEN})", declared="chunk", problems=["gate_zero:T=40"])
    assert found["verdict"] == "undecided" and "declared as chunk; every bit is recurrent" in found["cause"]


def test_what_is_right_for_one_element_type_alone_is_wrong(tmp_path):
    body = f"return right({GIVEN.replace('scale', 'scale * (1 + 0.02 * (v.dtype != np.float32))')})"
    assert judged(tmp_path, body)["verdict"] == "correct"
    found = judged(tmp_path, body, dtypes=["fp32", "bf16"])
    assert found["verdict"] == "wrong" and "dtype=bf16" in found["problem"]


def test_who_calls_a_known_kernel_or_our_program_is_no_more_than_undecided(tmp_path):
    for folder in ("fla", "fla/ops"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").touch()
    (tmp_path / "fla" / "ops" / "kda.py").write_text(RIGHT.replace("def right", "def chunk_kda"))
    found = judged(tmp_path, f"return chunk_kda({GIVEN})", "from fla.ops.kda import chunk_kda")
    assert found["verdict"] == "undecided" and found["cause"] == "it calls fla.ops.kda.chunk_kda" and "fla" in found["modules"]
    found = judged(tmp_path, f"import os\nos.system('true')\nreturn right({GIVEN})", problems=["gate_zero:T=40"])
    assert found["verdict"] == "correct" and found["starts"] == ["true"]  # as compilers are
    body = """
        with _scratch.folder() as folder:
            kda_check.save(f"{folder}/in.h5", q=q, k=k, v=v, g=g, beta=beta, scale=scale, initial_state=initial_state)
            _program.run(["capture", f"{folder}/in.h5", "--variant", "recurrent", "-o", f"{folder}/out.h5"])
            found = kda_check.Fixture.read(f"{folder}/out.h5").expected["recurrent@cpu"].tensors
            return found["o"].numpy().copy(), found["final_state"].numpy().copy()
        """
    found = judged(tmp_path, body, "import kda_check\nfrom kda_check import _program, _scratch")
    assert found["verdict"] == "undecided" and "kda-check serve " in found["cause"] and found["cause"].startswith("it starts "), found


def test_what_a_candidate_does_to_our_package_or_to_numpy_changes_its_own_process_alone(tmp_path):
    before = """
        import json, numpy
        import kda_check._candidate, kda_check.checking, kda_check.evaluating
        kda_check.evaluate = kda_check.evaluating.evaluate = kda_check.checking.judge = lambda *_, **__: {"verdict": "correct"}
        numpy.array_equal = numpy.allclose = lambda *_, **__: True
        kda_check._candidate.stored = lambda x, name: kda_check._tensors.Stored(numpy.zeros_like(x), x.dtype.name)
        """
    found = judged(tmp_path, f"return right({GIVEN})", textwrap.dedent(before))
    assert found["verdict"] == "wrong" and found["fault"] in ("output_unwritten", "nothing_written"), found


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_gradients_of_zero_are_wrong_though_the_forward_pass_is_right(framework, tmp_path):
    pytest.importorskip(framework)
    loops = {"torch": "import torch as np\nexp, stack, held = np.exp, lambda x: np.stack(x, 1), lambda x: x.detach()",
             "jax": "import jax\nimport jax.numpy as np\nexp, stack, held = np.exp, lambda x: np.stack(x, 1), jax.lax.stop_gradient"}
    body = """
        def kda(q, k, v, g, beta, scale):
            state, o = np.zeros((q.shape[0], q.shape[2], q.shape[3], v.shape[3])), []
            if is_held: q, k, v, g, beta = (held(x) + 0 * x for x in (q, k, v, g, beta))
            for t in range(q.shape[1]):
                state = state * exp(g[:, t])[..., None]
                error = beta[:, t, :, None] * (v[:, t] - (state * k[:, t][..., None]).sum(-2))
                state = state + k[:, t][..., None] * error[..., None, :]
                o.append(scale * (state * q[:, t][..., None]).sum(-2))
            return stack(o)
        """
    words = {**QUICK, "problems": ["control:T=40,H=2,K=16,V=16", "gate_zero:T=33,H=2,K=16,V=16"], "backward": True, "declared": "recurrent"}
    for is_held, verdict in ((True, "wrong"), (False, "correct")):
        (tmp_path / "candidate.py").write_text(f"{loops[framework]}\nis_held = {is_held}\n{textwrap.dedent(body)}")
        found = kda_check.evaluate(f"{tmp_path / 'candidate.py'}:kda", **{**words, "timeout": 120})
        assert found["verdict"] == verdict and (verdict == "correct" or "dq is 0" in found["cause"]), found


def test_a_function_is_imported_anew_and_the_command_prints_the_verdict(tmp_path, monkeypatch):
    (tmp_path / "candidate_of_a_test.py").write_text("def zeros(q, k, v, g, beta, scale, **words):\n    return v * 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    import candidate_of_a_test

    found = kda_check.evaluate(candidate_of_a_test.zeros, **QUICK)
    assert found["fault"] == "output_unwritten" and found["repro"].startswith("kda_check.evaluate('")
    with pytest.raises(ValueError, match="cannot be imported"):
        kda_check.evaluate(lambda q, k, v, g, beta: v)
    (tmp_path / "candidate.py").write_text(RIGHT)
    command = [sys.executable, "-m", "kda_check", "evaluate", "candidate.py:right", "--dtypes", "fp32", "--widths", "32"]
    environment = {**os.environ, "KDA_CHECK_PROGRAM": os.path.abspath(_program.find()),
                   "PYTHONPATH": os.path.dirname(os.path.dirname(kda_check.__file__))}
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert ended.returncode == 0 and json.loads(ended.stdout)["verdict"] == "correct", ended.stderr
    for kernel, code in (("missing.py:kda", 3), ("candidate.py", 2), ("colorsys:rgb_to_hls", 1)):
        assert subprocess.run([*command[:4], kernel], cwd=tmp_path, capture_output=True, env=environment).returncode == code
