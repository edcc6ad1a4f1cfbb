"""`evaluate`: one verdict, for machines, on a kernel that nobody has read."""

from __future__ import annotations

import argparse
import base64
import inspect
import json
import os
import pickle
import platform
import random
import re
import secrets
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from . import _program
from ._candidate import Candidate, Wrong
from ._kinds import flag, listed, number, whole
from ._tensors import ELEMENT_TYPES, Stored
from .checking import judge
from .fixture import OUTPUTS, Fixture
from .report import RANKS, Report
from .signatures import FLA, Signature, Unsupported, Words
from .verifying import regime

# One of these is drawn: they have no flag, no state and no gate in the kernel.
REGIMES = ("mixed_channels", "sparse_spikes", "spike_then_slow", "lb_const_sweep", "neg_eigval", "v_outlier", "k3_layer1")
Answered = tuple[str, Fixture, dict[str, Stored]]  # the problem in words, the problem, an answer to it
PLAIN = ("corr_keys", "gate_zero")  # kernels agree in their exponentials: what is left tells which computation it is
VARIANTS = ("naive", "recurrent", "chunk")
SIGNATURES = {name: x for name, x in vars(sys.modules[Signature.__module__]).items() if isinstance(x, Signature)}
FAILURES = 2  # are judged, if the fault of the first has no name


def evaluate(
    kernel: Callable[..., Any] | str,
    *,
    declared: str = "",
    dtypes: Sequence[str] = ("bf16", "fp32"),
    widths: Sequence[int] = (64,),
    problems: Sequence[str] | None = None,
    signature: Signature | None = None,
    compute: str | None = None,
    framework: str | None = None,
    device: Any = None,
    backward: bool = False,
    seed: int | None = None,
    timeout: float = 60,
    memory: int = 16 << 30,
) -> Words:
    """Judges a kernel that nobody has read: a dictionary for JSON, whatever the kernel does.

    kernel: "candidate.py:kda", "package.module:kda" or the function, which is imported anew: it runs in a child process that has
    neither the truth nor the seeds. Problems are drawn while the child stands still, after its import; each is answered twice,
    and judged when the child is gone. dtypes, widths: of the problems, K = V. problems: other ones, regimes such as "gva:T=100".
    declared: a variant or preset that it is said to compute as. seed: that of an earlier verdict, for the same problems. timeout:
    seconds of the import and of each call. memory: bytes that it may have. signature, compute, framework, device, backward: as
    of `verify`; a signature without lambdas.

    "verdict" is "correct": every answer passes, and which computation it is was identified or is declared; "undecided", or
    "wrong", with its "cause" and the name of the "fault" where it has one, and the "problem". "sees": by element type, the
    smallest error that would have been seen, in percent. "calls", "starts": known kernels that it calls, programs that it starts.

    >>> import kda_check
    >>> found = evaluate("colorsys:rgb_to_hls")
    >>> found["verdict"], found["cause"]
    ('wrong', 'it cannot take the problem: the kernel takes no beta, k, q, v')
    """
    begun = time.monotonic()
    file, root, module, name = _located(kernel)
    said = {"declared": declared, "dtypes": listed(dtypes, "dtypes"), "widths": [whole(x, "widths") for x in widths],
            "problems": listed(problems or (), "problems"), "compute": compute, "framework": framework,
            "device": device and str(device), "backward": flag(backward, "backward")}  # fmt: skip
    names = json.loads(_program.run(["list", "variants", "presets"], reports=["json"]).reports["json"])
    if not said["dtypes"] or not said["widths"]:
        raise _program.UsageError("dtypes, widths: wanted one or more")
    declares = {row["name"]: row.get("variant", row["name"]) for row in (*names["variants"], *names["presets"])}
    if declared and declared not in declares:
        raise _program.UsageError(f"declared: no variant or preset '{declared}' (kda-check list variants presets)")
    seed = secrets.randbits(63) if seed is None else whole(seed, "seed")
    words = {**said, "seed": seed, "signature": signature}
    again = [repr(f"{file or module}:{name}"), *(f"{key}={x!r}" for key, x in words.items() if x)]
    found: Words = {"verdict": "wrong", "cause": "", "fault": "", "problem": "", "sees": {}, "computation": {}, "problems": {},
                    "skipped": {}, "seed": seed, "repro": f"kda_check.evaluate({', '.join(again)})"}  # fmt: skip
    code = base64.b64encode(pickle.dumps(signature or FLA)).decode()
    words = {"file": file, "root": root, "module": module, "name": name, "framework": framework, "device": said["device"],
             "signature": code, "memory": whole(memory, "memory")}  # fmt: skip
    answers, about = list[Answered](), dict[str, Any]()
    with Candidate(words, number(timeout, "timeout")) as child:
        try:
            about = child.message()
            child.signal(signal.SIGSTOP)
            plan = {problem: regime(problem) for problem in _plan(random.Random(seed), said)}
            child.signal(signal.SIGCONT)
            for problem in [*plan, *reversed(plan)]:
                found["problem"] = problem
                try:
                    answer, about = child.answer(plan[problem])
                    answers.append((problem, plan[problem], answer))
                except Unsupported as error:
                    if problems or not {"initial_state", "cu_seqlens", "dht"} & set(plan[problem].inputs):
                        raise Wrong(f"it cannot take the problem: {error}") from error
                    found["skipped"][problem] = str(error)
        except Wrong as error:
            answers.clear()
            found["cause"] = f"{'' if found['problem'] else 'its import: '}{error}"
    found |= {key: list(seen) for key, seen in child.seen.items()}
    found |= {"modules": about.get("modules", []), "not_judged": about.get("left", [])}
    found["versions"] = {**about.get("versions", {}), "kda-check": names["tool"]["version"], "python": platform.python_version()}
    if answers:
        found["not_judged"] += ["final_state"] * all("final_state" not in answer for *_, answer in answers)
        known = dict.fromkeys(ELEMENT_TYPES, compute) if compute else signature.compute if signature else {}
        _judge(found, answers, declares.get(declared, ""), known)
    return {**found, "seconds": round(time.monotonic() - begun, 1)}


