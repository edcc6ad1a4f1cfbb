"""Judges FLA's own kind of tests, and proves of it: no call was missed, and no answer is another.

    python tests/python/on_gpu/run.py OUT [--once] [-n 12] [TESTS...] [-k ...]

Words but OUT and --once are pytest's; without TESTS those beside this file run: twice without the recorder (--once:
once) and once with it. Compared are outcomes, the bits of every tensor that a test compared, and how often a known
kernel was entered, as Python counts, with how often it was recorded, or left out and counted. Each saved file is judged
once more from the command line. Everything is in OUT; the exit code is 1 where one of these does not hold.
"""

import collections
import contextlib
import importlib.metadata
import json
import os
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
RUNS = {"plain": [], "again": [], "judged": ["--kda-check"]}


def run(name, out, words):
    """The tests once: what they noted, by test."""
    notes = os.path.join(out, f"{name}.json")
    environment = {**os.environ, "KDA_CHECK_NOTES": notes}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [os.path.dirname(HERE), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-rfE", *RUNS[name]]
    if not any(os.path.abspath(word).startswith(HERE) for word in words):
        command += ["-p", "on_gpu.conftest"]
    if name == "judged":
        command += ["--kda-check-save", os.path.join(out, "saved")]
    begin = time.monotonic()
    with open(os.path.join(out, f"{name}.log"), "w") as log:
        code = subprocess.run([*command, *words], stdout=log, stderr=subprocess.STDOUT, env=environment).returncode
    print(f"{name}: exit code {code}, {time.monotonic() - begin:.0f} s", flush=True)
    with contextlib.suppress(OSError):
        with open(notes) as file:
            return json.load(file)
    return {}


def differences(key, before, after):
    """Tests that did not note the same in two runs."""
    return [test for test in before if before[test][key] != after.get(test, {}).get(key)]


def again(out, calls):
    """Files whose verdicts are others from the command line than they were in the test."""
    from kda_check.checking import ALONE
    from kda_check.recorder import Call
    from kda_check.report import Report

    found = []
    for call in calls:
        if call["path"]:
            place, kernel, _ = call["line"].split(": ", 2)
            if str(Call(kernel, place, report=Report.run(["run", call["path"], *ALONE]))) != call["line"]:
                found.append(call["path"])
    return found


def main(out, *words):
    out = os.path.abspath(out)
    os.makedirs(out, exist_ok=True)
    is_once, words = "--once" in words, [word for word in words if word != "--once"]
    if not any(os.path.exists(word.partition("::")[0]) for word in words):
        words.append(HERE)
    plain, judged = (run(name, out, words) for name in ("plain", "judged"))
    twice = plain if is_once else run("again", out, words)
    calls = [call for test in judged.values() for call in test["kda_check"]]
    entered = {test: sum(note["kda_entered"]) for test, note in judged.items()}
    left_out = {why: {test: sum(note[f"kda_check_{why}"]) for test, note in judged.items()} for why in ("skipped", "repeated")}
    missed = [test for test, note in judged.items()
              if entered[test] != len(note["kda_check"]) + sum(counts[test] for counts in left_out.values())]
    kinds = collections.Counter("NOT JUDGED" if call["error"] else call["verdict"].upper() for call in calls)
    failures = {
        "outcome is another when judged": differences("outcome", plain, judged),
        "bits are others when judged": [test for test in differences("kda_bits", plain, judged)
                                        if test not in differences("kda_bits", plain, twice)],
        "calls are missed": missed,
        "verdict is another from the command line": again(out, calls),
        "nothing ran": [] if plain and any(entered.values()) else ["everything"],
    }
    versions = {name: importlib.metadata.version(name) for name in ("torch", "triton", "fla-core", "kda-check")}
    summary = {
        "versions": versions,
        "tests": dict(collections.Counter(note["outcome"] for note in plain.values())),
        "tensors compared": sum(len(note["kda_bits"]) for note in plain.values()),
        "bits are others without being judged": differences("kda_bits", plain, twice),
        "calls entered": sum(entered.values()), "calls entered, plain": sum(sum(x["kda_entered"]) for x in plain.values()),
        "calls recorded": len(calls), **{f"calls {why}": sum(counts.values()) for why, counts in left_out.items()}, **kinds,
        "kernels": dict(collections.Counter(call["line"].split(": ")[1] for call in calls)),
        "tensors judged": dict(collections.Counter(
            said.split()[0] for call in calls if not call["error"] for said in call["line"].split(": ", 2)[2].split("; "))),
        "not judged": [call["line"] for call in calls if call["error"]],
        "not passed": [call["line"] for call in calls if call["verdict"] in ("fail", "inconclusive")],
        **failures,
    }  # fmt: skip
    with open(os.path.join(out, "summary.json"), "w") as file:
        json.dump(summary, file, indent=1)
    for name, value in summary.items():
        lines = ["", *map(str, value or ["-"])] if isinstance(value, list) else [str(value)]
        print(f"{name}:", "\n  ".join(lines))
    return any(failures.values())


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
