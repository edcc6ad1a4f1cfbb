"""What a recorder does with calls."""

import asyncio
import os
import shlex
import threading

import kda_check
import pytest
from kda_check import _program, recorder, recording, signatures

torch = pytest.importorskip("torch")
import kernels  # noqa: E402
from calls import words, wrong  # noqa: E402


def test_a_call_is_judged_and_its_answer_is_what_it_was(fla):
    before = fla.renamed
    plain = fla.renamed(**words(), output_final_state=True)
    with recording() as log:
        recorded = fla.renamed(**words(), output_final_state=True)
        assert fla.renamed is not before
    assert fla.renamed is before
    assert all(torch.equal(a, b) for a, b in zip(plain, recorded))
    (call,) = log.calls
    assert call.kernel == "chunk_kda" and call.report.passed and call.report["final_state"].passed
    assert "1 calls: 1 passed" in str(log) and log.cost > 0


def test_a_wrong_call_is_in_the_log_with_its_file(fla, monkeypatch, tmp_path):
    wrong(monkeypatch)
    with recording(save=tmp_path / "failed") as log:
        fla.renamed(*words().values())
    (call,) = log.failed
    assert call.path == str(tmp_path / "failed" / "0001-chunk_kda.h5") and call.path in call.report.repro
    assert _program.run(["run", call.path, "--variant", "none"]).exit_code == 1


def test_inputs_are_as_they_were_before_the_call(fla, monkeypatch):
    right = kernels.chunk_kda

    def scribbling(**given):
        answer = right(**given)
        given["v"].zero_()
        return answer

    monkeypatch.setattr(kernels, "chunk_kda", scribbling)
    with recording() as log:
        fla.renamed(**words())
    assert log.calls[0].report.passed


def test_what_cannot_be_recorded_is_said_and_the_call_is_made(fla):
    with recording() as log:
        o, _ = fla.renamed(**words(), cp_context=object())
        assert o.shape == (1, 40, 2, 8)
        with pytest.raises(IndexError):
            fla.renamed(**{**words(), "v": torch.randn(1, 39, 2, 8)})
        with pytest.raises(IndexError):
            fla.renamed(**words(), cu_seqlens=torch.tensor([0, 41]))
    assert log.calls[0].error == "Unsupported: no place in a fixture for cp_context"
    assert "v: shape (1, 39, 2, 8)" in log.calls[1].error
    assert log.calls[1].error.startswith("it raised IndexError: ") and "; ValueError: " in log.calls[1].error
    assert log.calls[2].error.startswith("it raised IndexError: index 40 is out of bounds") and len(log.calls) == 3


def test_a_recorder_that_breaks_does_not_break_the_program(fla, monkeypatch):
    monkeypatch.setenv("KDA_CHECK_PROGRAM", "/nowhere/kda-check")
    with recording() as log:
        o, _ = fla.renamed(**words(requires_grad=True))
        o.sum().backward()
    assert "ProgramMissing" in log.calls[0].error


def test_the_innermost_recorder_has_the_call(fla):
    with recording() as outer:
        with recording() as inner:
            fla.renamed(**words())
        fla.renamed(**words())
        fla.renamed(**words())
    assert (len(outer.calls), len(inner.calls)) == (2, 1) and inner.calls[0].report.passed


def test_a_call_without_a_place_that_raises_says_what_it_raised():
    @kda_check.kernel(signatures.FLA)
    def mine(q, k, v, g, beta, **more):
        raise ValueError(f"{len(more)}\nwords")

    with recording() as log:
        for more in ({"state_v_first": True, "transpose_state_layout": True}, {"cp_context": 1}):  # two names of one flag
            with pytest.raises(ValueError):
                mine(**words(), **more)
    why = "it raised ValueError: 1 words; Unsupported: no place in a fixture for cp_context"
    assert [call.error for call in log.calls] == ["it raised ValueError: 2 words", why]


