"""Problems and answers as fixtures (docs/file-format.md): written and read without the HDF5 library."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import _scratch
from ._files import Path, replacing
from ._hdf5_read import Object, read
from ._hdf5_write import Group, write
from ._kinds import label, mapping, text
from ._options import FLAGS, Value, of_problem
from ._tensors import Stored, offsets, stored

# Axes by letter: batch, tokens, heads of q and k and of v (J), widths of keys and values, states, slots of pools (Z, Y),
# rows of rings (R), checkpoints (C), rows (X) and number (M) of chunks. S is K, V or V, K.
RINGS = {"ring_k": "ZRHK", "ring_v": "ZRJV", "ring_u": "ZRJV", "ring_g": "ZRJK", "ring_beta": "ZRJ"}
BESIDE_POOL = ("state_scale", *RINGS)  # what a call on a pool changes, too
INPUTS = {"q": "BTHK", "k": "BTHK", "v": "BTJV", "g": "BTJK", "beta": "BTJ", "erase": "BTJK", "write": "BTJV",
          "A_log": "J", "dt_bias": "P", "initial_state": "NJS", "state_pool": "ZJS", "state_scale": "ZJ**", "state_source": "YJS",
          **RINGS, "do": "BTJV", "dht": "NJS"}  # fmt: skip
# One log decay for all K of a head; a beta for each column of V.
OTHER_AXES = {"g": "BTJ", "beta": "BTJV", "ring_g": "ZRJ", "ring_beta": "ZRJV"}
STRENGTHS = {"erase", "write"}  # in place of beta
# Of how many axes.
WHOLE_NUMBERS = {"cu_seqlens": 1, "state_indices": 2, "output_indices": 2, "num_accepted_tokens": 1, "has_initial_state": 1,
                 "checkpoint_tokens": 1, "checkpoint_sequence": 1, "ring_length": 1, "ring_base": 1}  # fmt: skip
LOSS: dict[str, str] = {"o": "do", "final_state": "dht"}
OUTPUTS = {"o": "BTJV", "final_state": "NJS", "checkpoints": "CJS", "state_pool": "ZJS", "state_scale": "ZJ**", **RINGS}
GRADIENTS = {f"d{name}": axes for name, axes in INPUTS.items() if name not in ("do", "dht") and axes[0] not in "ZY"}
STATES = {name for name, axes in {**INPUTS, **OUTPUTS, **GRADIENTS}.items() if {"S", "*"} & set(axes)}
NAMES = {"J": "HV", "P": "HV*K", "D": "K", "Z": "slots", "Y": "slots", "C": "checkpoints", "R": "rows of a ring",
         "X": "chunk_size", "M": "chunks"}  # fmt: skip
# Of an answer, in chunks of options/chunk_size (docs/kda.md, "Stages").
STAGES = {**dict.fromkeys(("Aqk", "Akk_inv", "dAqk", "dAkk"), "BTJX"), **dict.fromkeys(("h", "dh"), "BMJS"),
          **dict.fromkeys(("g_cumsum", "w", "qg", "kg", "dw"), "BTJK"),
          **dict.fromkeys(("u", "v_new", "dv_local", "dv"), "BTJV")}  # fmt: skip
ABOUT = ("compute", "implementation", "device", "g_cumsum_base")
RESERVED = ("oracle", "replay", "all", "none")  # the program refuses answers of these names


@dataclass
class Answer:
    """What one kernel answered: tensors by name, what is known of `ABOUT`, and intermediates by name."""

    tensors: dict[str, Stored]
    about: dict[str, str] = field(default_factory=dict)
    stages: dict[str, Stored] = field(default_factory=dict)


@dataclass(repr=False)
class Fixture:
    """A problem and what was answered to it.

    `inputs` and the tensors of `expected` are `Stored`: `.numpy()`, `.torch(device)`, `.jax()` give them to a
    framework, `.dtype` and `.shape` describe them. `options` has scale, chunk_size, gate, lower_bound and flags.

    >>> import numpy as np
    >>> x = np.full((1, 8, 1, 4), 0.5, np.float32)
    >>> fixture = Fixture.of(q=x, k=x, v=x, g=-x, beta=x[..., 0], expected={"mine": {"o": x, "compute": "fp32"}})
    >>> fixture.inputs["q"].shape, fixture.options["scale"]
    ((1, 8, 1, 4), 0.5)
    """

    inputs: dict[str, Stored]
    options: dict[str, Value] = field(default_factory=dict)
    expected: dict[str, Answer] = field(default_factory=dict)
    name: str = "problem"
    description: str = ""
    provenance: dict[str, Value] = field(default_factory=dict)
    made_by: str = field(default="", compare=False)  # the call that makes it again, where it is known

    def __repr__(self) -> str:
        shapes = " ".join(f"{name}{list(x.shape)}" for name, x in self.inputs.items())
        return self.made_by or f"<kda_check.Fixture {self.name}: {shapes}>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """For IPython and Hypothesis, which print every field of a dataclass without."""
        printer.text(repr(self))

    @classmethod
    def of(
        cls,
        *,
        expected: Mapping[str, Answer | Mapping[str, Any]] | None = None,
        gate: str | None = None,
        lower_bound: float | None = None,
        scale: float | None = None,
        padding_slots: str | None = None,
        padding_output: str | None = None,
        checkpoint_every: int | None = None,
        checkpoint_side: str | None = None,
        ring_flush: int | None = None,
        ring_folds_call: bool | None = None,
        largest_code: float | None = None,
        code_rounding: str | None = None,
        code_seed: int | None = None,
        chunk_size: int = 64,
        name: str = "problem",
        description: str = "",
        provenance: Mapping[str, Any] | None = None,
        **words: Any,
    ) -> Fixture:
        """A fixture of tensors of any framework and device (float64, float32, float16, bfloat16, as they are).

        q, k [B,T,H,K]; v [B,T,HV,V]; g [B,T,HV,K], or [B,T,HV] for all K; beta [B,T,HV], or [B,T,HV,V] for columns;
        erase [B,T,HV,K] and write [B,T,HV,V] in place of beta. Where there are any: A_log [HV], with axes of 1 or
        not; dt_bias [HV*K] or [HV,K], of one g for all K [HV]; initial_state [N,HV,K,V], with state_v_first [N,HV,V,K];
        cu_seqlens, N+1 whole numbers, then B = 1; do, dht, the gradients of a loss with respect to o and final_state.
        Of a call on a pool of states, in place of initial_state: state_pool [slots,HV,K,V], state_indices [N] or [N,S],
        num_accepted_tokens [N], output_indices as state_indices, state_source as state_pool; padding_slots: "none",
        "negative", "nonpositive", "negative_tokens"; padding_output: "zero", "untouched", "unspecified" (docs/serving.md).
        Where writes since these states are in rings: ring_k [slots,R,H,K], ring_g, and ring_v and ring_beta or ring_u;
        ring_length [N], ring_base [N]; ring_flush: of how many rows on a ring is folded; ring_folds_call.
        A state_pool in int8, int16 or float8_e4m3 holds codes; state_scale [slots,HV,...] in float32 has for each of the last
        axes an extent that divides that of the pool; largest_code: a scale is the largest magnitude of its block over it;
        code_rounding: "nearest", or "stochastic", of a pool in 16 bits too; code_seed of int8 and int16: what Philox drew.
        has_initial_state [N]: false where a sequence starts from zero, whatever its state or slot holds.
        States inside sequences that are asked for: checkpoint_tokens [C], counted from the start of their sequences,
        checkpoint_sequence [C]; or checkpoint_every and checkpoint_side: "before" every block of so many tokens, or
        "after" every whole one.
        gate: "none" (g is the natural log of the decay), "softplus" or "lower_bound"; without it "none", or what A_log
        and lower_bound say.
        scale: 1/sqrt(K) without. Flags: qk_l2norm, beta_sigmoid, allow_neg_eigval, state_v_first, safe_gate.
        expected: {who: {"o": ..., "final_state": ..., "checkpoints": ..., "dq": ..., "compute": "bf16"}}; checkpoints are
        [C,HV,K,V], or FLA's h [B,NT,HV,K,V]; of a call on a pool state_pool, state_scale and rings as they are afterwards. With
        "stages": {"Aqk": ..., "h": ...} what the chunk form computed between (docs/kda.md has names and shapes), in chunks of
        chunk_size, and "g_cumsum_base" "e" where g_cumsum is not in powers of two.

        Raises TypeError for what is missing, no tensor, of another kind or without a place, ValueError for shapes,
        InputError for an option that the program would refuse; all by name.
        """
        given = {key: words.pop(key) for key in (*INPUTS, *WHOLE_NUMBERS) if words.get(key) is not None}
        flags = {flag: False if words.get(flag) is None else words[flag] for flag in FLAGS}
        unknown = sorted(key for key in words if key not in INPUTS and key not in WHOLE_NUMBERS and key not in FLAGS)
        if unknown:
            of_h = "checkpoints=h, checkpoint_every=64, checkpoint_side='before' say what FLA's h is; "
            asks = {"h", "state_checkpoints"} & set(unknown)
            raise TypeError(f"no place in a fixture for {', '.join(unknown)}; {of_h * bool(asks)}flags are {', '.join(FLAGS)}")
        strengths = STRENGTHS if STRENGTHS & set(given) else {"beta"}
        missing = [key for key in ("q", "k", "v", "g", *sorted(strengths)) if key not in given]
        if missing:
            raise TypeError(f"missing: {', '.join(missing)}")
        if "beta" in given and strengths == STRENGTHS:
            raise TypeError("beta beside erase and write, which stand in its place")
        if ("state_pool" in given) != ("state_indices" in given):
            raise TypeError("missing: state_pool or state_indices, one without the other")
        if "state_scale" in given and "state_pool" not in given:
            raise TypeError("missing: state_pool, of which state_scale is")
        inputs = {
            key: offsets(x, key, WHOLE_NUMBERS[key]) if key in WHOLE_NUMBERS else _stored(x, key)
            for key, x in given.items()
        }
        gate = gate or ("lower_bound" if lower_bound is not None else "softplus" if "A_log" in inputs else "none")
        said = {"gate": gate, "chunk_size": chunk_size, **flags, "lower_bound": lower_bound, "padding_slots": padding_slots,
                "padding_output": padding_output, "checkpoint_every": checkpoint_every,
                "checkpoint_side": checkpoint_side, "ring_flush": ring_flush, "ring_folds_call": ring_folds_call,
                "largest_code": largest_code, "code_rounding": code_rounding, "code_seed": code_seed}  # fmt: skip
        options = of_problem({**said, "scale": scale}, "A_log" in inputs)
        about = {label(key, "what is in provenance"): x if isinstance(x, (int, float)) else str(x)
                 for key, x in mapping(provenance or {}, "provenance").items()}  # fmt: skip
        fixture = cls(inputs, options, {}, text(name, "name"), text(description, "description"), about)
        options.setdefault("scale", max(fixture.extents()["K"], 1) ** -0.5)
        for who, answer in mapping(expected or {}, "expected").items():
            fixture.add(who, answer)
        return fixture

    def add(self, who: str, answer: Answer | Mapping[str, Any]) -> None:
        """Adds what `who` answered: o, final_state, gradients, stages (None: not there), compute, implementation, device.

        Raises ValueError for another shape than the problem asks for, another word, or a gradient without a loss or its
        input; TypeError for no tensor.
        """
        if label(who, "an answer") == "." or "/" in who:
            raise ValueError(f"'{who}' is no name for an answer; wanted one without '/', and not '.'")
        if who in RESERVED:
            raise ValueError(f"'{who}' is no name for an answer: it means something else in reports and options")
        kinds = {**OUTPUTS, **GRADIENTS}
        if isinstance(answer, Answer):
            answer = {**answer.tensors, **answer.about, "stages": answer.stages}
        words = mapping(answer, f"expected/{who}")
        there = {key: x for key, x in words.items() if x is not None}
        between = mapping(there.pop("stages", {}), f"expected/{who}/stages")
        unknown = sorted(set(there) - set(kinds) - set(ABOUT)) + [f"stages/{key}" for key in sorted(set(between) - set(STAGES))]
        tensors = {key: _stored(there[key], key, f"{who}: ") for key in kinds if key in there}
        stages = {key: _stored(between[key], key, f"{who}: ") for key in STAGES if between.get(key) is not None}
        if unknown or not tensors:
            what = f"no place in an answer for {', '.join(unknown)}" if unknown else "no tensor"
            raise ValueError(f"{who}: {what}")
        elsewhere = "final_state" if "state_pool" in self.inputs else "state_pool"
        if elsewhere in tensors:
            other = "state_pool, all of it afterwards" if elsewhere == "final_state" else "final_state: there is no pool"
            raise ValueError(f"{who}: no place for {elsewhere}; wanted {other}")
        if len({"state_pool", "state_scale"} & set(tensors)) == 1 and "state_scale" in self.inputs:
            raise ValueError(f"{who}: one of state_pool and state_scale; wanted both, as they are afterwards")
        lost = [key for key in tensors if key in GRADIENTS and key[1:] not in self.inputs]
        if lost or (set(tensors) & set(GRADIENTS) and not set(LOSS.values()) & set(self.inputs)):
            raise ValueError(f"{who}: {', '.join(lost)} of no input" if lost else f"{who}: gradients without do or dht")
        extents = self.extents()
        if "checkpoints" in tensors and "C" not in extents:
            wanted = "checkpoint_tokens, or checkpoint_every and checkpoint_side"
            raise ValueError(f"{who}: no place for checkpoints: nothing says of which tokens; wanted {wanted}")
        for key, tensor in tensors.items():
            axes = self._axes(key[1:]) if key in GRADIENTS else self._axes(key) if key in RINGS else kinds[key]
            self._check(f"{who}: {key}", tensor, axes, extents)
        for key, tensor in stages.items():
            self._check(f"{who}: stages/{key}", tensor, STAGES[key], extents)
        self.expected[who] = Answer(tensors, {key: str(there[key]) for key in ABOUT if key in there}, stages)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        lists = [self.inputs, *(x for answer in self.expected.values() for x in (answer.tensors, answer.stages))]
        return sum(tensor.data.nbytes for tensors in lists for tensor in tensors.values())

    @property
    def file_name(self) -> str:
        """A name for its file, which no shell has to quote and no program takes for an option."""
        return re.sub(r"^-|[^\w.:=,+-]", "_", self.name, flags=re.ASCII)[:100] + ".h5"

    def extents(self) -> dict[str, int]:
        """Extents of the axes by letter (B, T, H, J for HV, K, V, N; D: log decays of a head; Z: slots of a pool).

        Raises ValueError where two tensors disagree.
        """
        extents: dict[str, int] = {}
        if "cu_seqlens" in self.inputs:
            extents["N"] = self.inputs["cu_seqlens"].shape[0] - 1
        for name in ("q", "k", "v", "g", "beta"):
            if name in self.inputs:
                for letter, extent in zip(self._axes(name), self.inputs[name].shape):
                    extents.setdefault(letter, extent)
        extents.setdefault("N", extents.get("B", 0))
        extents["D"] = extents.get("K", 0) if self._axes("g") == INPUTS["g"] else 1
        for name, slots in (("state_pool", "Z"), ("state_source", "Y")):
            if name in self.inputs:
                extents[slots] = (*self.inputs[name].shape, 0)[0]
        ends = self.inputs["cu_seqlens"].data if "cu_seqlens" in self.inputs else None
        lengths = [extents.get("T", 0)] * extents["N"] if ends is None else np.diff(ends).tolist()
        extents["X"] = int(self.options.get("chunk_size", 64))
        extents["M"] = sum(-(-length // extents["X"]) for length in (lengths[:1] if ends is None else lengths))
        if "ring_k" in self.inputs:
            extents["R"] = (*self.inputs["ring_k"].shape, 0, 0)[1]
        if "checkpoint_tokens" in self.inputs:
            extents["C"] = self.inputs["checkpoint_tokens"].shape[0]
        elif "checkpoint_every" in self.options:
            extents["C"] = len(checkpoints_every(int(self.options["checkpoint_every"]), self.options["checkpoint_side"], lengths))
        extents["P"] = extents.get("J", 0) * extents["D"]
        for name in INPUTS:
            if name in self.inputs:
                self._check(name, self.inputs[name], self._axes(name), extents)
        return extents

    def shape_of(self, name: str) -> tuple[int, ...]:
        """The shape of an output."""
        extents = self.extents()
        return tuple(extents[letter] for letter in self._letters(OUTPUTS[name]))

    def _axes(self, name: str) -> str:
        """Those of an input: what is there of g and beta says which."""
        other = OTHER_AXES.get(name, "")
        return other if name in self.inputs and len(self.inputs[name].shape) == len(other) else INPUTS[name]

    def _letters(self, axes: str) -> str:
        return axes.replace("S", "VK" if self.options.get("state_v_first") else "KV")

    def _check(self, name: str, tensor: Stored, axes: str, extents: Mapping[str, int]) -> None:
        letters = self._letters(axes)
        wanted = tuple(extents.get(letter, 0) for letter in letters)
        if "*" in axes:  # of blocks: each divides the extent of the pool
            pool = self.inputs["state_pool"].shape
            divides = all(there > 0 and extent % there == 0 for there, extent in zip(tensor.shape[2:], pool[2:]))
            if len(tensor.shape) != 4 or tensor.shape[:2] != wanted[:2] or not divides:
                raise ValueError(f"{name}: shape {tensor.shape}; wanted slots and heads of state_pool {pool}, and two divisors")
            return
        if tensor.shape != wanted and (axes != "P" or tensor.shape != (extents["J"], extents["D"])):
            named = ",".join(NAMES.get(letter, letter) for letter in letters)
            raise ValueError(f"{name}: shape {tensor.shape}; wanted [{named}] = {wanted}, as the other tensors have it")

    def write(self, path: Path) -> None:
        """Writes the file, whole or not at all (docs/file-format.md). Raises EnvironmentProblem, and InputError or TypeError for
        an option that the program would refuse."""
        answers = {who: Group(answer.about, {**answer.tensors, **({"stages": Group({}, answer.stages)} if answer.stages else {})})
                   for who, answer in self.expected.items()}  # fmt: skip
        about: dict[str, Value] = {"format": "kda-fixture", "format_version": 1, "name": self.name,
                                   "description": self.description}  # fmt: skip
        options = of_problem(self.options, "A_log" in self.inputs)
        root = Group(about, {"inputs": Group({}, self.inputs), "options": Group(options),
                             "expected": Group({}, answers), "provenance": Group(self.provenance)})  # fmt: skip
        with replacing(path) as descriptor:
            write(descriptor, root)

    @contextlib.contextmanager
    def in_memory(self) -> Iterator[tuple[str, str]]:
        """(folder, file) for as long as it lasts, in memory where there is room. Raises EnvironmentProblem."""
        with _scratch.folder(self.nbytes + (1 << 20)) as folder:
            path = os.path.join(folder, self.file_name)
            self.write(path)
            yield folder, path

    @classmethod
    def read(cls, path: Path) -> Fixture:
        """Reads a fixture; elements stay in the file until they are used, and may be written to.

        Raises InputError for what is no fixture, or not there.
        """
        return read(os.fspath(path), cls._of_file)

    @classmethod
    def _of_file(cls, root: Object) -> Fixture:
        if root.attributes.get("format") != "kda-fixture":
            raise ValueError("no attribute format = kda-fixture")
        expected = {}
        for who, group in root.group("expected").groups().items():
            about = {key: str(group.attributes[key]) for key in ABOUT if key in group.attributes}
            expected[who] = Answer(group.tensors(), about, group.group("stages").tensors())
        name, description = (str(root.attributes.get(key, "")) for key in ("name", "description"))
        inputs, options, provenance = (root.group(key) for key in ("inputs", "options", "provenance"))
        given = {key: offsets(x, key, WHOLE_NUMBERS[key]) if key in WHOLE_NUMBERS else x for key, x in inputs.tensors().items()}
        return cls(given, options.attributes, expected, name, description, provenance.attributes)


def checkpoints_every(every: int, side: Value, lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Sequence and tokens of each."""
    of_side = [(0, n) if side == "before" else (every, n + 1) for n in lengths]
    return [(n, tokens) for n, (first, end) in enumerate(of_side) for tokens in range(first, end, every)]


def _stored(tensor: Any, name: str, who: str = "") -> Stored:
    """A_log is [1,1,HV,1] in many models, as it is multiplied there; checkpoints by batch row and chunk."""
    found = stored(tensor, who + name)
    if name == "checkpoints" and len(found.shape) == 5:
        return Stored(found.data.reshape(-1, *found.shape[2:]), found.dtype)
    has_one_axis = name in ("A_log", "dA_log") and found.data.size == max(found.shape, default=0)
    return Stored(found.data.reshape(-1), found.dtype) if has_one_axis else found


def save(path: Path, **words: Any) -> None:
    """Writes a fixture of tensors: the words of `Fixture.of`, to a file."""
    name = os.path.splitext(os.path.basename(os.fspath(path)))[0]
    Fixture.of(**{"name": name, **words}).write(path)
