import html
import json
import os
import re
import signal
import stat
import subprocess
import tempfile
import time

import kda_check
import numpy as np
import pytest
from conftest import recurrence
from kda_check import _program, _scratch


def script(path, text):
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_a_right_answer_passes(problem):
    report = kda_check.check(**problem)
    assert report.passed and report["o"].passed and report.repro is None
    assert 0 < report["o"].rms_ratio < report["o"].limits["rms_ratio"]
    assert "PASS     kernel" in str(report) and repr(report) == "<kda_check.Report: PASS, 1 comparisons>"


def test_a_wrong_answer_fails_and_says_where(problem):
    problem["o"][0, 17, 1, 3] += 0.1
    report = kda_check.check(**problem)
    assert not report.passed and report["o"].verdict == "fail" and report["final_state"].passed
    assert report["o"].row["worst"]["index"] == [0, 17, 1, 3] and "t=17" in str(report)
    assert report.repro.startswith("nothing is kept; save='FILE.h5' keeps ")


def test_an_assertion_quotes_the_report(problem):
    kda_check.assert_accurate(**problem)
    with pytest.raises(AssertionError, match="FAIL     kernel"):
        kda_check.assert_accurate(**{**problem, "o": problem["o"] * 1.01})


def test_a_report_is_a_page_and_json(problem, tmp_path):
    report = kda_check.check(**problem)
    assert report.to_html().startswith("<!DOCTYPE html>") and "srcdoc" in report._repr_html_()
    report.to_json(tmp_path / "a.json")
    assert json.loads((tmp_path / "a.json").read_text()) == report.documents[0]
    with pytest.raises(KeyError, match="there are o, final_state"):
        report["dq"]
    with pytest.raises(AttributeError, match="no metric speed"):
        _ = report["o"].speed


def without_names(document):
    for key in ("request", "plan"):
        document.pop(key)
    for row in document["fixtures"] + document["cases"]:
        row.pop("path"), row.pop("repro", None)
    return document


def test_check_reports_what_the_program_reports_of_a_file(problem, tmp_path):
    fixture = kda_check.Fixture.of(**{key: problem[key] for key in ("q", "k", "v", "g", "beta")}, name="kernel",
                                   expected={"kernel": {key: problem[key] for key in ("o", "final_state", "compute")}})
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:  # not by the writer that check uses
        file.attrs.update({"format": "kda-fixture", "format_version": 1, "name": "kernel"})
        for name, tensor in fixture.inputs.items():
            file[f"inputs/{name}"] = tensor.data
        file.create_group("options").attrs.update(fixture.options)
        for name, tensor in fixture.expected["kernel"].tensors.items():
            file[f"expected/kernel/{name}"] = tensor.data
        file["expected/kernel"].attrs["compute"] = "fp32"
    by_file = _program.run(["run", str(tmp_path / "a.h5"), "--variant", "none"], reports=["json"]).reports["json"]
    assert without_names(json.loads(by_file)) == without_names(kda_check.check(**problem).documents[0])


def test_options_and_a_file_to_keep(problem, tmp_path):
    report = kda_check.check(**problem, save=tmp_path / "kept.h5", options=["--limit", "rms_ratio=2e-8"], name="mine")
    assert not report.passed and {case["variant"] for case in report.cases} >= {"mine", "chunk", "recurrent"}
    assert str(tmp_path / "kept.h5") in report.repro
    assert list(kda_check.Fixture.read(tmp_path / "kept.h5").expected) == ["mine"]


