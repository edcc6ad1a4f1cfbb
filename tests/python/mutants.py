"""Wrong kernels under the tolerance of FLA's tests, and under kda_check (docs/verdicts.md sums it up).

    python tests/python/mutants.py [fp16 bf16]
"""

import os
import sys

import kda_check
import torch
import torch.nn.functional as F

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from chunk_kernel import CHUNK, chunk_kda  # noqa: E402

# Of the tests of chunk_kda in FLA: root mean square of the error over that of the reference. dA_log is a warning there.
TOLERANCES = {"o": 5e-3, "final_state": 5e-3, "dq": 8e-3, "dk": 8e-3, "dv": 8e-3, "dg": 2e-2, "dbeta": 2e-2,
              "dinitial_state": 8e-3, "dA_log": float("inf"), "ddt_bias": 8e-3}
SHARES = (1, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 3e-4)
PRECISIONS = {"fp16": torch.float16, "bf16": torch.bfloat16}
B, T, H, K, V = 2, 500, 4, 64, 32
MIDDLE = T // 2


def forward_problem(dtype):
    """As FLA's tests draw them: keys of one sign, values too, gates of every size, a random state."""
    torch.manual_seed(42)
    q, k = (F.normalize(torch.rand(B, T, H, K), dim=-1).to(dtype) for _ in range(2))
    return {"q": q, "k": k, "v": torch.rand(B, T, H, V).to(dtype), "g": F.logsigmoid(torch.randn(B, T, H, K)) / 10,
            "beta": torch.randn(B, T, H).sigmoid().to(dtype), "initial_state": torch.randn(B, H, K, V)}


def backward_problem(dtype):
    """The same with norm and gate in the kernel, two value heads to a query head, and a loss."""
    words = forward_problem(dtype)
    torch.manual_seed(43)
    q, k = (torch.randn(B, T, H // 2, K).to(dtype) for _ in range(2))
    return {**words, "q": q, "k": k, "g": torch.randn(B, T, H, K), "A_log": torch.randn(H), "dt_bias": torch.randn(H * K) - 3,
            "use_qk_l2norm_in_kernel": True, "use_gate_in_kernel": True}


def exact(words):
    """(o, final_state) in fp64."""
    return chunk_kda(**words, kind=torch.float64, store=False)


def misread(**changes):
    """A kernel that reads its words so; changes: functions of all of them."""
    return lambda words, o, s: exact({**words, **{key: change(words) for key, change in changes.items()}})


def delayed(x):
    return torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1)


def replaced(x, index, value):
    x = x.clone()
    x[index] = value
    return x


def slowest_slower(words):
    g, heads = words["g"].clone(), torch.arange(H)
    slowest = g.sum((0, 1)).argmax(-1)
    g[:, :, heads, slowest] = 0
    return g


def predicts_before_decay(words, o, s):
    q, k, v, g, beta, state = (words[key].double() for key in ("q", "k", "v", "g", "beta", "initial_state"))
    rows = []
    for t in range(T):
        error = beta[:, t][..., None] * (v[:, t] - torch.einsum("bhkv,bhk->bhv", state, k[:, t]))
        state = state * g[:, t].exp()[..., None] + k[:, t][..., None] * error[..., None, :]
        rows.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]) * K**-0.5)
    return torch.stack(rows, 1), state


def state_not_carried(words, o, s):
    def part(begin):
        inside = {key: x[:, begin : begin + CHUNK] for key, x in words.items() if key != "initial_state"}
        return exact({**inside, "initial_state": words["initial_state"] * (begin == 0)})

    parts = [part(begin) for begin in range(0, T, CHUNK)]
    return torch.cat([o for o, _ in parts], 1), parts[-1][1]


def carried_state(words, o, s):
    """What the state after the first chunk contributes, twice: the answer is linear in values and state."""
    until = replaced(words["v"], (slice(None), slice(CHUNK, None)), 0)
    more, state = exact({**words, "v": until})
    return o + torch.cat([0 * more[:, :CHUNK], more[:, CHUNK:]], 1), s + state


def output(*index):
    """o twice as large there."""
    return lambda words, o, s: (replaced(o, index, 2 * o[index]), s)


def state(*index):
    return lambda words, o, s: (o, replaced(s, index, 2 * s[index]))


def stale(t):
    return lambda words, o, s: (replaced(o, (slice(None), t), o[:, t - 1]), s)


