"""Calls that the tests of the recorder make."""

import kernels
import torch


def words(dtype=torch.float32, T=40, requires_grad=False):
    torch.manual_seed(1)
    q, k = (torch.nn.functional.normalize(torch.randn(1, T, 2, 16), dim=-1).to(dtype) for _ in range(2))
    found = {"q": q, "k": k, "v": torch.randn(1, T, 2, 8).to(dtype), "g": -torch.rand(1, T, 2, 16), "beta": torch.rand(1, T, 2)}
    return {name: x.requires_grad_(requires_grad) for name, x in found.items()}


def wrong(monkeypatch):
    """A kernel that is off by 2 %."""
    right = kernels.chunk_kda
    monkeypatch.setattr(kernels, "chunk_kda", lambda *args, **words: (lambda o, s: (o * 1.02, s))(*right(*args, **words)))