def test_a_file_may_be_called_as_an_option_is(problem, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wrong = {**problem, "o": 2 * problem["o"]}
    report = kda_check.check(**wrong, save="-x.h5")
    assert os.listdir() == ["-x.h5"] and report.repro.startswith("kda-check run ./-x.h5 ")
    report = kda_check.check(**wrong, name="-x", save="y.h5")
    assert report.repro.startswith("kda-check run y.h5 --variant none --recorded -x ") and not report.passed


@pytest.mark.parametrize("call", [
    lambda problem: kda_check.check(**problem, options="--quiet"),
    lambda problem: kda_check.verify(print, "control:T=8", options="--quiet"),
    lambda problem: kda_check.recording(options="--quiet").__enter__(),
], ids=["check", "verify", "recording"])
def test_options_as_one_text_are_refused(problem, call):
    with pytest.raises(TypeError, match="options: wanted a list of words, got the text '--quiet'"):
        call(problem)


def test_gradients_are_judged(problem):
    do = np.ones_like(problem["v"])
    report = kda_check.check(**{**problem, "do": do, "dv": np.zeros_like(do)})
    assert report["dv"].verdict == "fail" and report["o"].passed


def test_torch_and_jax_tensors_give_the_same_report(problem):
    torch, jnp = pytest.importorskip("torch"), pytest.importorskip("jax.numpy")
    words = {key: x for key, x in problem.items() if key != "compute"}
    reports = [kda_check.check(**{key: take(x) for key, x in words.items()}, compute="fp32")
               for take in (np.asarray, lambda x: torch.from_numpy(x).requires_grad_(), jnp.asarray)]
    assert reports[0].cases == reports[1].cases == reports[2].cases


def test_what_has_no_place_is_refused_before_anything_runs(problem, monkeypatch):
    monkeypatch.setenv("KDA_CHECK_PROGRAM", "/nowhere/kda-check")
    with pytest.raises(TypeError, match="no place in a fixture for soft_cap"):
        kda_check.check(**problem, soft_cap=30)
    with pytest.raises(ValueError, match=r"kernel: o: shape \(1, 2, 3\)"):
        kda_check.check(**{**problem, "o": np.zeros((1, 2, 3), np.float32)})
    with pytest.raises(ValueError, match="kernel: no tensor"):
        kda_check.check(q=problem["q"], k=problem["k"], v=problem["v"], g=problem["g"], beta=problem["beta"])


def test_gradients_that_cannot_be_judged_are_refused(problem):
    with pytest.raises(ValueError, match="kernel: gradients without do or dht"):
        kda_check.check(**problem, dq=problem["q"])
    with pytest.raises(ValueError, match="kernel: dinitial_state of no input"):
        kda_check.check(**problem, do=problem["v"], dinitial_state=problem["final_state"])


def test_what_the_program_says_has_no_folder_of_ours_in_it(problem):
    with pytest.raises(kda_check.InputError, match=r"^attribute compute of expected/kernel is .* \(kernel.h5\)$"):
        kda_check.check(**{**problem, "compute": "bf17"})


@pytest.mark.parametrize("change, message", [
    (lambda x, torch: torch.from_numpy(x).to("meta"), "kernel: o: its elements cannot be had"),
    (lambda x, torch: torch.from_numpy(x).to(torch.float8_e4m3fn), "kernel: o: its elements cannot be had"),
    (lambda x, torch: torch.from_numpy(x).to(torch.complex64), "kernel: o: element type complex64"),
    (lambda x, torch: x.astype(np.int8), "kernel: o: element type int8; wanted float64, float32, float16, bfloat16"),
    (lambda x, torch: x.tolist(), "kernel: o: wanted a tensor with an element type, got list"),
])
def test_devices_and_element_types_without_a_place_are_refused_by_name(problem, change, message):
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match=message):
        kda_check.check(**{**problem, "o": change(problem["o"], torch)})