def _located(kernel: Callable[..., Any] | str) -> tuple[str, str, str, str]:
    """Its file, the folder to import from, the module there and the name in it."""
    if callable(kernel):
        if "<" in kernel.__qualname__:
            raise _program.UsageError(f"kernel: {kernel.__qualname__} cannot be imported; wanted a function of a module")
        place = kernel.__module__ if "." in kernel.__module__ else inspect.getfile(kernel)
        kernel = f"{place}:{kernel.__qualname__}"
    place, _, name = kernel.rpartition(":")
    if not place or not name:
        raise _program.UsageError(f"kernel: wanted 'candidate.py:kda' or 'module:kda', got '{kernel}'")
    if not place.endswith(".py"):
        return "", os.getcwd(), place, name
    if not os.path.isfile(place):
        raise _program.InputError(f"{place}: no such file")
    return str(Path(place).resolve()), str(Path(place).resolve().parent), Path(place).stem, name


def _plan(draw: random.Random, said: Words) -> Iterator[str]:
    """Problems: extents that are repeated with other values, one token, many tokens, several batch rows, states, sequences."""
    for dtype in said["dtypes"]:
        width = draw.choice(said["widths"])
        same = f"T={draw.randint(40, 80)},H=2"
        (one, other), ends = draw.choices(REGIMES, k=2), ",loss=1" * said["backward"]
        drawn = [f"control:{same}", f"corr_keys:{same}", f"gate_zero:{same}", f"{one}:{same}", f"varlen:H=2{ends}",
                 f"{other}:T={draw.randint(101, 300)},H=2,B=2", f"control:T={draw.randint(1, 3)},H={draw.randint(3, 9)}",
                 f"slow_alpha:T={draw.randint(1025, 1400)},H=1", f"lb_real:T={draw.randint(65, 200)},H=2{ends}"]  # fmt: skip
        for problem in said["problems"] or drawn:
            more = {"K": width, "V": width, "dtype": dtype, "seed": draw.randrange(1 << 53), "loss": 2 * said["backward"]}
            name, _, given = problem.partition(":")
            has = {each.partition("=")[0] for each in given.split(",")}
            yield f"{name}:" + ",".join([*filter(None, [given]), *(f"{key}={x}" for key, x in more.items() if key not in has)])


