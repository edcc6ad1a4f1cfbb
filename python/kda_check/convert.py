"""Tensors of other files as fixtures: `python -m kda_check convert dump.safetensors mine.h5 --map q=query,k=key`."""

from __future__ import annotations

import argparse
import difflib
import fnmatch
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ._program import EnvironmentProblem, InputError, UsageError
from ._tensor_files import Loader, bad_file, tensors_of
from .fixture import FLAGS, GRADIENTS, INPUTS, OPTIONS, OUTPUTS, STRENGTHS, WHOLE_NUMBERS, Fixture
from .signatures import FLA

ENDINGS = (".safetensors", ".npz", ".npy", ".pt", ".pth")
NEEDED = ("q", "k", "v", "g")  # and beta, or the gates in its place
PROBLEM = (*INPUTS, *WHOLE_NUMBERS)
ANSWER = (*OUTPUTS, *GRADIENTS)
GATES = ("none", "softplus", "lower_bound")
LONGEST_CHUNK = 1 << 20
# Arguments of FLA's kernels: a dump of a call may have them beside the tensors.
FLA_WORDS = ("use_gate_in_kernel", *FLA.words, *sorted(FLA.ignored - {"out"}))  # out is an answer, by an unknown name


def convert(
    source: str,
    target: str,
    *,
    names: Mapping[str, str] | None = None,
    prefix: str = "",
    ignore: Sequence[str] = (),
    answer: str = "kernel",
    compute: str | None = None,
    **options: Any,
) -> list[str]:
    """Writes the fixtures of a file of tensors, or of a folder of them, and returns their paths.

    source: a .safetensors, .npz or .pt file (a dictionary, nested or not), or a folder. A folder with .npy files or a file
    for q is one problem, each file a tensor (q.npy, my_kernel/o.npy); else every file is one, and target is a folder too.
    names: {"q": "query"}: what q is called in the source; others keep their names: those of a fixture, of an answer as
    o or as my_kernel/o, and the arguments of FLA's kernels. prefix: only tensors that begin so, without it. ignore:
    names to leave out, or patterns for what has no place. answer: who answered what has no name before it. compute: the
    precision of the operands of the answers' products. options: those of `Fixture.of` (gate, scale, chunk_size, flags);
    they come before those in the source.

    Raises InputError for a file that is damaged, lacks a tensor or has one that has no place; EnvironmentProblem without
    torch for .pt, or where nothing can be written; UsageError where the target is the source, or for an option that the
    program would refuse.
    """
    words = {key: value for key, value in options.items() if value is not None}
    written = []
    for path, tensors in problems_of(source, prefix + (names or {}).get("q", "q")):
        file = target
        if path != source:
            file = os.path.join(target, os.path.splitext(os.path.relpath(path, source))[0] + ".h5")
        if file in written:
            raise bad_file(f"two files would become '{file}'", path)
        if os.path.exists(file) and os.path.samefile(path, file):
            raise UsageError(f"'{file}' would be written over what it is made of; wanted another name")
        chosen = renamed(path, tensors, names or {}, prefix, ignore)
        fixture = fixture_of(path, chosen, answer, compute, words)
        fixture.name = os.path.splitext(os.path.basename(file))[0]
        try:
            if path != source:
                os.makedirs(os.path.dirname(file), exist_ok=True)
            fixture.write(file)
        except OSError as failure:
            raise EnvironmentProblem(f"cannot write the file: {failure.strerror} ({file})") from None
        written.append(file)
    return written


def problems_of(source: str, q: str) -> list[tuple[str, dict[str, Loader]]]:
    """The problems of a file or folder: where each is, and its tensors. q: what that is called there."""
    if not os.path.isdir(source):
        tensors = tensors_of(source)
        if set(tensors) == {""}:
            raise bad_file("one tensor; a problem has q, k, v, g and beta", source, "a folder with a file for each")
        return [(source, tensors)]
    files = {os.path.splitext(os.path.relpath(os.path.join(folder, name), source)): os.path.join(folder, name)
             for folder, _, inside in os.walk(source) for name in sorted(inside)}  # fmt: skip
    files = {stem: path for stem, path in sorted(files.items()) if stem[1] in ENDINGS}
    if not files:
        raise bad_file(f"no file that ends in {', '.join(ENDINGS)}", source)
    if all(stem != q and ending != ".npy" for stem, ending in files):
        return [problem for path in files.values() for problem in problems_of(path, q)]
    together: dict[str, Loader] = {}
    for (stem, _), path in files.items():
        tensors = tensors_of(path)
        if len(tensors) != 1:
            raise bad_file(f"{len(tensors)} tensors; where a folder is one problem each file is one tensor", path)
        if stem in together:
            raise bad_file(f"two files for {stem}", path)
        together[stem] = next(iter(tensors.values()))
    return [(source, together)]


