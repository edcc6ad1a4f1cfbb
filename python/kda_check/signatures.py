"""How kernels name what a problem has: from their arguments to the words of `Fixture.of`, and back."""

from __future__ import annotations

import inspect
import itertools
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from ._names import printable
from ._options import FLAGS, OPTIONS
from .fixture import BESIDE_POOL, checkpoints_every

TENSORS = ("q", "k", "v", "g", "beta", "erase", "write", "A_log", "dt_bias", "initial_state", "cu_seqlens",
           "has_initial_state", "state_source", "output_indices")
ASKED = ("checkpoint_tokens", "checkpoint_sequence", "checkpoint_every", "checkpoint_side")  # states inside sequences
PROBLEM = {*TENSORS, *OPTIONS, *ASKED}
OF_POOL = ("state_pool", "state_scale", "state_indices", "num_accepted_tokens")  # of a recorded call on a pool of codes
HINTS = ("chunk_size", "safe_gate")  # options that change no mathematics
Words = dict[str, Any]


class Unsupported(TypeError):
    """A call has something without a place in a fixture, or a problem something the kernel does not take."""


@dataclass(frozen=True)
class Signature:
    """The words of a kernel. What has another name than in `Fixture.of`, and what it does without being told:

    >>> mine = Signature(words={"query": "q", "key": "k", "value": "v", "log_decay": "g"}, fixed={"qk_l2norm": True})
    >>> sorted(mine.problem({"query": 1, "key": 2, "value": 3, "log_decay": 4, "beta": 5}))
    ['beta', 'g', 'k', 'q', 'qk_l2norm', 'v']

    words: its word -> that of the problem. fixed: what holds always. ignored: words without mathematics. gate: its flag
    that says the gate is computed inside, from A_log, dt_bias and lower_bound. results: what it returns, in order.
    outputs: words of buffers that it writes -> o, final_state. in_place: it writes the final state over the initial.
    pool: its word for the rows of initial_state, a pool of states, that belong to the sequences; where it returns or
    writes a pool, its final states are there. accepted: where the pool has a row for each token, its word for how many
    tokens of the last call hold: the state after the last of them is the initial one. checkpoints: its word that asks
    for the states inside sequences, of every chunk or of every so many tokens, checkpoint_side them. constants: words
    for a call by `verify`. compute: by element type of q, where it is not that. implementation: whose kernel it is,
    where it rounds as no other does. to_problem, to_kernel, to_answer: what words cannot say, functions of a
    dictionary. to_problem sees every argument that is neither ignored nor said above, and takes out what is no word of
    a problem.
    """

    words: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    ignored: frozenset[str] = frozenset({"output_final_state"})
    gate: str | None = None
    results: tuple[str, ...] = ("o", "final_state", "checkpoints")
    outputs: Mapping[str, str] = field(default_factory=dict)
    in_place: bool = False
    pool: str | None = None
    accepted: str | None = None
    checkpoints: str | None = None
    checkpoint_side: str = "before"
    constants: Mapping[str, Any] = field(default_factory=dict)
    compute: Mapping[str, str] = field(default_factory=dict)
    implementation: str = ""
    to_problem: Callable[[Words], Words] = dict
    to_kernel: Callable[[Words], Words] = dict
    to_answer: Callable[[Words], Words] = dict

    def __repr__(self) -> str:
        """As Python reads it: its name here, or what it says. Functions by their names."""
        known = next((name for name, x in globals().items() if x is self), "")
        if known:
            return f"kda_check.signatures.{known}"
        own, plain = ({each.name: getattr(x, each.name) for each in fields(x)} for x in (self, Signature()))
        said = [f"{key}={getattr(x, '__name__', repr(x))}" for key, x in own.items() if x != plain[key]]
        return f"kda_check.Signature({', '.join(said)})"

    def about(self, dtype: str) -> Words:
        """What is known of answers to a q of that element type: compute, implementation."""
        known = {"compute": self.compute.get(dtype), "implementation": self.implementation}
        return {key: x for key, x in known.items() if x}

    def arguments(self, kernel: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Words:
        """A call's arguments by name, defaults included."""
        bound = inspect.signature(kernel).bind(*args, **kwargs)
        bound.apply_defaults()
        named = dict(bound.arguments)
        for name, parameter in bound.signature.parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                named.update(named.pop(name))
            elif parameter.kind is parameter.VAR_POSITIONAL and not named[name]:
                del named[name]
        return named

    def problem(self, arguments: Mapping[str, Any]) -> Words:
        """The words of `Fixture.of` for a call. Raises Unsupported, by name, for what has no place there."""
        skipped = {*self.ignored, *self.outputs, self.gate, self.pool, self.accepted, self.checkpoints}
        is_gate_inside = self.gate is not None and arguments.get(self.gate)
        if self.gate is not None and not is_gate_inside:
            skipped |= {"A_log", "dt_bias", "lower_bound"}
        words: Words = {}
        for key, x in arguments.items():
            word = self.words.get(key, key)
            if key not in skipped and (_is_there(x) or word not in PROBLEM):
                if word in words and not (_is_plain(x) and _is_plain(words[word]) and x == words[word]):  # a former name
                    raise Unsupported(f"no place in a fixture for a second {word}, {key}")
                words[word] = x
        if is_gate_inside:
            words["gate"] = "softplus" if words.get("lower_bound") is None else "lower_bound"
        every = self._every(arguments)
        if every:
            words.update(checkpoint_every=every, checkpoint_side=self.checkpoint_side)
        on_codes = "state_scale" in words
        rows = None if on_codes else self._rows(arguments)
        if on_codes:
            words.update(self._on_codes(arguments, words.pop("initial_state"), words["state_scale"]))
        if rows is not None:
            if "initial_state" not in words:
                raise Unsupported(f"no place in a fixture for {self.pool} without a pool")
            if any(bool((some < 0).any()) for some in rows):
                raise Unsupported(f"no place in a fixture for {self.pool} with negative rows, sequences without a state")
            words["initial_state"] = words["initial_state"][rows[0]]
        words = self.to_problem({**words, **self.fixed})
        places = {*PROBLEM, *OF_POOL} if on_codes else PROBLEM
        left = sorted(word for word, x in words.items() if word not in places and _is_there(x))
        if left:
            raise Unsupported(f"no place in a fixture for {', '.join(left)}")
        return {word: x for word, x in words.items() if word in places}

    def _slots(self, arguments: Mapping[str, Any]) -> tuple[list[int], Any]:
        """Of a call on a pool of codes: the slots that its table names, slot 0 too, and the table by their places among these."""
        if arguments.get(self.pool or "") is None:
            raise Unsupported("no place in a fixture for scales without a pool")
        table = np.asarray(arguments[str(self.pool)].tolist())
        slots = np.unique([0, *np.maximum(table, 0).reshape(-1)])
        return slots.tolist(), np.where(table < 0, -1, np.searchsorted(slots, table))

    def _on_codes(self, arguments: Mapping[str, Any], pool: Any, scale: Any) -> Words:
        slots, table = self._slots(arguments)
        accepted = {"num_accepted_tokens": arguments.get(self.accepted or "")}
        return {"state_pool": _picked(pool, slots), "state_scale": _picked(scale, slots), "state_indices": table,
                **{key: x for key, x in accepted.items() if x is not None}}  # fmt: skip

    def _rows(self, arguments: Mapping[str, Any]) -> tuple[Any, Any] | None:
        """Rows of the pool: of the initial states, and of the final ones. None: there is no pool."""
        rows: Any = arguments.get(self.pool or "")
        accepted, ends = arguments.get(self.accepted or ""), arguments.get("cu_seqlens")
        if rows is None or (rows.ndim == 1 and accepted is None):
            return None if rows is None else (rows, rows)
        if rows.ndim != 2 or self.accepted is None:
            raise Unsupported(f"no place in a fixture for {self.pool} of shape {tuple(rows.shape)}")
        sequences = range(len(rows))
        before = [0] * len(rows) if accepted is None else [int(count) - 1 for count in accepted.tolist()]
        lengths = [arguments["q"].shape[1]] * len(rows) if ends is None else (ends[1:] - ends[:-1]).tolist()
        after = [last - 1 if last else first for first, last in zip(before, lengths)]
        if min([*before, *after], default=0) < 0 or max([*before, *after], default=0) >= rows.shape[1]:
            raise Unsupported(f"no place in a fixture for {self.pool} with fewer rows than tokens")
        return rows[sequences, before], rows[sequences, after]

    def _every(self, arguments: Mapping[str, Any]) -> int:
        """A call asks for checkpoints of every so many tokens; 0: for none."""
        asked = arguments.get(self.checkpoints or "")
        return int(arguments.get("chunk_size") or 64) if asked is True else int(asked or 0)

    def left(self, arguments: Mapping[str, Any], returned: Any) -> list[str]:
        """What a call returned that is not judged."""
        items = returned if isinstance(returned, (tuple, list)) else (returned,)
        asked = self._every(arguments) or any(arguments.get(word) is not None for word in ASKED)
        judged = [name for name in self.results if asked or name != "checkpoints"]
        buffers = [arguments.get(word) for word in self.outputs]
        return [f"result {i}" for i, x in enumerate(items[len(judged):], len(judged) + 1)
                if x is not None and not any(x is buffer for buffer in buffers)]  # fmt: skip

    def answer(self, arguments: Mapping[str, Any], returned: Any) -> Words:
        """What a call answered: o, final_state, checkpoints, as far as they are there."""
        items = returned if isinstance(returned, (tuple, list)) else (returned,)
        found = {name: item for name, item in zip(self.results, items) if item is not None}
        buffers = {name: arguments[word] for word, name in self.outputs.items() if arguments.get(word) is not None}
        if not arguments.get("output_final_state", True):
            buffers.pop("final_state", None)  # not written
        found.update(buffers)
        if not (self._every(arguments) or any(arguments.get(word) is not None for word in ASKED)):
            found.pop("checkpoints", None)
        elif arguments.get("checkpoint_cu_starts") is not None:  # there may be room for more
            found["checkpoints"] = found["checkpoints"][: int(arguments["checkpoint_cu_starts"][-1])]
        state: Any = arguments.get("initial_state")
        scale = next((x for word, x in arguments.items() if self.words.get(word, word) == "state_scale"), None)
        if scale is not None:
            final: Any = found.pop("final_state", None)
            pool = final if final is not None and final.shape == state.shape else state
            after = self._on_codes(arguments, pool, scale)
            return self.to_answer({**found, **{key: after[key] for key in ("state_pool", "state_scale")}})
        rows = self._rows(arguments)
        if state is not None and self.in_place:
            found["final_state"] = state
        final = found.get("final_state")
        is_pool = final is state or final is buffers.get("final_state")
        if rows is not None and final is not None and is_pool:
            found["final_state"] = final[rows[1]]
        return self.to_answer(found)

    def call(self, kernel: Any, problem: Mapping[str, Any], buffers: Mapping[str, Any], beside: set[str] | None = None) -> Words:
        """Calls the kernel on a problem; `buffers`: tensors it may write to, by the names of outputs. Returns its answer,
        and names in `beside` what of it is not judged. Raises Unsupported where it has no word for an option of the problem."""
        flags = {"has_initial_state": problem["has_initial_state"] != 0} if "has_initial_state" in problem else {}
        taken = inspect.signature(kernel).parameters
        wanted = self._asking(self.to_kernel({**problem, **flags}), taken)
        is_open = takes_any(taken)
        for key, value in self.fixed.items():
            if not _is_same(wanted.pop(key, False), value):
                raise Unsupported(f"the kernel has {key} = {value} always, the problem has not")
        gate, pool = wanted.pop("gate", "none"), wanted.get("state_pool")
        if pool is not None:
            wanted = self._on_pool(wanted, taken)
        arguments = {**self.constants, **{word: buffers[name] for word, name in self.outputs.items() if name in buffers}}
        if gate != "none":
            arguments.update({self.gate: True} if self.gate is not None else {"gate": gate})
        for key, value in wanted.items():
            word = self._word(key, taken)
            if word not in taken and (key == "chunk_size" or (key in HINTS and not is_open)):
                continue  # a chunk size nor for those that a kernel with **words calls
            if word not in taken and not is_open and key == "scale" and _is_same(value, _unsaid(problem)[key]):
                continue
            if _is_there(value) or (key in FLAGS and word in taken):  # a kernel may have a flag unless told otherwise
                arguments[word] = bool(value) if key in FLAGS else value
        if not is_open:
            left = sorted(set(arguments) - set(taken) - set(self.constants))
            if left:
                raise Unsupported(f"the kernel takes no {printable(', '.join(left))}")
            arguments = {key: value for key, value in arguments.items() if key in taken}
        returned = kernel(**arguments)
        if beside is not None:
            beside.update(self.left(arguments, returned))
        return self.answer(arguments, returned) if pool is None else self._pool_answer(
            returned, buffers, pool, {key: problem[key] for key in BESIDE_POOL if key in problem})

    def own(self, kernel: Any, problem: Mapping[str, Any], given: Callable[[Any], Any]) -> Words:
        """Of what tensors can carry in its place, scale and state_v_first: that which the kernel has always, as it is
        fixed or has no word, where the problem has another. given: a value as to_kernel takes it."""
        taken = inspect.signature(kernel).parameters
        has = {key: self.fixed.get(key, x) for key, x in _unsaid(problem).items()
               if key in self.fixed or not (takes_any(taken) or self._word(key, taken) in taken)}  # fmt: skip

        def other(words: Mapping[str, Any]) -> Words:
            return {key: x for key, x in has.items() if not _is_same(words.get(key, False if key in FLAGS else x), x)}

        return other(problem) and other(self.to_kernel({key: given(x) for key, x in problem.items()}))

    def _asking(self, wanted: Words, taken: Mapping[str, Any]) -> Words:
        """With the words of the kernel for checkpoints in place of those of the problem."""
        asked = {word: wanted.pop(word) for word in ASKED if self.checkpoints is not None and wanted.get(word) is not None}
        if not asked:
            return wanted
        ends = wanted.get("cu_seqlens")
        lengths = [wanted["q"].shape[1]] * len(wanted["q"]) if ends is None else (ends[1:] - ends[:-1]).tolist()
        own = "checkpoint_cu_starts" not in taken and int(wanted.get("chunk_size", 64) if "chunk_size" in taken else 64)
        tokens = [int(x) for x in asked.get("checkpoint_tokens", [])]
        every = own or int(asked.get("checkpoint_every") or next(filter(None, tokens), 64))
        listed = checkpoints_every(every, self.checkpoint_side, lengths)
        same = ([*zip(map(int, asked.get("checkpoint_sequence", [0] * len(tokens))), tokens)] == listed if tokens
                else (int(asked["checkpoint_every"]), asked["checkpoint_side"]) == (every, self.checkpoint_side))  # fmt: skip
        if not same:
            what = f"{own} tokens" if own else "so many tokens"
            raise Unsupported(f"the kernel has checkpoints {self.checkpoint_side} every {what}, the problem others")
        if own:
            return {**wanted, str(self.checkpoints): True}
        counts = [sum(of == n for of, _ in listed) for n in range(len(lengths))]
        starts: Any = [0, *itertools.accumulate(counts)]
        is_torch = hasattr(wanted["q"], "new_tensor")
        starts = wanted["q"].new_tensor(starts, dtype=sys.modules["torch"].int64) if is_torch else np.asarray(starts)
        return {**wanted, str(self.checkpoints): every, "checkpoint_cu_starts": starts}

    def _word(self, key: str, taken: Mapping[str, Any]) -> str:
        """That of the kernel for a word of the problem."""
        words = [key, *(word for word, meant in self.words.items() if meant == key)]
        return next((word for word in words if word in taken), key)

    def _on_pool(self, problem: Words, taken: Mapping[str, Any]) -> Words:
        """The words of a call on a pool of states (docs/serving.md), which the kernel has as its initial state."""
        table = {"state_indices": self.pool, "num_accepted_tokens": self.accepted}
        given = {key: problem.pop(key) for key in table if key in problem}
        if any(table[key] not in taken for key in given) or (given["state_indices"].ndim > 1 and self.accepted is None):
            raise Unsupported("the kernel takes no such pool of states")
        problem.pop("padding_slots", None), problem.pop("padding_output", None)
        problem["initial_state"] = problem.pop("state_pool")
        if "inplace_final_state" in taken:
            problem["inplace_final_state"] = True
        return {**problem, **{str(table[key]): x for key, x in given.items()}}

    def _pool_answer(self, returned: Any, buffers: Mapping[str, Any], pool: Any, beside: Words) -> Words:
        """o, the pool, what is returned in its shape, else that which was given, written in place; and what is beside it."""
        items = returned if isinstance(returned, (tuple, list)) else (returned,)
        found = {name: item for name, item in zip(self.results, items) if item is not None}
        found.update({name: buffers[name] for name in self.outputs.values() if name == "o"})
        final = found.pop("final_state", None)
        whole = final is not None and tuple(final.shape) == tuple(pool.shape)
        return self.to_answer({**found, **beside, "state_pool": final if whole else pool})


def takes_any(taken: Mapping[str, Any]) -> bool:
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken.values())


