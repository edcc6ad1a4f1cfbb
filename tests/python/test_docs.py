import os
import re
import subprocess

import kda_check
import numpy as np
import pytest
from kda_check import _program
from kda_check.signatures import KNOWN



def text_of(document):
    with open(os.path.join(os.path.dirname(__file__), "..", "..", document), encoding="utf-8") as file:
        return file.read()


def examples_of(document):
    return re.findall(r"^```python run\n(.*?)^```", text_of(document), re.M | re.S)


def test_every_example_of_the_document_runs(monkeypatch, tmp_path):
    pytest.importorskip("torch")
    import kernels
    from test_recorder import words

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(kda_check.signatures, "KNOWN", dict(KNOWN))  # an example adds to it
    examples = examples_of("docs/python.md")
    given = words()
    o, ht = kernels.chunk_kda(**given, output_final_state=True)
    mine = kda_check.kernel()(kernels.chunk_kda)
    names = {**given, "o": o, "ht": ht, "scale": 0.25, "chunk_kda": kernels.chunk_kda, "mine": mine}
    for example in examples:
        exec(example, names)
    assert os.listdir("calls") == ["0001-chunk_kda.h5"] and len(examples) >= 8 and names["report"].passed and names["log"].calls[0].report.passed


@pytest.mark.parametrize("framework", ["torch", "ml_dtypes"])
def test_the_readme_writes_a_file_by_hand_in_bfloat16_as_save_does(framework, problem, monkeypatch, tmp_path):
    pytest.importorskip("h5py")
    module = pytest.importorskip(framework)
    monkeypatch.chdir(tmp_path)
    (example,) = [each for each in examples_of("README.md") if "import h5py" in each]
    given = {name: problem[name] for name in ("q", "k", "v", "g", "beta", "o")}
    if framework == "torch":
        names = {name: module.from_numpy(x).bfloat16() for name, x in given.items()}
    else:  # as numpy has them; what the example asks of torch is a type that numpy has, too
        names = {name: x.astype(module.bfloat16) for name, x in given.items()}
        names["torch"] = np
    exec(example, {"torch": module, **names})
    answer = {"o": names["o"], "compute": "bf16"}
    kda_check.save("saved.h5", **{key: x for key, x in names.items() if key not in ("o", "torch")}, expected={"my_kernel": answer})
    difference = subprocess.run([_program.find(), "diff", "mine.h5", "saved.h5"], capture_output=True, text=True)
    assert difference.returncode == 0 and "6 tensors" in difference.stdout, difference.stdout + difference.stderr
    assert kda_check.Fixture.read("mine.h5").inputs["q"].dtype == "bfloat16"
    assert kda_check.judge(kda_check.Fixture.read("mine.h5")).passed


def test_the_document_names_the_kernels_that_are_recorded_and_no_others():
    def named(head):
        rows = [row.split("|") for row in text_of("docs/python.md").split(head)[1].split("\n\n")[0].splitlines()[1:]]
        return {(row[1].strip(), name.rpartition(".")[2]) for row in rows for name in re.findall(r"`([\w.]+)`", row[2])}

    packages = {"fla": "FLA", "flash_kda": "FlashKDA", "flashinfer": "FlashInfer"}
    known = {(packages[module.partition(".")[0]], name) for module, names in KNOWN.items() for name in names}
    other_names = {("FLA", "chunk_gdn"), ("FLA", "fused_recurrent_gdn")}
    assert named("| of | recorded, by any name they were imported to |\n") == known | other_names
    others = set(re.findall(r"`([\w.]+)`", text_of("docs/python.md").split("\nNot recorded: ")[1].split("\n\n")[0]))
    assert others and not others & {name for _, name in known}