def renamed(
    path: str, tensors: Mapping[str, Loader], names: Mapping[str, str], prefix: str, ignore: Sequence[str]
) -> dict[str, Loader]:
    """By the names of a fixture. Raises InputError for a name that has no place, or is not there."""
    found = {name[len(prefix) :]: load for name, load in tensors.items() if name.startswith(prefix)}
    if not found:
        raise bad_file(f"no tensor begins with '{prefix}'; there are {_listed(tensors)}", path)
    for wanted, name in names.items():
        if name not in found:
            close = difflib.get_close_matches(name, found, 1)
            hint = f"--map {wanted}={close[0]}" if close else ""
            raise bad_file(f"no tensor '{name}' for {wanted}; there are {_listed(found)}", path, hint)
    back = {name: wanted for wanted, name in names.items()}
    result: dict[str, Loader] = {}
    for name, load in found.items():
        wanted = back.get(name, name)
        if name not in back and (wanted in names or name in ignore):
            continue
        for group in ("inputs/", "expected/", "options/"):
            wanted = wanted[len(group) :] if wanted.startswith(group) else wanted
        if wanted in result:
            raise bad_file(f"more than one tensor is {wanted}: '{name}' too", path, f"--ignore {name}")
        if not has_place(wanted):
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in ignore):
                continue
            close = difflib.get_close_matches(wanted.rpartition("/")[2].lower(), [*PROBLEM, *OUTPUTS], 1)
            hint = (f"--map {close[0]}={name}, or " if close else "") + f"--ignore {name}"
            places = ", ".join((*PROBLEM, "o", "final_state", "WHO/o"))
            raise bad_file(f"no place in a fixture for '{name}'; there is one for {places}", path, hint)
        result[wanted] = load
    strengths = sorted(STRENGTHS) if STRENGTHS & set(result) else ["beta"]
    missing = [name for name in (*NEEDED, *strengths) if name not in result]
    if missing:
        hint = f"--map {missing[0]}=NAME" if len(result) < len(found) or not result else ""
        raise bad_file(f"no {', '.join(missing)}; there are {_listed(found)}", path, hint)
    return result


def has_place(name: str) -> bool:
    who, slash, tensor = name.rpartition("/")
    return tensor in ANSWER and "/" not in who if slash else name in (*PROBLEM, *ANSWER, *OPTIONS, *FLA_WORDS)


def fixture_of(
    path: str, chosen: Mapping[str, Loader], answer: str, compute: str | None, options: Mapping[str, Any]
) -> Fixture:
    """Reads what was chosen. Raises InputError, with the file, for what does not fit."""
    words: dict[str, Any] = {}
    expected: dict[str, dict[str, Any]] = {}
    for name, load in chosen.items():
        value = load()
        who, _, tensor = name.rpartition("/")
        if tensor in ANSWER:
            expected.setdefault(who or answer, {"compute": compute})[tensor] = value
        else:
            words[name] = value if name in PROBLEM else _scalar(path, name, value)
    try:
        if any(word in words for word in FLA_WORDS):
            words = FLA.problem(words)
        fixture = Fixture.of(**{**words, **options}, expected=expected)
    except (TypeError, ValueError, OverflowError) as failure:
        raise InputError(f"{failure} ({path})") from None
    for name, why in refused(fixture).items():
        kind = UsageError if name in options else InputError
        raise kind(f"options/{name} is {fixture.options.get(name, 'missing')}; wanted {why} ({path})")
    return fixture


