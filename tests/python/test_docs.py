import os
import re

import kda_check
import pytest

pytest.importorskip("torch")
import kernels  # noqa: E402
from test_recorder import words  # noqa: E402

PYTHON = os.path.join(os.path.dirname(__file__), "..", "..", "docs", "python.md")


def test_every_example_of_the_document_runs(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with open(PYTHON, encoding="utf-8") as file:
        examples = re.findall(r"^```python run\n(.*?)^```", file.read(), re.M | re.S)
    given = words()
    o, ht = kernels.chunk_kda(**given, output_final_state=True)
    mine = kda_check.kernel()(kernels.chunk_kda)
    names = {**given, "o": o, "ht": ht, "scale": 0.25, "chunk_kda": kernels.chunk_kda, "mine": mine}
    for example in examples:
        exec(example, names)
    assert os.listdir("calls") == ["0001-chunk_kda.h5"] and len(examples) >= 8 and names["report"].passed and names["log"].calls[0].report.passed