def test_a_call_belongs_to_the_recorder_of_its_own_thread_or_task(fla):
    barrier = threading.Barrier(2, timeout=60)
    logs = {}

    def program(length):
        with recording(judged=False) as logs[length]:
            barrier.wait()
            for _ in range(3):
                fla.renamed(**words(T=length))
            barrier.wait()

    threads = [threading.Thread(target=program, args=(length,)) for length in (2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {length: [call.fixture.inputs["q"].shape[1] for call in log.calls] for length, log in logs.items()} == {2: [2] * 3, 3: [3] * 3}

    async def task(length):
        with recording(judged=False) as logs[length]:
            for _ in range(3):
                await asyncio.sleep(0)
                fla.renamed(**words(T=length))

    async def tasks():
        await asyncio.gather(task(4), task(5))

    asyncio.run(tasks())
    assert {length: [call.fixture.inputs["q"].shape[1] for call in logs[length].calls] for length in (4, 5)} == {4: [4] * 3, 5: [5] * 3}
    assert not recorder._active and not recorder._own.get()


def test_a_thread_without_a_recorder_of_its_own_has_the_last_one(fla):
    with recording(judged=False) as outer, recording(judged=False) as log:
        thread = threading.Thread(target=lambda: fla.renamed(**words(T=2)))
        thread.start(), thread.join()
    assert (len(outer.calls), len(log.calls)) == (0, 1)


def test_filters_and_budgets_skip_calls(fla):
    with recording(every=2, where=lambda name, problem: problem["q"].shape[1] > 20) as log:
        for T in (40, 40, 10, 10, 40):
            fla.renamed(**words(T=T))
    assert (len(log.calls), log.skipped) == (2, 3)
    for budget in ({"seconds": 0}, {"nbytes": 1000, "judged": False}):
        with recording(**budget) as log:
            fla.renamed(**words()), fla.renamed(**words())
        assert (len(log.calls), log.skipped) == (1, 1)


def test_calls_are_kept_and_judged_later(fla, tmp_path):
    with recording(judged=False) as log:
        fla.renamed(**words())
    assert log.not_judged and log.calls[0].fixture.inputs["q"].shape == (1, 40, 2, 16)
    log.judge()
    assert log.calls[0].report.passed
    with recording(judged=False, save=tmp_path) as log:
        fla.renamed(**words())
    assert os.listdir(tmp_path) == ["0001-chunk_kda.h5"]


def test_layers_of_a_model_name_their_calls(fla):
    class Layer(torch.nn.Module):
        def forward(self, given):
            return fla.renamed(**given)[0]

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList([Layer(), Layer()])

        def forward(self, given):
            return [layer(given) for layer in self.layers]

    model = Model()
    with recording(model) as log:
        recorded = model(words())
    assert len(recorded) == 2 and all(torch.equal(a, b) for a, b in zip(recorded, model(words())))
    assert [call.place for call in log.calls] == ["layers.0", "layers.1"]


def test_compiled_code_is_compiled_once_and_not_recorded():
    @kda_check.kernel()
    def mine(q, k, v, g, beta):
        return v * 2

    torch._dynamo.reset(), torch._dynamo.utils.counters.clear()
    compiled = torch.compile(lambda given: mine(**given) + 1, backend="eager", fullgraph=True)
    with recording() as log:
        for _ in range(4):
            compiled(words())
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1 and not log.calls


def test_cuda_is_not_begun_by_the_recorder(fla, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: pytest.fail("asked for CUDA"))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: pytest.fail("asked for CUDA"))
    with recording() as log:
        fla.renamed(**words())
    assert log.calls[0].report.passed


def test_calls_of_several_threads_have_names_of_their_own(fla):
    with recording(judged=False) as log:
        threads = [threading.Thread(target=lambda: [fla.renamed(**words(T=2)) for _ in range(20)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len({call.fixture.name for call in log.calls}) == len(log.calls) == 80


def test_calls_of_forked_processes_are_saved_apart(fla, monkeypatch, tmp_path):
    with recording(judged=False, save=tmp_path) as log:
        fla.renamed(**words(T=2))
        monkeypatch.setattr(os, "getpid", lambda: 7)  # as a child sees it, which has a recorder of its own
        fla.renamed(**words(T=2))
    assert [os.path.basename(call.path) for call in log.calls] == ["0001-chunk_kda.h5", "0002-7-chunk_kda.h5"]


def test_the_command_for_a_call_in_a_folder_of_any_name_runs(fla, monkeypatch, tmp_path):
    wrong(monkeypatch)
    with recording(save=tmp_path / "my project's") as log:
        fla.renamed(**words(T=2))
    (call,) = log.failed
    command = shlex.split(call.report.repro)
    assert command[2] == call.path == str(tmp_path / "my project's" / "0001-chunk_kda.h5") and f"repro: {call.report.repro}" in str(call.report)
    assert _program.run(command[1:]).exit_code == 1


def test_a_call_that_the_program_refuses_keeps_no_other_from_its_verdict(fla):
    with recording(judged=False) as log:
        fla.renamed(**{**words(), "scale": float("nan")})
        fla.renamed(**words())
    log.judge()
    assert "options/scale is nan" in log.calls[0].error and log.calls[1].report.passed
