"""Files are read and written by the rule of the program (docs/file-format.md)."""

import fcntl
import os
import signal
import stat
import subprocess
import sys
import threading
import time

import kda_check
import numpy as np
import pytest
from kda_check import Fixture, _program, convert
from kda_check._files import replacing
from kda_check._names import printable


def refusal(*words):
    """What the program says of its last word."""
    return subprocess.run([_program.find(), *words], capture_output=True, text=True).stderr.strip().removeprefix("kda-check: error: ")


def inputs_of(problem):
    return {key: problem[key] for key in ("q", "k", "v", "g", "beta")}


def by_recording(path, problem):
    fixture = Fixture.of(**inputs_of(problem), name=path.stem)
    recorder = kda_check.recorder.Recorder(judged=False, save=path.parent)
    call = kda_check.Call("kernel", "", fixture)
    with recorder.noting(call):
        recorder.complete(call, {"o": problem["o"]})
    if call.error:
        raise kda_check.EnvironmentProblem(call.error.partition(": ")[2])
    assert call.path == str(path)


def by_convert(path, problem):
    np.savez(path.parent / "source.npz", **inputs_of(problem))
    try:
        convert.convert(str(path.parent / "source.npz"), str(path))
    finally:
        os.remove(path.parent / "source.npz")


WRITERS = {
    "save": lambda path, problem: kda_check.save(path, **inputs_of(problem)),
    "check": lambda path, problem: kda_check.check(**problem, save=path),
    "convert": by_convert,
    "recording": by_recording,
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_what_is_no_regular_file_is_refused_in_the_words_of_the_program(problem, tmp_path, write):
    path = tmp_path / "a.h5"
    makers = {stat.S_ISFIFO: os.mkfifo, stat.S_ISDIR: os.mkdir}
    if os.geteuid() == 0:
        makers[stat.S_ISCHR] = lambda path: os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))
    for is_kind, make in makers.items():
        make(path)
        with pytest.raises(kda_check.EnvironmentProblem) as refused:
            write(path, problem)
        assert str(refused.value) == refusal("make", "control:T=8", "-o", str(path)) and "cannot write" in str(refused.value)
        assert is_kind(os.stat(path).st_mode) and os.listdir(tmp_path) == ["a.h5"]
        os.rmdir(path) if is_kind is stat.S_ISDIR else os.remove(path)


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_a_file_keeps_its_links_its_mode_and_its_owner(problem, tmp_path, write):
    folder, elsewhere = tmp_path / "folder", tmp_path / "elsewhere.h5"
    folder.mkdir()
    link = folder / "a.h5"
    link.symlink_to("../elsewhere.h5")
    write(link, problem)  # to nothing
    owner = (1234, 1235) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
    elsewhere.write_bytes(b"old")
    elsewhere.chmod(0o604)
    os.chown(elsewhere, *owner)
    write(link, problem)
    status = os.stat(elsewhere)
    assert link.is_symlink() and Fixture.read(elsewhere).inputs.keys() == inputs_of(problem).keys()
    assert (stat.S_IMODE(status.st_mode), (status.st_uid, status.st_gid)) == (0o604, owner)
    assert os.listdir(folder) == ["a.h5"] and sorted(os.listdir(tmp_path)) == ["elsewhere.h5", "folder"]


def test_a_path_that_cannot_be_written_is_one_exception_in_the_words_of_the_program(problem, tmp_path):
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    (tmp_path / "file").write_text("old")
    for path in ("nowhere/a.h5", "one", "file/a.h5", "nowhere/", ""):
        path = path and f"{tmp_path}/{path}"
        said = refusal("make", "control:T=8", "-o", path) if path else "cannot write: No such file or directory ()"
        for write in (WRITERS["save"], lambda path, problem: kda_check.Report([], "").to_json(path)):
            with pytest.raises(kda_check.EnvironmentProblem) as refused:
                write(path, problem)
            assert str(refused.value) == said
    assert sorted(os.listdir(tmp_path)) == ["file", "one", "two"]