@pytest.mark.parametrize("options, error, message", [
    ({"scale": 10**400}, kda_check.InputError, "options/scale is inf; wanted a finite number"),
    ({"scale": float("nan")}, kda_check.InputError, "options/scale is nan; wanted a finite number"),
    ({"scale": "0.5"}, TypeError, "scale: wanted a number, got '0.5'"),
    ({"scale": np.ones(2)}, TypeError, "scale: wanted a number, got ndarray"),
    ({"chunk_size": 2**70}, kda_check.InputError, "options/chunk_size is beyond 64 bits; wanted 1..1048576"),
    ({"chunk_size": -(10**5000)}, kda_check.InputError, "options/chunk_size is beyond 64 bits; wanted 1..1048576"),
    ({"chunk_size": 0}, kda_check.InputError, "options/chunk_size is 0; wanted 1..1048576"),
    ({"chunk_size": 64.5}, TypeError, "chunk_size: wanted a whole number, got 64.5"),
    ({"qk_l2norm": "no"}, TypeError, "qk_l2norm: wanted True or False, got 'no'"),
    ({"beta_sigmoid": 2}, TypeError, "beta_sigmoid: wanted True or False, got 2"),
    ({"state_v_first": np.ones(2)}, TypeError, "state_v_first: wanted True or False, got ndarray"),
    ({"allow_neg_eigval": True}, kda_check.InputError, "options/allow_neg_eigval is 1; wanted beta_sigmoid beside it"),
    ({"gate": 3}, TypeError, "gate: wanted text, got 3"),
    ({"gate": "sigmoid"}, kda_check.InputError, "options/gate is sigmoid; wanted none, lower_bound, or softplus and A_log"),
    ({"gate": "softplus"}, kda_check.InputError, "options/gate is softplus; wanted none, lower_bound, or softplus and A_log"),
    ({"gate": "lower_bound"}, kda_check.InputError, "options/lower_bound is missing; wanted a negative number"),
    ({"lower_bound": 10**400}, kda_check.InputError, "options/lower_bound is inf; wanted a negative number"),
    ({"padding_slots": "all"}, kda_check.InputError, "options/padding_slots is all; wanted one of none, negative"),
    ({"name": 3}, TypeError, "the name of an answer: wanted text, got 3|name: wanted text, got 3"),
    ({"provenance": ["x"]}, TypeError, "provenance: wanted a dictionary, got list"),
    ({"provenance": {"k" * 70000: 1}}, ValueError, "'k{60}' is no name for what is in provenance"),
    ({"timeout": "soon"}, TypeError, "timeout: wanted a number, got 'soon'"),
    ({"save": "/nowhere/x.h5"}, kda_check.EnvironmentProblem, r"cannot write: No such file or directory \(/nowhere/x.h5\)"),
], ids=lambda x: str(*x)[:20] if isinstance(x, dict) else "")
def test_every_option_is_held_to_its_kind_and_its_range(problem, options, error, message):
    with pytest.raises(error, match=f"^({message})"):
        kda_check.check(**problem, **options)


def test_options_are_taken_from_any_framework(problem):
    words = {key: problem[key] for key in ("q", "k", "v", "g", "beta")}
    said = {"scale": np.float32(0.25), "chunk_size": np.int16(32), "qk_l2norm": np.True_, "beta_sigmoid": np.array(1), "safe_gate": None}
    options = kda_check.Fixture.of(**words, **said).options
    assert (options["scale"], options["chunk_size"], options["qk_l2norm"], options["beta_sigmoid"], options["safe_gate"]) == (0.25, 32, 1, 1, 0)


def test_an_option_that_was_changed_afterwards_is_held_to_its_range_too(problem, tmp_path):
    fixture = kda_check.Fixture.of(**{key: problem[key] for key in ("q", "k", "v", "g", "beta")})
    fixture.options["chunk_size"] = 2**70
    with pytest.raises(kda_check.InputError, match="options/chunk_size is beyond 64 bits"):
        fixture.write(tmp_path / "a.h5")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("words, error, message", [
    ({"every": 0}, ValueError, "every: wanted 1 or more, got 0"),
    ({"every": "2"}, TypeError, "every: wanted a whole number, got '2'"),
    ({"seconds": "1"}, TypeError, "seconds: wanted a number"),
    ({"nbytes": None}, TypeError, "nbytes: wanted a number, got NoneType"),
    ({"judged": "no"}, TypeError, "judged: wanted True or False, got 'no'"),
], ids=lambda x: str(*x) if isinstance(x, dict) else "")
def test_every_option_of_a_recording_is_held_to_its_kind_before_it_begins(words, error, message):
    with pytest.raises(error, match=message):
        with kda_check.recording(**words):
            pass