def last_token_dropped(words, o, s):
    o, s = exact({**words, "g": replaced(words["g"], (slice(None), -1), 0), "beta": replaced(words["beta"], (slice(None), -1), 0)})
    return o, s


ALL, ONE = slice(None), slice(0, 1)
CHUNK_ROWS = slice(MIDDLE // CHUNK * CHUNK, (MIDDLE // CHUNK + 1) * CHUNK)
# In full, by name and what it does; a share is right + share x (wrong - right), stored once.
FORWARD = {
    "too_large": ("o doubled", output(ALL)),
    "head_too_large": ("o of a head doubled", output(ALL, ALL, H - 1)),
    "chunk_too_large": ("o of a chunk of a head doubled", output(ONE, CHUNK_ROWS, 0)),
    "window_too_large": ("o of 8 tokens of a head doubled", output(ONE, slice(MIDDLE // 8 * 8, MIDDLE // 8 * 8 + 8), 0)),
    "last_rows_too_large": ("the last row of every chunk doubled", output(ALL, slice(CHUNK - 1, None, CHUNK))),
    "ragged_too_large": ("o of the last, ragged chunk doubled", output(ALL, slice(T // CHUNK * CHUNK, None))),
    "row_too_large": ("o of a token of a head doubled", output(ONE, MIDDLE, 0)),
    "column_too_large": ("a column of o of a head doubled", output(ALL, ALL, 0, V // 2)),
    "tile_too_large": ("16 x 16 of o of a head doubled", output(ONE, slice(MIDDLE // 16 * 16, MIDDLE // 16 * 16 + 16), 0, slice(16, 32))),
    "element_too_large": ("one element of o doubled", output(0, MIDDLE, 0, V // 2)),
    "nan_as_zero": ("one element of o is zero", lambda words, o, s: (replaced(o, (0, MIDDLE, 0, V // 2), 0), s)),
    "state_too_large": ("final_state doubled", state(ALL)),
    "state_row_too_large": ("a row of final_state doubled", state(0, 0, K // 2)),
    "state_column_too_large": ("a column of final_state doubled", state(0, 0, ALL, V // 2)),
    "carried_state_too_large": ("the state after the first chunk doubled", carried_state),
    "gate_late": ("the gate of the token before", misread(g=lambda words: delayed(words["g"]))),
    "gate_mean": ("the gate averaged over channels", misread(g=lambda words: words["g"].mean(-1, keepdim=True).expand(B, T, H, K))),
    "gate_at_chunk_starts": ("a chunk's first token has the gate of its second", misread(
        g=lambda words: replaced(words["g"], (ALL, slice(0, T, CHUNK)), words["g"][:, 1::CHUNK]))),
    "exp2_for_exp": ("the decay is a power of two", misread(g=lambda words: words["g"].double() * 0.6931471805599453)),
    "gate_too_large": ("log decays doubled", misread(g=lambda words: 2 * words["g"])),
    "slowest_channel": ("the slowest channel of a head does not decay", misread(g=slowest_slower)),
    "decay_missed": ("one token does not decay", misread(g=lambda words: replaced(words["g"], (ONE, MIDDLE), 0))),
    "beta_twice": ("beta squared", misread(beta=lambda words: words["beta"].double() ** 2)),
    "without_beta": ("beta is one", misread(beta=lambda words: torch.ones_like(words["beta"]))),
    "beta_too_large": ("beta 10 % too large", misread(beta=lambda words: 1.1 * words["beta"].double())),
    "predict_before_decay": ("predicts from the state before it decays", predicts_before_decay),
    "scale_of_values": ("1/sqrt(V) for 1/sqrt(K)", misread(scale=lambda words: V**-0.5)),
    "write_lost": ("the update of a token is lost", misread(beta=lambda words: replaced(words["beta"], (ONE, 64), 0))),
    "initial_state_dropped": ("starts from zeros", misread(initial_state=lambda words: 0 * words["initial_state"])),
    "state_read_in_bf16": ("the state handed over is read in bf16", misread(initial_state=lambda words: words["initial_state"].bfloat16())),
    "state_not_carried": ("every chunk starts from zeros", state_not_carried),
    "last_token_dropped": ("the last token is not read", last_token_dropped),
    "last_row_stale": ("the last row of o is the one before", stale(T - 1)),
    "row_stale": ("a row of o is the one before", stale(MIDDLE)),
    "wrong_head": ("the first head gets the output of the last", lambda words, o, s: (replaced(o, (ALL, ALL, 0), o[:, :, -1]), s)),
    "wrong_head_in_a_chunk": ("the same in one chunk",
                              lambda words, o, s: (replaced(o, (ONE, CHUNK_ROWS, 0), o[ONE, CHUNK_ROWS, -1]), s)),
}
# Wrong backward passes behind a right forward pass; what they do is in chunk_kernel.py.
BACKWARD = {
    "norm_dropped": "gradients of the normalised q and k",
    "norm_not_projected": "... divided by the norm only",
    "first_token_masked": "no dg at the first token",
    "unscaled_scores": "the scores' gradient without scale",
    "not_transposed": "A dA A for A^T dA A^T",
    "last_of_group": "no sum over value heads in dq and dk",
    "bias_by_channel": "ddt_bias as [K][HV]",
    "amplitude_not_raised": "dA for dA_log",
    "base_two": "dg of a gate in powers of two",
    "state_gradient_lost": "dht is not read",
    "last_row_of_tile": "a ragged chunk loses what the state's decay adds to dg",
}
# What a kernel does instead of what it says.
SILENT = {
    "silent_bf16": ("fp16", "products in bf16 that say fp16", {"kind": torch.bfloat16}),
    "state_in_bf16": ("fp16", "the state is kept in bf16", {"carry": torch.bfloat16}),
    "state_in_bf16 ": ("bf16", "the state is kept in bf16", {"carry": torch.bfloat16}),
    "state_in_fp16": ("fp16", "the state is kept in fp16", {"carry": torch.float16}),
}
# One-bit faults that no tolerance can see: laws of `verify`.
LAWS = {
    "odd_head": ("one bit of the first head", ("split", "heads")),
    "second_sequence": ("one bit of the second sequence", ("batch",)),
}


def gradients(words, loss, **how):
    leaves = {key: x.detach().requires_grad_() for key, x in words.items() if torch.is_tensor(x)}
    outputs = chunk_kda(**{**words, **leaves}, **how)
    found = torch.autograd.grad(outputs, list(leaves.values()), [d.to(x.dtype) for d, x in zip(loss, outputs)])
    return {f"d{key}": x for key, x in zip(leaves, found)}


class Trial:
    """A problem, what a right kernel answers to it and what is true."""

    def __init__(self, precision, backward=False):
        self.compute, self.backward = precision, backward
        dtype = PRECISIONS[precision]
        self.words = (backward_problem if backward else forward_problem)(dtype)
        o, s = chunk_kda(**self.words, store=False)
        self.answer, self.truth = {"o": o, "final_state": s}, dict(zip(("o", "final_state"), exact(self.words)))
        self.dtypes = {"o": dtype, "final_state": torch.float32}
        self.loss = torch.randn_like(self.words["v"]), torch.randn_like(s)
        if backward:
            self.answer["o"] = o.to(dtype)
            found, self.gradients = gradients(self.words, self.loss), self.gradients_of("")
            self.answer, self.truth = {**self.answer, **found}, {**self.truth, **self.gradients}
            self.dtypes.update({key: x.dtype for key, x in found.items()})

    def gradients_of(self, bug):
        return gradients(self.words, self.loss, kind=torch.float64, store=False, bug=bug)

    def difference(self, name):
        """Wrong less right, in fp64, of what is wrong."""
        if self.backward:
            wrong = self.gradients_of(name)
        else:
            wrong = dict(zip(("o", "final_state"), FORWARD[name][1](self.words, self.truth["o"], self.truth["final_state"])))
        return {key: x - self.truth[key].to(x.dtype) for key, x in wrong.items()}

    def answered(self, difference, share):
        added = {key: share * difference[key] if key in difference else 0 for key in self.answer}
        return {key: (x.double() + added[key]).to(self.dtypes[key]) for key, x in self.answer.items()}

    def fla(self, answer):
        """(worst ratio, of which tensor, whether FLA's tests pass, whether they do in its CI, where most only warn)."""
        rows = []
        for name, x in answer.items():
            error, truth = (x.double() - self.truth[name].double()), self.truth[name].double()
            ratio = float(error.square().mean().sqrt() / (truth.square().mean().sqrt() + 1e-8))
            passes = ratio < TOLERANCES[name] or float(error.abs().max()) <= 1e-6
            warns = ratio < 0.01 or float(error.abs().max()) <= 0.3
            rows.append((ratio / TOLERANCES[name] if ratio == ratio else float("inf"), ratio, name, passes, passes or warns))
        _, ratio, name, _, _ = max(rows)
        return ratio, name, all(row[3] for row in rows), all(row[4] for row in rows)

    def ours(self, answer):
        words = {key: x for key, x in self.words.items() if not key.startswith("use_")}
        if self.backward:
            words.update(qk_l2norm=True, do=self.loss[0], dht=self.loss[1])
        return kda_check.check(**answer, **words, compute=self.compute)


def sentence(report):
    """The worst of a report's tensors, and why."""
    worst = max(report.tensors(), key=lambda row: ("pass", "inconclusive", "fail").index(row.verdict))
    return "" if worst.passed else f"{worst.row['name']}: {worst.reason}"


def verdict(report):
    """passes, INCONCLUSIVE or FAIL: the worst of its tensors."""
    verdicts = {row.verdict for row in report.tensors()}
    return "FAIL" if "fail" in verdicts else "passes" if report.passed else "INCONCLUSIVE"


def row_of(trial, name, what):
    """The mutant at the largest share that FLA's tests let pass, and the least that we do not let pass; None: nothing is wrong."""
    if name in SILENT:
        o, s = chunk_kda(**trial.words, **SILENT[name][2])
        sizes = [(1, {"o": o, "final_state": s})]
    else:
        difference = trial.difference(name)
        if not any(bool(x.any()) for x in difference.values()):
            return None
        sizes = [(share, trial.answered(difference, share)) for share in SHARES]
    theirs = [trial.fla(answer) for _, answer in sizes]
    there = next((i for i, found in enumerate(theirs) if found[2]), None)
    in_ci = next((share for (share, _), found in zip(sizes, theirs) if found[3]), None)
    at = there if there is not None else len(sizes) - 1
    report, seen = trial.ours(sizes[at][1]), None
    for share, answer in sizes if not report.passed else sizes[:at]:
        if (report if share == sizes[at][0] else trial.ours(answer)).passed:
            break
        seen = share
    return {"name": name.strip(), "what": what, "fla": None if there is None else sizes[at][0], "in_ci": in_ci,
            "ratio": theirs[at][0], "tensor": theirs[at][1], "verdict": verdict(report), "seen": seen, "sentence": sentence(report)}


def law_of(name):
    """Whether FLA's tolerance and the laws let a one-bit fault pass."""
    def kernel(q, k, v, g, beta, scale=None, initial_state=None, output_final_state=True):
        o, s = chunk_kda(q, k, v, g, beta, scale, initial_state)
        if name == "odd_head":
            o.view(torch.int16)[0, 0, 0, 0] ^= 1
        if name == "second_sequence" and s.shape[0] > 1:
            s.view(torch.int32)[1, 0, 0, 0] ^= 1
        return o, s

    problem = kda_check.Fixture.of(**forward_problem(torch.float16))
    return kda_check.verify(kernel, problem, compute="fp16", framework="torch", invariants=LAWS[name][1])


def percent(share):
    return "-" if share is None else f"{100 * share:g} %"


def table(precision):
    print(f"\n{precision}\n")
    print("| wrong kernel | in full | FLA's tests pass up to | in CI | ratio | ours there | ours fails from | what ours says there |")
    print("|---|---|---|---|---|---|---|---|")
    silent = {name: what for name, (where, what, _) in SILENT.items() if where == precision}
    forward = {name: what for name, (what, _) in FORWARD.items()}
    for backward, mutants in ((False, {**forward, **silent}), (True, BACKWARD)):
        trial = Trial(precision, backward)
        right = trial.answered({}, 0)
        ratio, tensor, passes, _ = trial.fla(right)
        print(f"| | none: a right kernel{' and its gradients' if backward else ''} | {'passes' if passes else 'FAILS'} | | "
              f"{tensor} {ratio:.2g} | {verdict(trial.ours(right))} | | |")
        for name, what in mutants.items():
            row = row_of(trial, name, what)
            if row is not None:
                print(f"| `{row['name']}` | {what} | {percent(row['fla'])} | {percent(row['in_ci'])} | {row['tensor']} {row['ratio']:.2g} | "
                      f"{row['verdict']} | {percent(row['seen'])} | {row['sentence']} |", flush=True)


if __name__ == "__main__":
    for precision in sys.argv[1:] or PRECISIONS:
        table(precision)
    print("\none bit, which every tolerance lets pass\n")
    for name, (what, _) in LAWS.items():
        failed = [case["against"] for case in law_of(name).cases if case["verdict"] == "fail"]
        print(f"| `{name}` | {what} | {'FAIL: ' + ', '.join(failed) if failed else 'passes'} |")
