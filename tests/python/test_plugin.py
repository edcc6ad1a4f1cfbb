import os
import shlex

import pytest
from kda_check import _program

pytest.importorskip("torch")
HERE = os.path.dirname(os.path.abspath(__file__))
# Tests as others write them: with a loose tolerance, which the second kernel passes although it is wrong.
TESTS = """
import sys
sys.path.insert(0, {here!r})
import types
import torch
import kernels

package = types.ModuleType("fla.ops.kda")
package.chunk_kda = kernels.chunk_kda
sys.modules["fla.ops.kda"] = package

def inputs():
    torch.manual_seed(0)
    q, k = (torch.nn.functional.normalize(torch.randn(1, 40, 2, 16), dim=-1) for _ in range(2))
    return dict(q=q, k=k, v=torch.randn(1, 40, 2, 8), g=-torch.rand(1, 40, 2, 16), beta=torch.rand(1, 40, 2))

def test_right():
    from fla.ops.kda import chunk_kda
    chunk_kda(**inputs())

def test_wrong_within_its_tolerance():
    from fla.ops.kda import chunk_kda
    given = inputs()
    right, _ = chunk_kda(**given)
    wrong, _ = chunk_kda(**{{**given, "scale": 0.26}})
    assert torch.allclose(right, wrong, atol=0.1)
    @kda_check.kernel()
    def mine(q, k, v, g, beta):
        return chunk_kda(q, k, v, g, beta)[0] * 1.01
    mine(**given)

def test_without_a_place():
    from fla.ops.kda import chunk_kda
    chunk_kda(**inputs(), cp_context=object())

def test_that_fails_by_itself():
    from fla.ops.kda import chunk_kda
    assert chunk_kda(**inputs())[0] is None
""".replace("import kernels\n", "import kda_check\nimport kernels\n", 1)


@pytest.fixture
def run(pytester, monkeypatch):
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # where these tests themselves run in several processes
    monkeypatch.setenv("PYTHONPATH", os.path.join(HERE, "..", "..", "python") + os.pathsep + os.environ.get("PYTHONPATH", ""))
    pytester.makepyfile(test_theirs=TESTS.format(here=HERE))

    def run(*options):
        # As the entry point of an installed package does.
        return pytester.runpytest_subprocess(*options, "-p", "kda_check.pytest_plugin")

    return run


def test_without_the_option_nothing_happens(run):
    result = run("-q")
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.no_fnmatch_line("*kda-check*")


def test_every_call_is_judged_and_no_test_is_changed(run):
    result = run("--kda-check", "test_theirs.py")
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines([
        "*= kda-check =*",
        "FAIL test_theirs.py::test_wrong_within_its_tolerance: mine: o FAIL*",
        "*nothing is kept; --kda-check-save=FOLDER keeps problem and answer, and a command stands here",
        "NOT JUDGED test_theirs.py::test_without_a_place: chunk_kda: Unsupported: no place in a fixture for cp_context",
        "note: mine: compute assumed fp32, the element type of its o; *",
        "6 calls: 4 passed, 1 failed, 0 inconclusive, 1 not judged",
    ])
    result.stdout.no_fnmatch_line("*kda-check run *")


def test_strictly_a_wrong_call_fails_its_test(run):
    result = run("--kda-check=strict")
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(["*kda-check: *", "*FAIL     mine*"])


def test_what_is_inconclusive_is_no_pass_and_is_called_so(run, pytester):
    pytester.makepyfile(test_zeros="""
from test_theirs import inputs

def test_it():
    from fla.ops.kda import chunk_kda
    chunk_kda(**{**inputs(), "v": inputs()["v"] + float("nan")})
""")
    expected = ["INCONCLUSIVE test_zeros.py::test_it: chunk_kda: o INCONCLUSIVE *", "*nothing is kept; --kda-check-save=*",
                "1 calls: 0 passed, 0 failed, 1 inconclusive, 0 not judged"]  # fmt: skip
    for option, outcome in (("--kda-check", "passed"), ("--kda-check=strict", "failed")):
        result = run(option, "test_zeros.py")
        result.assert_outcomes(**{outcome: 1})
        result.stdout.fnmatch_lines(expected)


