import subprocess
import sys

import kda_check
import pytest
from kda_check import _public


def said(code):
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()


def test_pytest_without_the_option_loads_nothing_but_its_definition():
    assert said("import sys, pytest; before = set(sys.modules); import kda_check.pytest_plugin; "
                "print(*sorted(set(sys.modules) - before))") == ["kda_check", "kda_check.pytest_plugin"]


def test_what_the_package_gives_is_there_when_it_is_asked_for():
    assert set(_public.__all__) <= set(said("import kda_check; print(*dir(kda_check))"))
    assert said("from kda_check import *; print(verify.__name__)") == ["verify"]
    assert said("import kda_check; print(kda_check.signatures.FLA.gate)") == ["use_gate_in_kernel"]
    with pytest.raises(AttributeError, match="module 'kda_check' has no attribute 'chekc'"):
        kda_check.chekc  # noqa: B018
