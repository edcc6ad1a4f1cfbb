"""What the tests of the Python package share. Run: KDA_CHECK_PROGRAM=... PYTHONPATH=python pytest tests/python"""

import functools
import os
import sys
import tempfile
import types

import numpy as np
import pytest
from kda_check import _scratch

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

pytest_plugins = ["pytester"]


def drawn(T=48, H=2, K=16, V=8, seed=1):
    """q, k, v, g, beta as numpy arrays in fp64."""
    draw = np.random.default_rng(seed)
    q, k = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in draw.standard_normal((2, 1, T, H, K)))
    return {"q": q, "k": k, "v": draw.standard_normal((1, T, H, V)), "g": -draw.random((1, T, H, K)),
            "beta": draw.random((1, T, H))}


def recurrence(q, k, v, g, beta, scale=None):
    """(o, final_state), in the precision of numpy arrays."""
    state, o = np.zeros(q.shape[0:1] + q.shape[2:] + v.shape[-1:], q.dtype), np.zeros_like(v)
    for t in range(q.shape[1]):
        state = state * np.exp(g[:, t])[..., None]
        error = v[:, t] - np.einsum("bhkv,bhk->bhv", state, k[:, t])
        state = state + np.einsum("bhk,bhv->bhkv", k[:, t] * beta[:, t][..., None], error)
        o[:, t] = np.einsum("bhkv,bhk->bhv", state, q[:, t]) * (scale or q.shape[-1] ** -0.5)
    return o, state


@pytest.fixture
def problem():
    """A problem in fp32 and its true answer: words for kda_check.check."""
    inputs = {name: x.astype(np.float32) for name, x in drawn().items()}
    o, state = recurrence(**{name: x.astype(np.float64) for name, x in inputs.items()})
    return {**inputs, "o": o.astype(np.float32), "final_state": state.astype(np.float32), "compute": "fp32"}


@pytest.fixture(autouse=True)
def memory(monkeypatch):
    """The folder in memory that a test has for itself, and leaves empty."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        monkeypatch.setattr(_scratch, "MEMORY", folder)
        yield folder
        assert os.listdir(folder) == []


@pytest.fixture
def fla(monkeypatch):
    """A module that looks like FLA's, and one that took a kernel from it."""
    import kernels

    package, user = types.ModuleType("fla.ops.kda"), types.ModuleType("user_of_fla")
    package.chunk_kda = user.renamed = functools.wraps(kernels.chunk_kda)(lambda *args, **words: kernels.chunk_kda(*args, **words))
    monkeypatch.setitem(sys.modules, "fla.ops.kda", package)
    monkeypatch.setitem(sys.modules, "user_of_fla", user)
    return user
