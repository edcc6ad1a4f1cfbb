import os
import re

import kda_check
import pytest
from kda_check.signatures import KNOWN

with open(os.path.join(os.path.dirname(__file__), "..", "..", "docs", "python.md"), encoding="utf-8") as file:
    PYTHON = file.read()


def test_every_example_of_the_document_runs(monkeypatch, tmp_path):
    pytest.importorskip("torch")
    import kernels
    from test_recorder import words

    monkeypatch.chdir(tmp_path)
    examples = re.findall(r"^```python run\n(.*?)^```", PYTHON, re.M | re.S)
    given = words()
    o, ht = kernels.chunk_kda(**given, output_final_state=True)
    mine = kda_check.kernel()(kernels.chunk_kda)
    names = {**given, "o": o, "ht": ht, "scale": 0.25, "chunk_kda": kernels.chunk_kda, "mine": mine}
    for example in examples:
        exec(example, names)
    assert os.listdir("calls") == ["0001-chunk_kda.h5"] and len(examples) >= 8 and names["report"].passed and names["log"].calls[0].report.passed


def test_the_document_names_the_kernels_that_are_recorded_and_no_others():
    def named(head):
        rows = [row.split("|") for row in PYTHON.split(head)[1].split("\n\n")[0].splitlines()[1:]]
        return {(row[1].strip(), name.rpartition(".")[2]) for row in rows for name in re.findall(r"`([\w.]+)`", row[2])}

    packages = {"fla": "FLA", "flash_kda": "FlashKDA", "flashinfer": "FlashInfer"}
    known = {(packages[module.partition(".")[0]], name) for module, names in KNOWN.items() for name in names}
    other_names = {("FLA", "chunk_gdn"), ("FLA", "fused_recurrent_gdn")}
    assert named("| of | recorded, by any name they were imported to |\n") == known | other_names
    assert not named("| of | not recorded | why |\n") & known