def refused(fixture: Fixture) -> dict[str, str]:
    """Options of a fixture that the program does not take, and what it wants: the file would be of no use."""
    options = fixture.options
    gate, lower_bound = options["gate"], float(options.get("lower_bound", math.nan))
    wanted = {
        "gate": (gate in GATES and (gate != "softplus" or "A_log" in fixture.inputs), "none, lower_bound, or softplus and A_log"),
        "lower_bound": (gate != "lower_bound" or -math.inf < lower_bound < 0, "a negative number"),
        "scale": (math.isfinite(float(options["scale"])), "a finite number"),
        "chunk_size": (1 <= int(options["chunk_size"]) <= LONGEST_CHUNK, f"1..{LONGEST_CHUNK}"),
        "allow_neg_eigval": (not options["allow_neg_eigval"] or options["beta_sigmoid"], "beta_sigmoid beside it"),
    }
    return {name: why for name, (is_taken, why) in wanted.items() if not is_taken}


def _scalar(path: str, name: str, value: Any) -> Any:
    value = value.item() if getattr(value, "shape", None) in ((), (1,)) else value
    if not isinstance(value, (bool, int, float, str)) and value is not None and name in OPTIONS:
        raise bad_file(f"{name} is no number; wanted one", path)
    return value


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(list(names)[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")


def listing(source: str) -> str:
    """What a file or folder holds, a line for each tensor."""
    lines = []
    for path, tensors in problems_of(source, "q"):
        lines.append(path)
        for name, load in tensors.items():
            value = load()
            if hasattr(value, "shape"):
                kind = "bfloat16" if value.dtype == np.dtype("V2") else str(value.dtype).replace("torch.", "")
                said = f"{kind:<10} [{','.join(map(str, value.shape))}]"
            else:
                said = repr(value)
            lines.append(f"  {name:<32} {said}" + ("" if has_place(name) else "   (no place in a fixture)"))
    return "\n".join(lines)


def parsed(arguments: Sequence[str]) -> dict[str, Any]:
    parser = argparse.ArgumentParser(
        "python -m kda_check convert",
        description="Turns .safetensors, .npz, .npy and .pt files into fixtures.",
        epilog="Without TARGET it says what SOURCE holds. bfloat16 stays as it is.",
    )
    parser.add_argument("source", metavar="SOURCE", help="a file, or a folder of them")
    parser.add_argument("target", metavar="TARGET", nargs="?", help="mine.h5; a folder where SOURCE is one of several problems")
    parser.add_argument("--map", action="append", default=[], metavar="q=query,k=key",
                        help="what tensors are called in SOURCE; also my_kernel/o=out")  # fmt: skip
    parser.add_argument("--prefix", default="", help="only tensors whose names begin so, without it: layers.3.")
    parser.add_argument("--ignore", action="append", default=[], metavar="NAME,...",
                        help="tensors to leave out; '*': all that have no place")  # fmt: skip
    parser.add_argument("--answer", default="kernel", metavar="WHO", help="who answered o and final_state")
    parser.add_argument("--compute", choices=("fp64", "fp32", "tf32", "bf16", "fp16"),
                        help="precision of the operands of the answer's products: limits follow from it")  # fmt: skip
    parser.add_argument("--gate", choices=GATES, help="without it A_log and lower_bound say it")
    parser.add_argument("--lower-bound", type=float)
    parser.add_argument("--scale", type=float, help="1/sqrt(K) without")
    parser.add_argument("--chunk-size", type=int)
    for flag in FLAGS:
        parser.add_argument("--" + flag.replace("_", "-"), action="store_true", default=None)
    return vars(parser.parse_args(arguments))


def main(arguments: Sequence[str]) -> None:
    """The command. Raises what `convert` raises."""
    options = parsed(arguments)
    source, target = options.pop("source"), options.pop("target")
    pairs = [pair.partition("=") for words in options.pop("map") for pair in words.split(",")]
    for name, equals, there in pairs:
        if not equals or not there or not has_place(name):
            raise UsageError(f"--map '{name}{equals}{there}'; wanted NAME=ITS_NAME_THERE, where NAME is q, k, ..., o, WHO/o")
    options["names"] = {name: there for name, _, there in pairs}
    options["ignore"] = [pattern for words in options["ignore"] for pattern in words.split(",")]
    if target is None:
        print(listing(source))
        return
    for path in convert(source, target, **options):
        print(path)