def test_a_file_that_another_process_wrote_meanwhile_is_not_replaced(tmp_path):
    path = tmp_path / "a.h5"
    for is_report in (False, True):
        path.write_bytes(b"old")
        try:
            with replacing(path, is_report) as descriptor:
                os.write(descriptor, b"mine")
                path.write_bytes(b"theirs")
        except kda_check.EnvironmentProblem as refused:
            assert str(refused) == f"was written by another process meanwhile ({path}); hint: run again"
        assert path.read_bytes() == (b"mine" if is_report else b"theirs") and os.listdir(tmp_path) == ["a.h5"]


def test_a_report_goes_to_a_pipe_as_it_is(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    read = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_text()))
    reader.start()
    report = kda_check.Report([{"long": "x" * 200000}], "")
    report.to_json(tmp_path / "pipe")
    reader.join()
    assert read == [report.to_json() + "\n"] and stat.S_ISFIFO(os.stat(tmp_path / "pipe").st_mode)


def test_a_report_to_dev_stdout_comes_after_what_is_there(tmp_path):
    code = "import kda_check; print('first'); kda_check.Report([{}], '').to_json('/dev/stdout'); print('third')"
    with open(tmp_path / "out", "w") as out:
        out.write("before\n")
        out.flush()
        subprocess.run([sys.executable, "-c", code], stdout=out, check=True)
    assert (tmp_path / "out").read_text() == "before\nfirst\n{}\nthird\n"


@pytest.mark.parametrize("name", ["nowhere.h5", "\x1b[31m\n::error::\u202e\xad.h5", "\udcff##[x.h5"])
def test_a_file_that_is_not_there_is_one_clear_line_in_the_words_of_the_program(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kda_check.InputError) as refused:
        Fixture.read(name)
    assert str(refused.value) == refusal("show", name)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_regular_file_is_not_read(make, tmp_path):
    make(tmp_path / "a")
    for read in (Fixture.read, convert.listing):
        with pytest.raises(kda_check.InputError, match=r"no file that ends|not a regular file|Is a directory"):
            read(str(tmp_path / "a"))


def test_a_signal_leaves_nothing_behind(problem, tmp_path):
    np.savez(tmp_path / "source.npz", **inputs_of(problem))
    target = tmp_path / "target"
    target.mkdir()
    folder = os.open(target, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)  # it waits for its turn to put the file in place
    words = [sys.executable, "-m", "kda_check", "convert", str(tmp_path / "source.npz"), str(target / "a.h5")]
    converting = subprocess.Popen(words, stderr=subprocess.PIPE)
    while not os.listdir(target) and converting.poll() is None:
        time.sleep(0.01)
    converting.terminate()
    said = converting.communicate()[1]
    os.close(folder)
    assert (said, converting.returncode, os.listdir(target)) == (b"", -signal.SIGTERM, [])


def test_text_from_outside_is_shown_as_the_program_shows_it():
    assert printable("plain text, déjà vu, 漢字, 🙂") == "plain text, déjà vu, 漢字, 🙂"
    assert printable("\x1b[2J\n\t\x7f\x9b31m") == r"\x1b[2J\x0a\x09\x7f\xc2\x9b31m"
    assert printable("a\u202eb\u2028c\ufeffd\U000e0041\uffff\ud800\udcff") == r"a\u202eb\u2028c\ufeffd\ue0041\uffff\ud800\xff"
    assert printable("  \u00a0\u3000::x") == "  \u00a0\u3000\\x3a:x"
    assert printable("##[add-mask]x ##[y") == r"\x23#[add-mask]x \x23#[y"
    assert printable("a::b :c ## [d] #[") == "a::b :c ## [d] #["
    for text in ("::x", "###[x", ":::x", "##[##[", "".join(map(chr, range(0x3100)))):
        assert printable(printable(text)) == printable(text)


def test_a_name_in_a_file_that_a_kernel_has_no_word_for_is_shown_as_text(problem, tmp_path):
    fixture = Fixture.of(**inputs_of(problem))
    fixture.options["\x1b[31m\n::error::"] = 1
    fixture.write(tmp_path / "a.h5")
    with pytest.raises(kda_check.Unsupported) as refused:
        kda_check.verify(lambda q, k, v, g, beta, scale: v, str(tmp_path / "a.h5"), framework="numpy")
    assert str(refused.value) == r"the kernel takes no \x1b[31m\x0a::error::"