def test_a_flag_of_verify_is_no_text():
    with pytest.raises(TypeError, match="backward: wanted True or False, got 'no'"):
        kda_check.verify(print, "control:T=8", backward="no")


def test_a_report_that_cannot_be_written_is_one_exception(tmp_path):
    with pytest.raises(kda_check.EnvironmentProblem, match=r"^cannot write: No such file or directory \(/nope/x\)$"):
        kda_check.Report([], "").to_json("/nope/x")


def test_a_number_or_a_text_that_does_not_fit_a_file_is_kept_as_far_as_it_does(problem, tmp_path):
    words = {key: problem[key] for key in ("q", "k", "v", "g", "beta")}
    kda_check.save(tmp_path / "a.h5", **words, provenance={"seed": 2**70, "by": "x" * 70000}, description="\udcff")
    kept = kda_check.Fixture.read(tmp_path / "a.h5")
    assert kept.provenance["seed"] == str(2**70) and len(kept.provenance["by"]) == 60000 and kept.description == "?"


def test_a_missing_program_is_said(problem, monkeypatch):
    monkeypatch.setenv("KDA_CHECK_PROGRAM", "/nowhere/kda-check")
    with pytest.raises(kda_check.ProgramMissing, match="'/nowhere/kda-check' is no program"):
        kda_check.check(**problem)


def test_what_the_program_refuses_is_an_exception_with_its_words(problem):
    with pytest.raises(kda_check.UsageError, match="no-such-option"):
        kda_check.check(**problem, options=["--no-such-option"])
    with pytest.raises(kda_check.InputError, match="gate"):
        kda_check.check(**problem, gate="sigmoid")


def test_a_program_that_dies_is_one_exception(problem, monkeypatch, tmp_path):
    monkeypatch.setenv("KDA_CHECK_PROGRAM", script(tmp_path / "dead", "echo last words >&2; kill -SEGV $$"))
    with pytest.raises(kda_check.ProgramDied, match=r"ended by SIGSEGV: (.|\n)*last words"):
        kda_check.check(**problem)


def test_a_program_that_hangs_is_ended(problem, monkeypatch, tmp_path):
    monkeypatch.setenv("KDA_CHECK_PROGRAM", script(tmp_path / "slow", "echo $$ >" + str(tmp_path / "pid") + "; exec sleep 100"))
    with pytest.raises(kda_check.ProgramTimeout, match="did not end within 0.5 s"):
        kda_check.check(**problem, timeout=0.5)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGCONT)


def test_full_memory_falls_back_to_files_and_then_is_one_exception(problem, monkeypatch, memory):
    free = _scratch._free
    monkeypatch.setattr(_scratch, "_free", lambda parent: 0 if parent == memory else free(parent))
    assert kda_check.check(**problem).passed
    monkeypatch.setattr(_scratch, "_free", lambda parent: 0)
    with pytest.raises(kda_check.EnvironmentProblem, match=f"no room for 1 MiB: {memory} has 0 MiB"):
        kda_check.check(**problem)


def test_no_folder_for_temporary_files_is_one_exception(monkeypatch):
    monkeypatch.setattr(_scratch, "MEMORY", "/nowhere")
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    with pytest.raises(kda_check.EnvironmentProblem, match="no folder for temporary files: No such file or directory; hint: TMPDIR"):
        kda_check.regime("control", T=8)


