"""The options of a problem, held to what the program takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Union

from ._kinds import flag, number, shown, text, whole
from ._program import InputError

Value = Union[int, float, str]
FLAGS = ("qk_l2norm", "beta_sigmoid", "allow_neg_eigval", "state_v_first", "safe_gate")
OPTIONS = ("scale", "chunk_size", "gate", "lower_bound", "padding_slots", "padding_output", "checkpoint_every",
           "checkpoint_side", "ring_flush", "ring_folds_call", "largest_code", "code_rounding", "code_seed", *FLAGS)  # fmt: skip
GATES = ("none", "softplus", "lower_bound")
SIDES = ("before", "after")
PADDINGS = ("none", "negative", "nonpositive", "negative_tokens")
ROUNDINGS = ("nearest", "stochastic")
PADDING_OUTPUTS = ("unspecified", "zero", "untouched")
LONGEST_CHUNK = 1 << 20


KINDS: dict[str, Callable[[Any, str], Value]] = {
    "scale": number, "chunk_size": whole, "gate": text, "lower_bound": number, "padding_slots": text, "padding_output": text,
    "checkpoint_every": whole, "checkpoint_side": text,
    "ring_flush": whole, "largest_code": number, "code_rounding": text, "code_seed": whole,
    **dict.fromkeys(("ring_folds_call", *FLAGS), lambda value, name: int(flag(value, name)))}  # fmt: skip


def of_problem(options: Mapping[str, Any], has_A_log: bool) -> dict[str, Value]:
    """The options of a problem as a fixture has them: what is None is left out, what is none of them stays as it is. Raises
    TypeError and InputError, by name."""
    found: dict[str, Value] = {}
    for name, value in options.items():
        if value is not None:
            found[name] = KINDS[name](value, name) if name in KINDS else value
    gate, lower_bound, chunk_size = found.get("gate", "none"), found.get("lower_bound"), found.get("chunk_size", 64)
    bounds = {
        "gate": (gate in GATES and (gate != "softplus" or has_A_log), "none, lower_bound, or softplus and A_log"),
        "lower_bound": (gate != "lower_bound" or -math.inf < float(lower_bound or 0) < 0, "a negative number"),
        "scale": (math.isfinite(float(found.get("scale", 1))), "a finite number"),
        "chunk_size": (chunk_size in range(1, LONGEST_CHUNK + 1), f"1..{LONGEST_CHUNK}"),
        "checkpoint_every": (found.get("checkpoint_every", 1) in range(1, 1 << 62), "at least 1"),
        "checkpoint_side": (found.get("checkpoint_side") in (SIDES if "checkpoint_every" in found else (None,)),
                            "before or after, beside checkpoint_every"),
        "padding_slots": (found.get("padding_slots", "none") in PADDINGS, f"one of {', '.join(PADDINGS)}"),
        "padding_output": (found.get("padding_output", "zero") in PADDING_OUTPUTS, f"one of {', '.join(PADDING_OUTPUTS)}"),
        "ring_flush": (found.get("ring_flush", 0) in range(1 << 62), "at least 0"),
        "largest_code": (0 <= float(found.get("largest_code", 0)) < math.inf, "0 (scales are fixed) or more"),
        "code_rounding": (found.get("code_rounding", "nearest") in ROUNDINGS, f"one of {', '.join(ROUNDINGS)}"),
        "code_seed": (found.get("code_seed", 0) in range(-1 << 63, 1 << 63), "64 bits"),
        "allow_neg_eigval": (not found.get("allow_neg_eigval") or found.get("beta_sigmoid"), "beta_sigmoid beside it"),
    }
    for name, (is_taken, wanted) in bounds.items():
        if not is_taken:
            value = found.get(name, "missing")
            refusal = InputError(f"options/{name} is {shown(value)}; wanted {wanted}")
            refusal.option = name
            raise refusal
    return found