def _unsaid(problem: Mapping[str, Any]) -> Words:
    """What a kernel has that has no word for it."""
    return {"scale": float(problem["q"].shape[-1]) ** -0.5, "state_v_first": False}


def _is_same(value: Any, other: Any) -> bool:
    return bool(value == other) or (isinstance(value, float) and math.isclose(value, other, rel_tol=1e-14))


def _picked(pool: Any, slots: list[int]) -> Any:
    """Of a pool these slots; of codes in 8 bits as bytes, for which torch has no index."""
    if "float8" not in str(pool.dtype) or not hasattr(pool, "as_strided"):
        return pool[slots]
    return pool.view(sys.modules["torch"].uint8)[slots].view(pool.dtype)


def _is_plain(value: Any) -> bool:
    return isinstance(value, (bool, int, float, str))


def _is_there(value: Any) -> bool:
    return value is not None and (not isinstance(value, (bool, int)) or bool(value))


def _gated(words: Words) -> Words:
    if "g" not in words or "beta" not in words:
        raise Unsupported("no place in a fixture for a call without g or beta")
    return words


def _by_value_head(words: Words) -> Words:
    """FlashInfer's A_log and dt_bias belong to a head of q and k, those of a problem to one of v."""
    heads = words["q"].shape[2]
    for name in {"A_log", "dt_bias"} & set(words):
        words[name] = words[name].reshape(heads, -1).repeat_interleave(words["v"].shape[2] // heads, 0).reshape(-1)
    return words


def _by_key_head(words: Words) -> Words:
    heads, found = words["q"].shape[2], dict(words)
    for name in {"A_log", "dt_bias"} & set(words):
        grouped = words[name].reshape(heads, words["v"].shape[2] // heads, -1)
        if not bool((grouped == grouped[:, :1]).all()):
            raise Unsupported(f"the kernel has one {name} for the heads of v that share a head of k")
        found[name] = grouped[:, 0].reshape(-1)
    return found


def _per_head(words: Words) -> Words:
    if words["g"].ndim < words["k"].ndim:
        return words
    if not bool((words["g"] == words["g"][..., :1]).all()):
        raise Unsupported("the kernel has one gate for a head, the problem one for each channel")
    return {**words, "g": words["g"][..., 0]}


def _bias_by_head(words: Words) -> Words:
    return {**words, "dt_bias": words["dt_bias"].reshape(words["g"].shape[2], -1)} if "dt_bias" in words else words


def _batched(words: Words) -> Words:
    """FlashInfer's packed tensors have no batch axis, its gate is the factor itself, and a scale of 0 means none."""
    if not words.get("scale", 1):
        del words["scale"]
    batched = {key: x[None] if key in ("q", "k", "v", "g", "beta") else x for key, x in words.items()}
    return _gated({**batched, "g": batched["g"].double().log()} if "g" in batched else batched)


def _packed(words: Words) -> Words:
    if len(words["q"]) != 1:
        raise Unsupported("the kernel takes packed sequences only, the problem is a batch")
    ends = {"cu_seqlens": words["beta"].new_tensor([0, words["q"].shape[1]]).long(), **words}
    gate = _per_head(words)["g"].float().exp()
    return {**ends, **{key: x[0] for key, x in {**words, "g": gate}.items() if key in ("q", "k", "v", "g", "beta")}}


FLA = Signature(
    {"use_qk_l2norm_in_kernel": "qk_l2norm", "use_beta_sigmoid_in_kernel": "beta_sigmoid",
     "transpose_state_layout": "state_v_first", "gk": "g"}, {},
    frozenset({"output_final_state", "disable_recompute", "cu_seqlens_cpu", "use_graph",
               "max_num_seqs", "chunk_indices", "chunk_offsets", "inplace_final_state", "graph_mode", "out",
               "min_graph_utilization"}),
    "use_gate_in_kernel", pool="ssm_state_indices", accepted="num_accepted_tokens",
    constants={"output_final_state": True}, checkpoints="return_intermediate_states",
    compute={"float32": "tf32", "bfloat16": "bf16", "float16": "fp16"})  # fmt: skip
FLA_RECURRENT = replace(FLA, compute=dict.fromkeys(("float64", "float32", "bfloat16", "float16"), "fp32"))
FLA_GDN = replace(FLA, to_problem=_gated, to_kernel=_per_head)
FLA_GDN_RECURRENT = replace(FLA_RECURRENT, to_problem=_gated, to_kernel=_per_head)
FLA_GDN2 = replace(FLA, words={**FLA.words, "b": "erase", "w": "write"})
FLA_GDN2_RECURRENT = replace(FLA_RECURRENT, words=FLA_GDN2.words)
FLASH_KDA = Signature(fixed={"qk_l2norm": True, "beta_sigmoid": True, "state_v_first": True, "gate": "lower_bound"},
                      results=(), outputs={"out": "o", "final_state": "final_state"},
                      implementation="FlashKDA", to_kernel=_bias_by_head)  # fmt: skip
FLASHINFER_KDA = Signature(
    {"use_qk_l2norm_in_kernel": "qk_l2norm", "beta_is_logit": "beta_sigmoid"}, {"state_v_first": True},
    frozenset({"output_final_state", "checkpoint_cu_starts", "seq_order", "prefill_workspace", "backend"}), "use_gate_in_kernel",
    outputs={"output": "o", "state_checkpoints": "checkpoints"}, in_place=True, pool="ssm_state_indices",
    checkpoints="checkpoint_every_n_tokens",
    constants={"output_final_state": True}, to_problem=_by_value_head, to_kernel=_by_key_head)  # fmt: skip
FLASHINFER_GDN = Signature(
    {"use_qk_l2norm_in_kernel": "qk_l2norm"}, {"state_v_first": True},
    frozenset({"output_final_state", "checkpoint_cu_starts", "use_cp", "_cp_chunk_len", "output"}), pool="state_indices",
    outputs={"output_state": "final_state", "state_checkpoints": "checkpoints"},
    checkpoints="checkpoint_every_n_tokens", checkpoint_side="after", constants={"output_final_state": True},
    to_problem=_batched, to_kernel=_packed,
    to_answer=lambda found: {key: x[None] if key == "o" else x for key, x in found.items()})  # fmt: skip
# Entry points that `recording` wraps, by module. A program may add its own.
KNOWN: dict[str, Mapping[str, Signature]] = {
    "fla.ops.kda": {"chunk_kda": FLA, "fused_recurrent_kda": FLA_RECURRENT},
    "fla.ops.kda.fused_recurrent": {"fused_recurrent_kda_fwd": FLA_RECURRENT},
    "fla.ops.gated_delta_rule": {"chunk_gated_delta_rule": FLA_GDN,
                                 "fused_recurrent_gated_delta_rule": FLA_GDN_RECURRENT},
    "fla.ops.gdn2": {"chunk_gdn2": FLA_GDN2, "fused_recurrent_gdn2": FLA_GDN2_RECURRENT},
    "flash_kda": {"fwd": FLASH_KDA},
    "flashinfer.kda": {"recurrent_kda": FLASHINFER_KDA},
    "flashinfer.kda_decode": {"recurrent_kda": FLASHINFER_KDA},
    "flashinfer.gdn_prefill": {"chunk_gated_delta_rule": FLASHINFER_GDN},
}  # fmt: skip