def test_how_a_call_was_judged_and_why_it_was_not_is_said(run, pytester):
    pytester.makepyfile(test_notes="""
import kda_check
import pytest
from test_theirs import inputs, kernels

def doubling(q, k, v, g, beta):
    return kernels.chunk_kda(q.mul_(2), k, v, g, beta, 0.125)[0]

@pytest.mark.parametrize("i", range(2))
def test_in_place(i):
    given = {name: x.requires_grad_() * 1 for name, x in inputs().items()}
    kda_check.kernel(kda_check.Signature(compute={"float32": "fp32"}))(doubling)(**given).sum().backward()

def test_out_of_memory():
    @kda_check.kernel
    def mine(q, k, v, g, beta):
        raise RuntimeError("CUDA out of memory.\\nTried to allocate 2 GiB \\x1b[31m")
    with pytest.raises(RuntimeError):
        mine(**inputs())
""")
    run("--kda-check", "test_notes.py").stdout.fnmatch_lines([
        "NOT JUDGED test_notes.py::test_out_of_memory: mine: it raised RuntimeError: CUDA out of memory. Tried to allocate 2 GiB \\x1b[[]31m",
        "note: doubling: no gradient of what the kernel changed in place: q (2 calls)",
        "3 calls: 2 passed, 0 failed, 0 inconclusive, 1 not judged",
    ])


def test_what_the_data_cannot_decide_is_called_so(run, pytester):
    pytester.makepyfile(test_tiny="""
import kda_check
from test_theirs import inputs, kernels

def test_it():
    given = inputs()
    given["v"] *= 1e-9
    kda_check.kernel()(lambda q, k, v, g, beta: kernels.chunk_kda(q, k, v, g, beta)[0].half())(**given)
""")
    run("--kda-check", "test_tiny.py").stdout.fnmatch_lines([
        "INCONCLUSIVE test_tiny.py::test_it: <lambda>: o INCONCLUSIVE*",
        "1 calls: 0 passed, 0 failed, 1 inconclusive, 0 not judged",
    ])


def test_failures_are_saved(run, pytester):
    result = run("--kda-check", "--kda-check-save=failures", "-k", "tolerance")
    assert os.listdir(pytester.path / "failures") == ["0003-mine.h5"]
    (line,) = [line.strip() for line in result.outlines if line.startswith("     kda-check run ")]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir("/")
        assert _program.run(shlex.split(line)[1:]).exit_code == 1


def test_a_budget_ends_judging(run):
    run("--kda-check", "--kda-check-seconds=0").stdout.fnmatch_lines(["1 calls: 1 passed, 0 failed, 0 inconclusive, 0 not judged, 5 skipped"])


def test_with_several_processes_the_summary_is_whole(run):
    pytest.importorskip("xdist")
    run("--kda-check", "-n2").stdout.fnmatch_lines(["6 calls: 4 passed, 1 failed, 0 inconclusive, 1 not judged"])


def test_an_older_pluggy_is_no_matter_where_the_option_is_not_given(run, pytester):
    # As pluggy before 1.2 has it.
    pytester.makepyfile(older='''
import pytest

class Marker(type(pytest.hookimpl)):
    def __call__(self, function=None, hookwrapper=False, optionalhook=False, tryfirst=False, trylast=False):
        return super().__call__(function, hookwrapper, optionalhook, tryfirst, trylast)

pytest.hookimpl = Marker("pytest")
''')
    pytester.makepyfile(test_plain="def test_it(): pass")
    run("-p", "older", "test_plain.py").assert_outcomes(passed=1)
    result = run("-p", "older", "--kda-check", "test_plain.py")
    assert result.ret == 4
    result.stderr.fnmatch_lines(["ERROR: --kda-check needs pluggy 1.2 or newer"])


