#!/usr/bin/env python3
"""terminal.py PROGRAM: what is for people at a terminal - colours, and a line that tells how far a run is - comes there
and nowhere else. Terminals here are pseudo-terminals."""
import os
import pty
import re
import shlex
import subprocess
import sys
import tempfile
import unittest
from concurrent.futures import ThreadPoolExecutor

program = sys.argv[1]
run = ["run", "tails:T=17", "--variant", "recurrent,chunk"]


def all_shown(terminal, end):
    """What was written to a terminal before `end`."""
    shown = b""
    while not shown.endswith(end):
        shown += os.read(terminal, 65536)
    return shown[: -len(end)].decode()


def at_terminal(words, streams=("stdout", "stderr"), **environment):
    """What a run that succeeds writes to a terminal and to pipes, with the named streams at the terminal."""
    ours, theirs = pty.openpty()
    names = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    names.update({"TERM": "xterm"}, **environment)
    where = {name: theirs if name in streams else subprocess.PIPE for name in ("stdout", "stderr")}
    # A terminal that its last writer closes may lose what nobody has read yet, so it stays open, and a last word of ours
    # comes after all of the program's.
    end = b"end of what is shown"
    with ThreadPoolExecutor() as reader:
        shown = reader.submit(all_shown, ours, end)
        try:
            process = subprocess.run([program, *words], env=names, stdin=subprocess.DEVNULL, **where)
        finally:
            os.write(theirs, end)
        text, piped = shown.result(), b"".join(stream for stream in (process.stdout, process.stderr) if stream)
    os.close(theirs)
    os.close(ours)
    assert process.returncode == 0, (process.returncode, text, piped)
    return text, piped.decode()


class Terminal(unittest.TestCase):
    def test_colours_at_a_terminal_unless_told_otherwise(self):
        green = "\x1b[32m"
        self.assertIn(green, at_terminal(run)[0])
        self.assertNotIn(green, at_terminal(run, NO_COLOR="1")[0])
        self.assertIn(green, at_terminal(run, NO_COLOR="")[0])  # empty is as good as not set (no-color.org)
        self.assertNotIn(green, at_terminal(run, TERM="dumb")[0])
        self.assertNotIn(green, at_terminal([*run, "--color", "never"])[0])
        self.assertIn(green, at_terminal([*run, "--color", "always"], NO_COLOR="1")[0])
        # Standard error at a terminal does not colour a report in a pipe.
        self.assertNotIn("\x1b", at_terminal(run, streams=("stderr",))[1])

    def test_progress_at_a_terminal_only(self):
        told = "tails:T=17: recurrent fp32"
        shown, piped = at_terminal(run, streams=("stderr",))
        self.assertIn(told, shown)
        self.assertTrue(shown.endswith("\r\x1b[K"), shown)  # and nothing of it is left
        self.assertNotIn(told, piped)
        shown, piped = at_terminal(run, streams=("stdout",))
        self.assertNotIn(told, shown + piped)
        self.assertNotIn("\r\x1b[K", shown)

    def test_one_large_case_tells_its_share_in_one_line(self):
        shown, _ = at_terminal(["run", "control:T=2000,H=2,K=64,V=64", "--variant", "chunk", "--threads", "1"], streams=("stderr",))
        lines = [line for line in shown.split("\r\x1b[K") if line]
        shares = [int(share) for line in lines for share in re.findall(r"^0/1  (\d+) %  ", line)]
        self.assertEqual(shares, sorted(shares))
        self.assertTrue(any(0 < share < 100 for share in shares), lines)
        self.assertTrue(all(len(line) < 80 and "\n" not in line for line in lines), lines)

    def test_who_starts_the_program_is_told_through_a_pipe_and_nobody_else(self):
        ours, theirs = os.pipe()
        child = "echo \"told to ${KDA_CHECK_PROGRESS-nobody}\"; exit 77"
        done = subprocess.run(
            [program, *run, "--external", f"sh -c {shlex.quote(child)} {{in}} {{out}}"],
            env={**os.environ, "KDA_CHECK_PROGRESS": str(theirs)}, pass_fds=[theirs], stdin=subprocess.DEVNULL, capture_output=True,
        )  # fmt: skip
        os.close(theirs)
        with os.fdopen(ours) as file:
            lines = file.read().splitlines()
        self.assertEqual(done.returncode, 1, done)  # it answered nothing
        self.assertRegex(lines[-1], r"^1\.0000 tails:T=17: ")
        self.assertTrue(all(0 <= float(line.split(" ")[0]) <= 1 for line in lines), lines)
        self.assertIn(b"told to nobody", done.stdout)

    def test_what_is_no_pipe_is_left_alone(self):
        with tempfile.TemporaryFile() as file:
            words = {**os.environ, "KDA_CHECK_PROGRESS": str(file.fileno())}
            done = subprocess.run([program, *run], env=words, pass_fds=[file.fileno()], capture_output=True)
            self.assertEqual((done.returncode, file.read()), (0, b""))

    def test_a_file_gets_no_colours(self):
        path = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"kda-check-terminal-{os.getpid()}")
        at_terminal([*run, "--report", f"text={path}"])
        with open(path, encoding="utf-8") as file:
            text = file.read()
        os.remove(path)
        self.assertIn("PASS", text)
        self.assertNotIn("\x1b", text)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
