"""Processes that stay: what they answer, and what is left where one of them ends, or this process, or one forked from it."""

import contextlib
import json
import multiprocessing
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import recurrence

import kda_check
from kda_check import _program, _staying

PROGRAM = os.path.abspath(_program.find())
CASES = Path(__file__).resolve().parents[2] / "cases"


def right(q, k, v, g, beta, scale):
    return recurrence(q, k, v, g, beta, scale)[0]


def idle():
    """The process that the next call will have."""
    return _staying._idle[-1].process.pid


def is_there(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def wait_for(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def with_mark(mark):
    """All processes that were begun with that in their environment, and live."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (folder / "environ").read_bytes() and is_there(folder.name):
                found.append(int(folder.name))
    return found


COMMANDS = [
    ["run", "control:T=70,H=2,K=16,V=8,loss=1", "--variant", "chunk,recurrent", "-v"],
    ["run", f"{CASES}/fixtures/fla_bf16_gva.h5", "--variant", "none", "--stages"],
    ["run", "slow_alpha:T=90,K=16,V=8,dtype=bf16", "--invariants", "--variant", "chunk"],
    ["run", "serve:K=16,V=8", "--variant", "recurrent", "--invariants"],
    ["run", "control:T=9", "--limit", "max_abs=1e-30", "--variant", "chunk"],  # a FAIL
    ["run", "control:T=9", "--no-such-option"],
    ["run", "nowhere.h5"],
    ["explain", f"{CASES}/fixtures/fla_bf16_gva.h5", "--only", "bits"],
    ["explain", f"{CASES}/kernels/vllm_packed_fp32.h5"],
    ["power", "control:T=40,H=1,K=16,V=8"],
    ["list", "metrics", "regimes"],
]


def test_every_job_answers_in_bits_and_text_as_a_process_of_its_own(tmp_path):
    def alone(command, path):
        ended = subprocess.run([PROGRAM, *command, f"--report=json={path}", "--report=text"], capture_output=True, text=True)
        return ended.returncode, ended.stdout, ended.stderr, path.read_text() if path.exists() else ""

    def together(command):
        ended = _program.run(command, reports=["json"], accept=range(256))
        return ended.exit_code, ended.stdout, ended.stderr, ended.reports["json"]

    def without_words(answer):
        document = json.loads(answer[3] or "{}")
        document.get("request", {}).pop("argv", None)
        return *answer[:3], json.dumps(document)  # in its order

    expected = [without_words(alone(command, tmp_path / f"{i}.json")) for i, command in enumerate(COMMANDS)]
    assert [answer[0] for answer in expected[4:7]] == [1, 2, 3] and all(json.loads(each[3]) for each in expected[:5])
    _program.run(COMMANDS[0])
    before = idle()
    for i in [*range(len(COMMANDS)), *random.Random(1).sample(range(len(COMMANDS)), len(COMMANDS))]:
        assert without_words(together(COMMANDS[i])) == expected[i], COMMANDS[i]
    assert idle() == before


def test_a_job_has_the_folder_and_the_variables_of_its_call(tmp_path, monkeypatch):
    kda_check.regime("control", T=8).write(tmp_path / "here.h5")
    _program.run(["list", "metrics"])
    before = idle()
    monkeypatch.chdir(tmp_path)
    assert _program.run(["show", "here.h5"]).exit_code == 0
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    said = _program.run(["run", "here.h5", "--variant", "chunk", "--external", "cp {in} {out}; echo $KDA_OF_A_TEST >seen"],
                        environment={"KDA_OF_A_TEST": "its own"}, accept=(1,))  # fmt: skip
    assert (tmp_path / "seen").read_text() == "its own\n", said
    assert idle() == before
    monkeypatch.setenv("KDA_CHECK_ISA", "baseline")
    _program.run(["list", "metrics"])
    assert idle() != before


def test_what_lacked_something_ends_and_another_goes_on(problem):
    assert kda_check.check(**problem).passed
    before = idle()
    with pytest.raises(kda_check.EnvironmentProblem, match="cannot write"):
        _program.run(["make", "control:T=8", "-o", "/nowhere/x.h5"])
    assert not is_there(before)
    assert kda_check.check(**problem).passed and idle() != before


def test_one_that_was_killed_while_nobody_needed_it_is_not_missed(problem):
    expected = kda_check.check(**problem).text
    os.kill(idle(), signal.SIGKILL)
    assert kda_check.check(**problem).text == expected


def test_one_that_is_killed_in_a_job_is_one_exception_and_the_next_call_works(tmp_path):
    problem = kda_check.regime("control:T=48,H=2,K=16,V=8")
    expected, draw, killed = kda_check.verify(right, problem, framework="numpy").text, random.Random(1), 0
    mark = f"KDA_MARK_OF_A_TEST={tmp_path.name}-{os.getpid()}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(*mark.split("="))
        for _ in range(15):
            kda_check.verify(right, problem, framework="numpy")
            timer = threading.Timer(draw.uniform(0, 0.03), os.kill, (idle(), draw.choice([signal.SIGKILL, signal.SIGSEGV])))
            timer.start()
            try:
                while timer.is_alive():
                    assert kda_check.verify(right, problem, framework="numpy").text == expected
            except kda_check.ProgramDied as error:
                assert "was ended by SIG" in str(error) and "kda-check run" in str(error)
                killed += 1
            timer.join()
            assert kda_check.verify(right, problem, framework="numpy").text == expected
    assert killed > 3
    for each in _staying._idle:
        each.end()
    _staying._idle.clear()
    assert wait_for(lambda: not with_mark(mark))


PARENT = """
import os, sys, tempfile, time
sys.path.insert(0, {tests!r})
import kda_check
from kda_check import _scratch
from conftest import recurrence
_scratch.MEMORY = tempfile.tempdir = {folder!r}
if {forks}:
    kda_check.regime("control:T=8")
    if os.fork() == 0:
        time.sleep(100)
def kernel(q, k, v, g, beta, scale):
    return recurrence(q, k, v, g, beta, scale)
problem = kda_check.regime("control:T=48,H=2,K=16,V=8")
kda_check.verify(kernel, problem, framework="numpy")
print("ready", flush=True)
while True:
    kda_check.verify(kernel, problem, framework="numpy", invariants=["split", "repeat"])
"""


@pytest.mark.parametrize("forks", [0, 1])
def test_a_parent_that_is_killed_leaves_no_process_and_no_folder(tmp_path, forks):
    draw, folder = random.Random(2), tmp_path / "memory"
    folder.mkdir()
    said = PARENT.format(tests=str(Path(__file__).parent), folder=str(folder), forks=forks)
    mark = f"KDA_MARK_OF_A_TEST={tmp_path.name}-{os.getpid()}"
    environment = {**os.environ, "KDA_CHECK_PROGRAM": PROGRAM, **dict([mark.split("=")]),
                   "PYTHONPATH": str(Path(kda_check.__file__).parents[1])}  # fmt: skip
    for _ in range(3 if forks else 12):
        with subprocess.Popen([sys.executable, "-c", said], stdout=subprocess.PIPE, env=environment) as parent:
            assert parent.stdout.readline() == b"ready\n"
            time.sleep(draw.uniform(0, 0.3))
            parent.send_signal(signal.SIGKILL)
            if forks:
                assert wait_for(lambda: len(with_mark(mark)) == 1), "the program outlived its parent"
                os.kill(with_mark(mark)[0], signal.SIGKILL)  # what was forked from it
        assert wait_for(lambda: not with_mark(mark) and not os.listdir(folder)), (with_mark(mark), os.listdir(folder))


def test_a_process_that_ends_takes_them_with_it(tmp_path):
    said = "import kda_check\nfrom kda_check import _staying\nkda_check.regime('control:T=8')\nprint(_staying._idle[0].process.pid)"
    environment = {**os.environ, "KDA_CHECK_PROGRAM": PROGRAM, "PYTHONPATH": str(Path(kda_check.__file__).parents[1])}
    ended = subprocess.run([sys.executable, "-X", "dev", "-W", "error", "-c", said], capture_output=True, text=True, env=environment)
    assert ended.returncode == 0 and ended.stderr == "" and not is_there(int(ended.stdout))


def test_a_process_that_was_forked_has_its_own(problem):
    expected = kda_check.check(**problem).text
    before = idle()
    ours, theirs = multiprocessing.get_context("fork").Pipe()

    def child():
        theirs.send((len(_staying._idle), kda_check.check(**problem).text, idle()))
        time.sleep(100)

    forked = multiprocessing.get_context("fork").Process(target=child)
    forked.start()
    try:
        count, text, other = ours.recv()
        assert (count, text) == (0, expected) and other != before
        assert kda_check.check(**problem).text == expected and idle() == before
    finally:
        forked.kill()
        forked.join()
    assert wait_for(lambda: not is_there(other)) and is_there(before)


def test_threads_do_not_wait_for_each_other(problem):
    expected, found, slow = kda_check.check(**problem).text, [], threading.Event()

    def ask(*_):  # as a kernel that calls us
        found.append(kda_check.check(**problem).text)
        slow.wait(30)
        return np.ones((1, 8, 2, 128), np.float32), np.ones((1, 2, 128, 128), np.float32)

    many = [threading.Thread(target=lambda: found.append(kda_check.check(**problem).text)) for _ in range(6)]
    one = threading.Thread(target=lambda: kda_check.verify(lambda **_: ask(), "control:T=8", invariants=["repeat"], framework="numpy"))
    one.start()
    for thread in many:
        thread.start()
    for thread in many:
        thread.join()
    slow.set()
    one.join()
    assert len(found) > 6 and set(found) == {expected} and len(_staying._idle) <= _staying.MOST_IDLE


def test_a_call_that_is_interrupted_ends_its_job(problem, tmp_path):
    assert kda_check.check(**problem).passed
    before, raised = idle(), signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(KeyboardInterrupt):
            _program.run(["run", "control:T=60000,H=8", "--variant", "chunk"])
    finally:
        signal.signal(signal.SIGALRM, raised)
    assert not is_there(before)
    assert kda_check.check(**problem).passed


def test_the_program_takes_jobs_from_a_socket_alone():
    for stdin in (subprocess.DEVNULL, subprocess.PIPE):
        ended = subprocess.run([PROGRAM, "serve"], stdin=stdin, capture_output=True, text=True)
        assert ended.returncode == 2 and "its standard input is a socket" in ended.stderr


@pytest.mark.parametrize("message", [b"\0", b"1\0" b"1\0", b"3\0" b"9\0run\0", b"x\0" b"1\0run\0", b"3\0" b"1\0run", b"99\0" b"1\0run\0"])
def test_what_is_no_job_ends_the_process_with_a_line(message):
    here, there = socket.socketpair()
    with here, there:
        process = subprocess.Popen([PROGRAM, "serve"], stdin=there, stderr=subprocess.PIPE, text=True)
        here.sendall(len(message).to_bytes(8, sys.byteorder) + message)
        assert process.wait(20) == 70 and "serve: a job that is none" in process.stderr.read()
        process.stderr.close()
