"""Tensors of other files as fixtures: `python -m kda_check convert dump.safetensors mine.h5 --map q=query,k=key`."""

from __future__ import annotations

import argparse
import difflib
import fnmatch
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ._files import make_folder
from ._kinds import listed
from ._names import about, printable
from ._options import FLAGS, GATES, OPTIONS
from ._program import InputError, UsageError
from ._tensor_files import Entry, bad_file, tensors_of
from .fixture import GRADIENTS, INPUTS, OUTPUTS, STAGES, STRENGTHS, WHOLE_NUMBERS, Fixture
from .signatures import FLA

ENDINGS = (".safetensors", ".npz", ".npy", ".pt", ".pth")
NEEDED = ("q", "k", "v", "g")  # and beta, or the gates in its place
PROBLEM = (*INPUTS, *WHOLE_NUMBERS)
ANSWER = (*OUTPUTS, *GRADIENTS)
# Arguments of FLA's kernels: a dump of a call may have them beside the tensors.
FLA_WORDS = ("use_gate_in_kernel", *FLA.words, *sorted(FLA.ignored - {"out"}))  # out is an answer, by an unknown name


def convert(
    source: str,
    target: str,
    *,
    names: Mapping[str, str] | None = None,
    prefix: str = "",
    ignore: Sequence[str] = (),
    answer: str | None = None,
    compute: str | None = None,
    **options: Any,
) -> list[str]:
    """Writes the fixtures of a file of tensors, or of a folder of them, and returns their paths.

    source: a .safetensors, .npz or .pt file (a dictionary, nested or not), or a folder. A folder with .npy files or a file
    for q is one problem, each file a tensor (q.npy, my_kernel/o.npy); else every file is one, and target is a folder too.
    names: {"q": "query"}: what q is called in the source; others keep their names: those of a fixture, of an answer as
    o or as my_kernel/o, and the arguments of FLA's kernels. prefix: only tensors that begin so, without it. ignore:
    names to leave out, or patterns for what has no place. answer: who answered what has no name before it; without it the
    one who has an answer that lacks it, or "kernel". compute: the precision of the operands of the answers' products.
    options: those of `Fixture.of` (gate, scale, chunk_size, flags); they come before those in the source.

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
        chosen = renamed(path, tensors, names or {}, prefix, listed(ignore, "ignore"))
        fixture = fixture_of(path, chosen, answer, compute, words)
        fixture.name = os.path.splitext(os.path.basename(file))[0]
        if path != source:
            make_folder(os.path.dirname(file))
        fixture.write(file)
        written.append(file)
    return written


def problems_of(source: str, q: str) -> list[tuple[str, dict[str, Entry]]]:
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
    together: dict[str, Entry] = {}
    for (stem, _), path in files.items():
        tensors = tensors_of(path)
        if len(tensors) != 1:
            raise bad_file(f"{len(tensors)} tensors; where a folder is one problem each file is one tensor", path)
        if stem in together:
            raise bad_file(f"two files for {stem}", path)
        together[stem] = next(iter(tensors.values()))
    return [(source, together)]


def renamed(
    path: str, tensors: Mapping[str, Entry], names: Mapping[str, str], prefix: str, ignore: Sequence[str]
) -> dict[str, Entry]:
    """By the names of a fixture. Raises InputError for a name that has no place, or is not there."""
    found = {name[len(prefix) :]: entry for name, entry in tensors.items() if name.startswith(prefix)}
    if not found:
        raise bad_file(f"no tensor begins with '{prefix}'; there are {_listed(tensors)}", path)
    for wanted, name in names.items():
        if name not in found:
            close = difflib.get_close_matches(name, found, 1)
            hint = f"--map {wanted}={close[0]}" if close else ""
            raise bad_file(f"no tensor '{name}' for {wanted}; there are {_listed(found)}", path, hint)
    back = {name: wanted for wanted, name in names.items()}
    if len(back) < len(names):
        there = list(names.values())
        raise UsageError(f"'{max(there, key=there.count)}' is mapped to two names; wanted one")
    result: dict[str, Entry] = {}
    for name, entry in found.items():
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
            places = ", ".join((*PROBLEM, "o", "final_state", "WHO/o", "WHO/stages/Aqk"))
            raise bad_file(f"no place in a fixture for '{name}'; there is one for {places}", path, hint)
        result[wanted] = entry
    strengths = sorted(STRENGTHS) if STRENGTHS & set(result) else ["beta"]
    missing = [name for name in (*NEEDED, *strengths) if name not in result]
    if missing:
        hint = f"--map {missing[0]}=NAME" if len(result) < len(found) or not result else ""
        raise bad_file(f"no {', '.join(missing)}; there are {_listed(found)}", path, hint)
    return result


def parts_of(name: str) -> tuple[str, str, bool]:
    """Who answered, the tensor, and whether it is a stage: WHO/o, WHO/stages/Aqk."""
    before, _, tensor = name.rpartition("/")
    who, _, last = before.rpartition("/")
    return (who, tensor, True) if last == "stages" else (before, tensor, False)


def has_place(name: str) -> bool:
    who, tensor, is_stage = parts_of(name)
    if who or is_stage:
        return tensor in (STAGES if is_stage else ANSWER) and "/" not in who
    return name in (*PROBLEM, *ANSWER, *OPTIONS, *FLA_WORDS)


def fixture_of(
    path: str, chosen: Mapping[str, Entry], answer: str | None, compute: str | None, options: Mapping[str, Any]
) -> Fixture:
    """Reads what was chosen. Raises InputError, with the file, for what does not fit."""
    words: dict[str, Any] = {}
    expected: dict[str, dict[str, Any]] = {}
    unnamed = whose(path, chosen, answer)
    for name, entry in chosen.items():
        who, tensor, is_stage = parts_of(name)
        is_answer = tensor in ANSWER and name not in PROBLEM  # a pool is both: WHO/state_pool is as it is afterwards
        answer_of = expected.setdefault(who or unnamed, {"compute": compute}) if is_stage or is_answer else {}
        if is_stage:
            answer_of.setdefault("stages", {})[tensor] = entry.load()
        elif is_answer:
            answer_of[tensor] = entry.load()
        else:
            words[name] = entry.load() if name in PROBLEM else _scalar(path, name, entry)
    try:
        if any(word in words for word in FLA_WORDS):
            words = FLA.problem(words)
        return Fixture.of(**{**words, **options}, expected=expected)
    except (TypeError, ValueError) as failure:
        is_said = isinstance(failure, InputError) and failure.option in options
        raise (UsageError if is_said else InputError)(about(str(failure), path)) from None


def whose(path: str, names: Collection[str], answer: str | None) -> str:
    """Who answered the tensors without a name before them: `answer`; else the one who has an answer that lacks them all.
    Where all have them, these are an answer of its own. Raises InputError where it may be one of several."""
    unnamed = {name for name in names if name in ANSWER and name not in PROBLEM}
    parts = [parts_of(name) for name in names]
    others = dict.fromkeys(who for who, tensor, is_stage in parts if who and (is_stage or tensor in ANSWER))
    lacking = [who for who in others if not any(f"{who}/{tensor}" in names for tensor in unnamed)]
    if answer is None and unnamed and len(lacking) > 1:
        found = f"{', '.join(sorted(unnamed))} may be of {' or '.join(lacking)}; wanted one of them"
        raise bad_file(found, path, f"--answer {lacking[0]}")
    return answer or (lacking[0] if lacking else "kernel")


def _scalar(path: str, name: str, entry: Entry) -> Any:
    if name in OPTIONS and entry.shape not in (None, (), (1,)):
        raise bad_file(f"{name} has the shape {list(entry.shape or ())}; wanted one number", path)
    value = entry.load()
    return value.item() if entry.shape in ((), (1,)) else value


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(list(names)[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")


def listing(source: str) -> str:
    """What a file or folder holds, a line for each tensor."""
    lines = []
    for path, tensors in problems_of(source, "q"):
        lines.append(path)
        for name, entry in tensors.items():
            said = entry.kind if entry.shape is None else f"{entry.kind:<10} [{','.join(map(str, entry.shape))}]"
            lines.append(f"  {printable(name):<32} {said}" + ("" if has_place(name) else "   (no place in a fixture)"))
    return "\n".join(map(printable, lines))


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
    parser.add_argument("--answer", metavar="WHO", help="who answered o and final_state, if their names do not say it")
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
    if len(options["names"]) < len(pairs):
        names = [name for name, _, _ in pairs]
        raise UsageError(f"--map says of {max(names, key=names.count)} twice what it is; wanted once")
    options["ignore"] = [pattern for words in options["ignore"] for pattern in words.split(",")]
    if target is None:
        print(listing(source))
        return
    for path in convert(source, target, **options):
        print(printable(path))