def test_a_disk_that_fills_up_meanwhile_is_one_exception(problem, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(kda_check.EnvironmentProblem, match="No space left on device"):
        kda_check.check(**problem)


def test_folders_of_killed_processes_are_removed_and_no_others(problem, memory):
    old, others = (os.path.join(memory, name) for name in (f"{_scratch.PREFIX}of-a-dead-process", f"{_scratch.PREFIX}of-nobody"))
    for path in (old, others):
        os.mkdir(path)
    with open(f"{old}/lock", "w"):
        os.utime(old, (0, 0)), os.utime(others, (0, 0))
    with _scratch.folder() as held:
        os.utime(held, (0, 0))
        kda_check.check(**problem)
        assert os.path.exists(held) and not os.path.exists(old) and os.path.exists(others)
    os.rmdir(others)


def test_no_pipe_is_left_open_where_the_program_does_not_start(problem, monkeypatch, tmp_path):
    (tmp_path / "no-format").write_text("neither a script nor a program")
    (tmp_path / "no-format").chmod(0o755)
    before = len(os.listdir("/proc/self/fd"))
    for program in ("/nowhere/kda-check", str(tmp_path / "no-format")):
        monkeypatch.setenv("KDA_CHECK_PROGRAM", program)
        with pytest.raises(kda_check.ProgramMissing):
            kda_check.check(**problem)
    with pytest.raises(ValueError, match="null byte"):
        monkeypatch.undo()
        kda_check.check(**problem, options=["--limit", "\0"])
    assert len(os.listdir("/proc/self/fd")) <= before  # fewer, where a collection of garbage fell in between


def test_time_ends_for_suites_and_laws_too(tmp_path):
    def slow(v, **_):
        time.sleep(0.6)
        return v, np.ones((1, 2, 128, 128), np.float32)

    (tmp_path / "mine.txt").write_text("".join(f"control:T={T}\n" for T in range(1, 9)))
    for problem, laws in (("control:T=4", True), (f"@{tmp_path}/mine.txt", False)):
        with pytest.raises(kda_check.ProgramTimeout, match="within 1 s: kda-check run"):
            kda_check.verify(slow, problem, invariants=laws, timeout=1, framework="numpy")


def test_folders_of_any_name_will_do(tmp_path, monkeypatch):
    folder = tmp_path / "a folder's name"
    folder.mkdir()
    monkeypatch.setattr(_scratch, "MEMORY", "/nowhere")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    report = kda_check.verify(lambda v, **_: (v, np.ones((1, 2, 128, 128), np.float32)), "control:T=4",
                              invariants=["repeat"], framework="numpy")
    assert report.cases[-1]["verdict"] == "pass", report
    assert os.listdir(folder) == []


def test_what_a_program_leaves_running_is_not_waited_for(problem, monkeypatch, tmp_path):
    monkeypatch.setenv("KDA_CHECK_PROGRAM", script(tmp_path / "wrapper", "sleep 100 & echo $! >" + str(tmp_path / "pid") + "; wait"))
    before = time.monotonic()
    with pytest.raises(kda_check.ProgramTimeout):
        kda_check.check(**problem, timeout=0.5)
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    assert time.monotonic() - before < 90


@pytest.mark.parametrize("options, left", [
    (["--dtype", "bf16"], "o, final_state (options: --dtype bf16; inputs rounded to bf16: "),
    (["--dtype=bf16"], "o, final_state (options: --dtype=bf16; "),
    (["--tensor", "final_state"], "o (options: --tensor final_state)"),
    (["--recorded", "none"], "o, final_state (options: --recorded none)"),
    (["--variant", "chunk", "--recorded", "none", "--against", "oracle"],
     "o, final_state (options: --recorded none, --against oracle)"),
])  # fmt: skip
def test_an_answer_that_options_leave_out_is_no_pass(problem, options, left, tmp_path):
    for words in ({}, {"save": tmp_path / "kept.h5"}):
        report = kda_check.check(**problem, options=options, **words)
        assert not report.passed and report.verdict == "fail"
        assert f"FAIL: kernel: not judged: {left}" in str(report) and "\nPASS: " not in str(report)
        summary = json.loads(report.to_json())["summary"]
        assert (summary["outcome"], summary["exit_code"]) == ("fail", 1) and summary["errors"] >= 1
    with pytest.raises(AssertionError, match="not judged: o"):
        kda_check.assert_accurate(**problem, options=options)
    assert kda_check.check(**problem, options=()).passed


def test_gradients_that_an_option_leaves_out_are_no_pass(problem):
    report = kda_check.check(**problem, do=np.ones_like(problem["v"]), dv=problem["v"], options=["--no-backward", "--variant", "none"])
    assert "FAIL: kernel: not judged: dv (options: --no-backward)" in str(report) and not report.passed


def test_the_tensors_of_a_fixture_are_taken_back(problem):
    answer = {key: problem.pop(key) for key in ("o", "final_state", "compute")}
    o, state = recurrence(*(problem[key][:, :20].astype(np.float64) for key in ("q", "k", "v", "g", "beta")))
    o = np.concatenate([o, recurrence(*(problem[key][:, 20:].astype(np.float64) for key in ("q", "k", "v", "g", "beta")))[0]], 1)
    fixture = kda_check.Fixture.of(**problem, cu_seqlens=[0, 20, 48], expected={"mine": {"o": o.astype(np.float32), "compute": "fp32"}})
    assert kda_check.check(fixture.expected["mine"].tensors["o"], **fixture.inputs, **fixture.options, compute="fp32").passed
    assert not kda_check.check(answer["o"], **fixture.inputs, **fixture.options, compute="fp32").passed
    again = kda_check.Fixture.of(**fixture.inputs, **fixture.options, expected=fixture.expected)
    assert kda_check.judge(again).passed and again.expected == fixture.expected


def test_what_judges_nothing_is_no_pass(problem):
    report = kda_check.check(**problem, options=["--dry-run"])
    assert not report.passed and not report.cases


def test_a_row_shows_itself_in_a_line(problem):
    assert repr(kda_check.check(**problem)["o"]) == "<kda_check.TensorReport: o PASS>"


def test_what_makes_no_report_is_refused(problem):
    with pytest.raises(kda_check.UsageError, match="no report"):
        kda_check.check(**problem, options=["--help"])


def test_a_file_that_cannot_be_kept_is_one_exception(problem, tmp_path):
    for path in (tmp_path / "nowhere" / "kept.h5", tmp_path):
        with pytest.raises(kda_check.EnvironmentProblem, match=f"cannot write: .*{path}"):
            kda_check.check(**problem, save=path)


def test_what_was_judged_is_explained(problem, tmp_path):
    inputs = {name: problem[name] for name in ("q", "k", "v", "g", "beta")}
    problem["o"], problem["final_state"] = recurrence(**inputs)  # in fp32, a sum a row
    for words in ({}, {"save": tmp_path / "mine.h5"}):
        report = kda_check.check(**problem, **words)
        found = report.explain(["--advise"])
        (entry,) = found.explained
        assert (entry["output"], entry["pass"], entry["identity"]) == ("kernel", "forward", "too_few_errors")
        assert f"too few errors to identify (n = {entry['errors']})" in str(found) and found.passed and entry["advice"] == []
        assert repr(found) == "<kda_check.Explanation: PASS, kernel forward too_few_errors>"
        assert found.to_html().startswith("<!DOCTYPE html>") and "/dev/shm" not in found.to_json() + found.to_html() + str(found)
        said = "kda-check explain " + str(tmp_path) if words else "nothing is kept; save="
        assert entry["repro"].startswith(said) and f"<code>{said}" in html.unescape(found.to_html())
        assert words or not re.search("kda-check (run|explain) ", found.to_html())
    (tmp_path / "mine.h5").unlink()
    with pytest.raises(kda_check.InputError, match="mine.h5"):
        report.explain()


def test_of_recorded_stages_the_first_that_is_wrong_is_said(tmp_path):
    made = tmp_path / "made.h5"
    chunk = ["--variant", "chunk", "--dtype", "bf16", "-o", str(made)]
    subprocess.run([_program.find(), "capture", "control:T=150,H=2,K=32,V=16,dtype=bf16", *chunk], check=True)
    fixture = kda_check.Fixture.read(made)
    fixture.write(tmp_path / "again.h5")
    subprocess.run([_program.find(), "diff", str(made), str(tmp_path / "again.h5")], check=True)  # no bit differs
    (answer,) = fixture.expected.values()
    words = {**fixture.inputs, **fixture.options, "compute": "bf16", "g_cumsum_base": "e"}
    assert kda_check.check(answer.tensors["o"], **words, stages=answer.stages).passed
    wrong = answer.stages["v_new"].numpy().astype(np.float32)
    wrong[:, 70:80, 1] *= 1.5
    report = kda_check.check(answer.tensors["o"], **words, stages={**answer.stages, "v_new": wrong})
    assert not report.passed and "leaves the truth first at v_new, chunk 1 (b=0 t=64..127), h=1, token 70" in str(report)
    with pytest.raises(ValueError, match=r"stages/v_new: shape .* wanted \[B,T,HV,V\]"):
        kda_check.check(answer.tensors["o"], **words, stages={"v_new": wrong[:, :5]})
    with pytest.raises(ValueError, match="no place in an answer for stages/L"):
        kda_check.check(answer.tensors["o"], **words, stages={"L": wrong})


def test_an_answer_with_a_name_is_identified_and_compared():
    fixture = kda_check.Fixture.read(os.path.join(os.path.dirname(__file__), "../../cases/fixtures/fla_fp32_small.h5"))
    fixture.expected = {"mine": kda_check.Answer(fixture.expected["fla_chunk"].tensors)}
    report = kda_check.judge(fixture)
    (entry,) = report.explain().explained
    assert entry["identity"] == "identified" and (entry["variant"], entry["preset"], entry["differing"]) == ("chunk", "fla", 0)
    (between,) = report.explain(["--between", "mine,chunk+ieee"]).between
    assert between["left"] == pytest.approx(0, abs=1e-9) and any(step["setting"].startswith("tf32@") for step in between["steps"])
    with pytest.raises(kda_check.UsageError, match="--between"):
        report.explain(["--between", "mine"])
    found = report.explain(["--only", "growth,faults", "--variant", "none"])
    assert [entry["answer"] for entry in found.section("growth")] == ["mine"] and found.verdict == "fail"  # of fp32, nobody says tf32
    assert re.fullmatch(r"<kda_check.Explanation: FAIL, mine none of \d+ known faults explains it.*>", repr(found))
    found = report.explain(["--between", "chunk+fla,recurrent"])
    assert (found.passed, found.verdict, found.repro, found.explained) == (True, "pass", None, [])
    assert repr(found) == "<kda_check.Explanation: PASS, from recurrent to chunk+fla forward>"
    found.between[0].update(verdict="inconclusive", repro="kda-check explain it")  # as the program says it, with exit code 1
    found.documents[0]["summary"]["exit_code"] = 1
    assert (found.passed, found.verdict, found.repro) == (False, "inconclusive", "kda-check explain it")


def test_what_is_not_there_any_more_is_not_explained(problem):
    report = kda_check.check(**problem)
    problem["o"][0, 0] += 1
    with pytest.raises(ValueError, match="written to since they were judged; save='FILE.h5'"):
        report.explain()
    fixture = kda_check.Fixture.of(**{name: problem[name] for name in "q k v g beta".split()}, expected={"mine": {"o": problem["o"]}})
    for change in (lambda: fixture.options.update(scale=0.5), lambda: fixture.expected["mine"].about.update(compute="bf16"),
                   lambda: fixture.expected.update(yours=fixture.expected.pop("mine"))):
        report = kda_check.judge(fixture)
        change()
        with pytest.raises(ValueError, match="options or names have been written to"):
            report.explain()
    with pytest.raises(ValueError, match="nothing to explain"):
        kda_check.verify(lambda q, k, v, g, beta, scale: v * 0, "@smoke", framework="numpy", options=["--dry-run"]).explain()
