"""Verdicts on kernels of Kimi Delta Attention, from tensors of torch, JAX or numpy."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import signatures as signatures
    from . import strategies as strategies
    from ._public import *  # noqa: F403
    from ._public import __all__ as __all__
else:
    # pytest imports this package in every run of everybody who has it, for the definition of an option: no numpy then.
    def __getattr__(name):
        if not name.startswith("_") or name == "__all__":
            from importlib import import_module

            if name == "strategies":  # which alone needs Hypothesis
                return import_module("kda_check.strategies")
            public = import_module("kda_check._public")
            globals().update({each: getattr(public, each) for each in ("__all__", *public.__all__)})
            if name in globals():
                return globals()[name]
        raise AttributeError(f"module 'kda_check' has no attribute '{name}'")

    def __dir__():
        return sorted({*globals(), *__getattr__("__all__")})
