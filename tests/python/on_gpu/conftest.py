"""What the tests of FLA's kernels share. Also a plugin for other people's tests of them: pytest -p on_gpu.conftest.

Of each kernel that the autotuner times, one choice is left: choosing takes minutes, and other choices have other bits.

With KDA_CHECK_NOTES=FILE.json in the environment, it is written there what each test did, for run.py: how often it
entered a known kernel, which Python itself counts, and the bits of every tensor it compared.
"""

import functools
import hashlib
import importlib.util
import inspect
import json
import os
import sys

import pytest
from kda_check.signatures import KNOWN

NOTES = os.environ.get("KDA_CHECK_NOTES")
HAS_FLA = all(importlib.util.find_spec(name) for name in ("torch", "triton", "fla"))
OURS = ("kda_entered", "kda_bits", "kda_check", "kda_check_skipped", "kda_check_repeated")


@pytest.fixture(autouse=True)
def memory():
    """In place of that of the tests beside: these are judged where any program's calls are."""


def pytest_configure(config):
    if HAS_FLA:
        leave_one_config()
    if NOTES and HAS_FLA:
        config.pluginmanager.register(Notes(config), "kda-check-notes")


def leave_one_config():
    """Four warps and few stages if there is such a choice: it fits every GPU, and is not slow."""
    from triton.runtime.autotuner import Autotuner

    begin = Autotuner.__init__

    def __init__(self, *args, **words):
        begin(self, *args, **words)
        self.configs = sorted(self.configs, key=lambda config: (config.num_warps != 4, config.num_stages))[:1]

    if begin.__name__ == "__init__" and begin.__module__ != __name__:
        Autotuner.__init__ = __init__


class Notes:
    """Writes down what tests do, beneath and beside the recorder."""

    def __init__(self, config):
        import fla.ops.gated_delta_rule
        import fla.ops.kda.fused_recurrent
        import fla.utils

        self.is_first = not hasattr(config, "workerinput")
        self.entered, self.item, self.tests = 0, None, {}
        functions = (getattr(sys.modules.get(module), name, None) for module, names in KNOWN.items() for name in names)
        self.codes = {inspect.unwrap(function).__code__ for function in functions if function is not None}
        assert all(f"{os.sep}fla{os.sep}" in code.co_filename for code in self.codes)
        # Counted by the interpreter, when the function's own code begins: there is no way around it.
        if hasattr(sys, "monitoring"):
            tool, event = 4, sys.monitoring.events.PY_START
            sys.monitoring.use_tool_id(tool, "kda-check notes")
            sys.monitoring.register_callback(tool, event, lambda code, offset: self.enter(sys._getframe(1)))
            for code in self.codes:
                sys.monitoring.set_local_events(tool, code, event)
        else:
            sys.setprofile(lambda frame, event, value: self.enter(frame) if event == "call" else None)
        compare = fla.utils.assert_close

        @functools.wraps(compare)
        def assert_close(name, *tensors, **words):
            if self.item is not None:
                self.item.user_properties.append(("kda_bits", [name, *map(digest, tensors[:2])]))
            return compare(name, *tensors, **words)

        fla.utils.assert_close = assert_close

    def enter(self, frame):
        """A kernel that another one calls is part of that."""
        if frame.f_code not in self.codes:
            return
        outer = frame.f_back
        while outer is not None and outer.f_code not in self.codes:
            outer = outer.f_back
        self.entered += outer is None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item):
        self.item, before = item, self.entered
        try:
            return (yield)
        finally:
            self.item = None
            item.user_properties.append(("kda_entered", self.entered - before))

    def pytest_runtest_logreport(self, report):
        test = self.tests.setdefault(report.nodeid, {"outcome": "passed", **{key: [] for key in OURS}})
        if report.outcome != "passed":
            test["outcome"], test["text"] = report.outcome, str(report.longrepr)[-4000:]
        if report.when == "call":
            test["seconds"] = report.duration
        if report.when == "teardown":
            test.update({key: [x for name, x in report.user_properties if name == key] for key in OURS})

    def pytest_sessionfinish(self):
        if self.is_first:
            with open(NOTES, "w") as file:
                json.dump(self.tests, file, indent=1)


def digest(tensor):
    """The bits of a tensor, its shape and its type."""
    import torch

    plain = tensor.detach().contiguous().cpu()
    about = f"{tuple(plain.shape)} {plain.dtype}".encode()
    return hashlib.sha256(about + plain.reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()[:32]