def test_failures_are_saved_where_the_session_began(run, pytester):
    pytester.makepyfile(test_elsewhere="""
import kda_check
from test_theirs import inputs, kernels

def test_it(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    kda_check.kernel()(lambda q, k, v, g, beta: kernels.chunk_kda(q, k, v, g, beta)[0] * 1.01)(**inputs())
""")
    run("--kda-check", "--kda-check-save=failures", "test_elsewhere.py")
    assert os.listdir(pytester.path / "failures") == ["0001-_lambda_.h5"]


def test_calls_of_a_test_that_runs_again_are_told_once(run, pytester):
    pytester.makeconftest("""
from _pytest.runner import runtestprotocol

def pytest_runtest_protocol(item):
    for _ in range(2):
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in runtestprotocol(item, log=False):
            item.ihook.pytest_runtest_logreport(report=report)
    return True
""")
    run("--kda-check", "-k", "right").stdout.fnmatch_lines(["2 calls: 2 passed, 0 failed, 0 inconclusive, 0 not judged"])


TEARDOWN = """
import kda_check
import pytest
from test_theirs import inputs, kernels

@pytest.fixture
def late():
    yield
    kda_check.kernel()(lambda q, k, v, g, beta: kernels.chunk_kda(q, k, v, g, beta)[0] * 1.01)(**inputs())
    {end}

def test_it(late):
    pass
"""


@pytest.mark.parametrize("end", ["pass", "raise RuntimeError"])
def test_calls_while_a_test_is_tidied_up_are_judged(run, pytester, end):
    pytester.makepyfile(test_late=TEARDOWN.format(end=end))
    result = run("--kda-check=strict", "test_late.py")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["FAIL test_late.py::test_it: *", "1 calls: 0 passed, 1 failed*"])


def test_with_several_processes_skipped_calls_are_counted(run):
    pytest.importorskip("xdist")
    run("-n1", "--kda-check", "--kda-check-seconds=0").stdout.fnmatch_lines(["1 calls: *, 5 skipped"])


def test_calls_that_a_checkpoint_repeats_are_counted(run, pytester):
    pytester.makepyfile(test_theirs="""
import torch
import kda_check
from torch.utils.checkpoint import checkpoint

class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(context, v):
        context.save_for_backward(v)
        return v * 2

    @staticmethod
    def backward(context, gradient):
        return gradient * 2 + 0 * context.saved_tensors[0]

@kda_check.kernel()
def mine(q, k, v, g, beta):
    return Doubled.apply(v)

def test_it():
    q, k, v, g = torch.ones(4, 1, 40, 2, 16)
    checkpoint(lambda v: mine(q, k, v, g, g[..., 0]), v.requires_grad_(), use_reentrant=False).sum().backward()
""")
    for words in ((), ("-n1",)):
        if words:
            pytest.importorskip("xdist")
        run("--kda-check", *words).stdout.fnmatch_lines(["1 calls: 0 passed, 1 failed, 0 inconclusive, 0 not judged, 1 repeated by a checkpoint"])


def test_a_kernel_that_a_conftest_keeps_is_seen(run, pytester):
    for folder in ("fla", "fla/ops"):
        pytester.mkdir(folder).joinpath("__init__.py").touch()
    pytester.path.joinpath("fla/ops/kda.py").write_text("""
import kernels

def chunk_kda(*args, **words):
    return kernels.chunk_kda(*args, **words)
""")
    pytester.makeconftest(f"""
import sys
sys.path.insert(0, {HERE!r})
from fla.ops.kda import chunk_kda
KERNELS = {{"chunk": chunk_kda}}
""")
    pytester.makepyfile(test_table="""
import torch
from conftest import KERNELS

def test_it():
    x = torch.ones(1, 9, 1, 4)
    KERNELS["chunk"](q=x / 2, k=x / 2, v=x, g=-x, beta=x[..., 0])
""")
    run("--kda-check", "test_table.py").stdout.fnmatch_lines(["1 calls: 1 passed*"])
