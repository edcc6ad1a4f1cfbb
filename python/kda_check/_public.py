"""What `import kda_check` gives: read by `__init__` when the first of it is asked for."""

from ._program import (
    EnvironmentProblem,
    InputError,
    KdaCheckError,
    ProgramDied,
    ProgramMissing,
    ProgramTimeout,
    UsageError,
)
from .checking import assert_accurate, check, judge
from .evaluating import evaluate
from .fixture import Answer, Fixture, save
from .recorder import Call, Log, kernel, recording
from .report import Explanation, Report, TensorReport
from .ring import InRing, verify_fpsan
from .searching import Search, search
from .signatures import Signature, Unsupported
from .verifying import regime, suite, verify

__all__ = ["Answer", "Call", "EnvironmentProblem", "Explanation", "Fixture", "InRing", "InputError", "KdaCheckError", "Log",
           "ProgramDied", "ProgramMissing", "ProgramTimeout", "Report", "Search", "Signature", "TensorReport", "Unsupported",
           "UsageError", "assert_accurate", "check", "evaluate", "judge", "kernel", "recording", "regime", "save", "search",
           "suite", "verify", "verify_fpsan"]  # fmt: skip
