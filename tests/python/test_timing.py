"""How `bench --against` times kernels of others, with a clock that counts runs."""

import argparse
import contextlib
import sys

import pytest
from kda_check import _timing, signatures


class Event:
    def __init__(self, cuda):
        self.cuda, self.at = cuda, None

    def record(self):
        self.at = self.cuda.runs

    def synchronize(self):
        pass

    def elapsed_time(self, end):
        return (end.at - self.at) * 1e3  # a second a run


class Graph:
    def __init__(self, cuda):
        self.cuda, self.size = cuda, 0

    def replay(self):
        self.cuda.runs += self.size


class Cuda:
    """Counts runs; `captures`: whether they can be captured."""

    L2_cache_size = 1

    def __init__(self, captures):
        self.runs, self.captures = 0, captures

    @contextlib.contextmanager
    def graph(self, graph, stream):
        before = self.runs
        yield
        if not self.captures:
            raise RuntimeError("operation not permitted when stream is capturing")
        graph.size, self.runs = self.runs - before, before

    def CUDAGraph(self):
        return Graph(self)

    def Event(self, enable_timing):
        return Event(self)

    def get_device_properties(self, device):
        return self

    def current_stream(self):
        return None

    def synchronize(self):
        pass


class Cache:
    def zero_(self):
        pass


class Torch:
    int8 = None

    def __init__(self, captures):
        self.cuda = Cuda(captures)

    def empty(self, size, dtype, device):
        return Cache()

    def run(self):
        self.cuda.runs += 1


def times(captures, together):
    torch = Torch(captures)
    return _timing.seconds(torch, torch.run, argparse.Namespace(repeats=3, together=together))


def test_a_run_is_timed_as_a_graph_where_it_can_be_captured():
    assert times(True, 1) == _timing.Times([1.0] * 3, None)
    assert times(True, 1).provenance() == {"seconds": " ".join(["1.000000000"] * 3)}
    assert str(times(True, 1)) == "as a CUDA graph"


def test_a_run_that_cannot_be_captured_is_launched():
    found = times(False, 1)
    assert found == _timing.Times(None, [1.0] * 3)
    assert str(found) == "launch by launch"
    assert found.provenance() == {"seconds": " ".join(["1.000000000"] * 3)}


def test_steps_behind_each_other_are_timed_both_ways_and_a_time_is_that_of_one():
    found = times(True, 20)
    assert found == _timing.Times([1.0] * 3, [1.0] * 3)
    assert set(found.provenance()) == {"seconds", "launched"}


def test_fla_is_imported_so_that_it_hands_no_call_to_kernels_of_others(tmp_path, monkeypatch):
    package = tmp_path / "fla" / "ops" / "kda"
    package.mkdir(parents=True)
    for folder in (tmp_path / "fla", tmp_path / "fla" / "ops"):
        (folder / "__init__.py").touch()
    (package / "__init__.py").write_text("import os\nchunk_kda = os.environ.get('FLA_DISABLE_BACKEND_DISPATCH')\n")
    for name in [name for name in sys.modules if name.partition(".")[0] == "fla"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setenv("FLA_DISABLE_BACKEND_DISPATCH", "")
    monkeypatch.delenv("FLA_DISABLE_BACKEND_DISPATCH")
    monkeypatch.syspath_prepend(tmp_path)
    assert _timing.imported(*_timing.KERNELS["fla"])[1] == "1"
    for name in [name for name in sys.modules if name.partition(".")[0] == "fla"]:
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.parametrize("kernels", [_timing.KERNELS, _timing.ON_POOLS])
def test_every_kernel_that_is_timed_has_a_signature(kernels):
    for module, name in kernels.values():
        assert name in signatures.KNOWN[module]


def test_a_kernel_that_would_swallow_the_table_of_a_pool_takes_none():
    import numpy as np

    def kernel(q, initial_state=None, **words):
        raise AssertionError("called")

    problem = {"q": np.zeros((1, 1, 1, 1)), "state_pool": np.zeros((1, 1, 1, 1)), "state_indices": np.zeros(1, int)}
    with pytest.raises(signatures.Unsupported, match="no such pool"):
        signatures.FLA_RECURRENT.call(kernel, problem, {})