def _judge(found: Words, answers: Sequence[Answered], declared: str, compute: Mapping[str, str]) -> None:
    """Fills in the verdict on answers. compute: by element type of q, where it is said."""
    failures, doubts, reports = list[tuple[str, str, str]](), list[str](), dict[str, Report]()
    earlier: dict[tuple[str, bytes], str] = {}  # an output and its bits -> the problem that it answered
    for problem, made, answer in answers:
        bits = {key: x.data.tobytes() for key, x in answer.items()}
        is_second = problem in found["problems"]
        if is_second and all(earlier.get((key, x)) == problem for key, x in bits.items()):
            continue
        fixture = Fixture(made.inputs, made.options, {}, "problem")
        fixture.add("kernel", {**answer, "compute": compute.get(made.inputs["q"].dtype)})
        report = judge(fixture)
        if not is_second:
            reports[problem] = report
        found["problems"][problem] = max(report.verdict, found["problems"].get(problem, "pass"), key=list(RANKS).index)
        rows = [row for row in report.tensors() if not row.passed]
        said = "; ".join([*(f"{row.row['name']}: {row.reason}" for row in rows), *report.errors])
        if report.verdict == "fail":
            copied = [f"{key} is {name}" for key, x in bits.items() for name, y in made.inputs.items() if x == y.data.tobytes()]
            again = [key for key, x in bits.items() if earlier.get((key, x), problem) != problem]
            copied += [f"{key} is that of an earlier problem" for key in again]
            fault = re.search(r"(?:bug|rounding): as if .*?\((\w+)\)(?:, or as if|: [\d.]+ %)", said)
            cause = "; ".join(copied) or said.partition("; ")[0]
            failures.append((fault[1] if fault else "", "at its second call: " * is_second + cause, problem))
            if fault or len(failures) == FAILURES:
                break
        elif report.verdict != "pass":
            doubts.append(f"{problem}: {said}")
        earlier |= {(key, x): problem for key, x in bits.items()}
        for row in report.tensors("o"):
            seen = min(100.0, float(f"{100 * float(row.row.get('floor', 1)):.3g}"))
            found["sees"][row.row["dtype"]] = max(found["sees"].get(row.row["dtype"], 0.0), seen)
    found["problem"] = ""
    if failures:
        found["fault"], found["cause"], found["problem"] = next((each for each in failures if each[0]), failures[0])
        return
    identified: dict[str, str] = {}  # the variant, by element type
    for problem, report in reports.items():
        dtype = report.tensors()[0].row["dtype"]
        outputs = [row.row for row in report.tensors() if row.row["name"] in OUTPUTS]
        if problem.startswith(PLAIN) and all(row["metrics"].get("differing") == 0 for row in outputs):
            found["computation"][dtype], identified[dtype] = "every bit is the truth, rounded", declared
        elif problem.startswith(PLAIN) and dtype not in (found["computation"] if declared else identified):
            for entry in report.explain(["--only", "bits"], progress=False).explained[:1]:  # forwards
                found["computation"][dtype] = entry["reason"].partition(";")[0]
                if entry["identity"] == "identified":
                    identified[dtype] = entry["variant"]
    for dtype in {report.tensors()[0].row["dtype"]: 0 for report in reports.values()}:
        computation = found["computation"].get(dtype, f"without {' or '.join(PLAIN)} nothing tells its computation")
        if declared in VARIANTS and identified.get(dtype, declared) != declared:
            doubts.append(f"{dtype}: declared as {declared}; {computation}")
        elif dtype not in identified and not declared:
            doubts.append(f"{dtype}: passes, and {computation}")
    doubts[:0] = [f"it calls {name}" for name in found["calls"]]
    doubts[:0] = [f"it starts {name}" for name in found["starts"] if "kda-check" in name or "kda_check" in name]
    found["verdict"], found["cause"] = ("undecided", doubts[0]) if doubts else ("correct", "")


def main(command: Sequence[str]) -> int:
    """The command; exit codes as of `kda-check run`."""
    about = "Judges a kernel that nobody has read: one verdict, as JSON."
    parser = argparse.ArgumentParser("python -m kda_check evaluate", description=about)
    parser.add_argument("kernel", help="candidate.py:kda or package.module:kda")
    for word in ("dtypes", "widths", "problems"):
        parser.add_argument(f"--{word}", nargs="+", type=int if word == "widths" else str, default=argparse.SUPPRESS)
    for word in ("declared", "compute", "framework", "device", "seed", "timeout", "memory"):
        kind = {"seed": int, "timeout": float, "memory": int}.get(word, str)
        parser.add_argument(f"--{word}", type=kind, default=argparse.SUPPRESS)
    parser.add_argument("--signature", choices=sorted(SIGNATURES), default=argparse.SUPPRESS)
    parser.add_argument("--backward", action="store_true")
    words = vars(parser.parse_args(command))
    words |= {"signature": SIGNATURES[words["signature"]]} if "signature" in words else {}
    found = evaluate(**words)
    print(json.dumps(found, indent=2))
    return int(found["verdict"] != "correct")
