"""pytest --kda-check: judges every call of a known kernel that the tests make, and changes none of them."""

from __future__ import annotations

import inspect

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    option = parser.getgroup("kda-check", "accuracy of KDA kernels").addoption
    option("--kda-check", action="store_const", const="report", dest="kda_check",
           help="judge every call of a known kernel; --kda-check=strict: a call that fails fails its test")  # fmt: skip
    option("--kda-check=strict", action="store_const", const="strict", dest="kda_check", help="see --kda-check")
    option("--kda-check-save", metavar="FOLDER", help="keep problem and answer of calls that fail")
    option("--kda-check-seconds", metavar="N", type=float, default=float("inf"), help="judge no more after N seconds")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    if getattr(early_config.known_args_namespace, "kda_check", None):
        from .recorder import watch

        watch()  # a conftest.py may keep a kernel where nobody finds it afterwards


def pytest_configure(config: pytest.Config) -> None:
    mode = config.getoption("kda_check")
    if mode:
        if "wrapper" not in inspect.signature(pytest.hookimpl).parameters:
            raise pytest.UsageError("--kda-check needs pluggy 1.2 or newer")
        from ._pytest_judge import Judge

        config.pluginmanager.register(Judge(config, mode == "strict"), "kda-check-recorder")
