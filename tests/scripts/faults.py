#!/usr/bin/env python3
"""faults.py PROGRAM: what becomes of files when something goes wrong. PROGRAM is killed at random moments, meets disks
that are full and places it may not write, and its fixtures are replaced and cut while it reads them. Whatever
happens, a file that was good is the old one or a complete new one, the exit code is that of the documents, and one
line says why. What this machine does not permit - mounting, another user - is skipped with a line that says so."""
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import xml.etree.ElementTree as xml

program = sys.argv[1]
variants = ["--variant", "recurrent,chunk"]  # the same figures on a machine with a GPU
formats = {"json": "out.json", "junit": "out.xml", "html": "out.html", "summary": "out.md", "github": "out.txt"}


def reports(folder):
    return [word for name, file in formats.items() for word in ("--report", f"{name}={folder}/{file}")]


def judged(folder):
    return ["run", "tails:T=17", "tails:T=40", *variants, "--baseline", f"{folder}/baseline.tsv"]


def gate(folder):
    """A run with every kind of output."""
    return [*judged(folder), "--update-baseline", *reports(folder)]


def kda_check(*words, using=program, **how):
    return subprocess.run([using, *words], capture_output=True, text=True, timeout=120, **how)


def contents(folder):
    """Name to bytes of every file that is not called temporary."""
    files = {}
    for name in sorted(os.listdir(folder)):
        if not name.endswith(".tmp"):
            with open(os.path.join(folder, name), "rb") as file:
                files[name] = file.read()
    return files


def put(folder, files):
    shutil.rmtree(folder, ignore_errors=True)
    os.mkdir(folder)
    for name, data in files.items():
        with open(os.path.join(folder, name), "wb") as file:
            file.write(data)


def loose(baseline):
    """Every value of a baseline a hundred times as large: an update has something to lower."""
    lines = [line.split("\t") for line in baseline.decode().splitlines()]
    for line in lines[1:]:
        line[6] = repr(100 * float(line[6]))
    return "".join("\t".join(line) + "\n" for line in lines).encode()


class Faults(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp(prefix="kda-check-faults-")
        self.addCleanup(shutil.rmtree, self.root, ignore_errors=True)
        os.chmod(self.root, 0o755)
        self.folder = os.path.join(self.root, "work")

    def complain(self, done, code, words=""):
        """One line of an error beside what a run tells about its baseline."""
        lines = [line for line in done.stderr.splitlines() if not line.startswith("kda-check: baseline:")]
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertEqual(len(lines), 1, done.stderr)
        self.assertIn("kda-check: error: ", lines[0])
        self.assertIn(words, lines[0])

    def generations(self, words):
        """Good files of before, by a run with other words, and those that `words` makes of them."""
        os.mkdir(self.folder)
        self.assertEqual(kda_check(*judged(self.folder), "--update-baseline").returncode, 0)
        self.assertEqual(kda_check("run", "tails:T=16", *variants, *reports(self.folder)).returncode, 0)
        old = contents(self.folder)
        old["baseline.tsv"] = loose(old["baseline.tsv"])
        put(self.folder, old)
        self.assertEqual(kda_check(*words).returncode, 0)
        new = contents(self.folder)
        self.assertEqual(set(new), set(old))
        for files in (old, new):
            put(self.folder, files)
            json.loads(files["out.json"])
            for name in ("out.xml", "out.html"):
                xml.fromstring(files[name])
            self.assertEqual(kda_check(*judged(self.folder)).returncode, 0)
        for name in old:
            self.assertNotEqual(old[name], new[name], name)
        return old, new

    # -- killed ------------------------------------------------------------------------------------------------------

    def killed(self, words, files, times):
        """Yields after each of so many kills of `words`, all in the time that a run takes; `files` are there before each.
        Standard output is read to its end: by then nobody writes any more."""
        draw, strikes = random.Random(5), 0
        start = time.monotonic()
        kda_check(*words)
        seconds = time.monotonic() - start
        for _ in range(4 * times):
            put(self.folder, files)
            start = time.monotonic()
            with subprocess.Popen([program, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
                # Files are written in the last part of a run.
                moment = seconds * draw.choice((draw.uniform(0, 1), draw.uniform(0.7, 1)))
                try:
                    process.communicate(timeout=moment)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.communicate()
                finished = time.monotonic()
            if process.returncode == -signal.SIGKILL:
                strikes += 1
                yield
                if strikes == times:
                    return
            else:  # too late: runs are shorter than was thought
                self.assertEqual(process.returncode, 0)
                seconds = min(seconds, finished - start)
        self.fail(f"{strikes} strikes only")

    def test_killed_at_random_moments(self):
        words = gate(self.folder)
        old, new = self.generations(words)
        outcomes, stray = [], 0
        for _ in self.killed(words, old, 50):
            now = contents(self.folder)
            self.assertEqual(set(now), set(old))
            for name, data in now.items():
                self.assertTrue(data in (old[name], new[name]), f"{name} is neither old nor new")
            outcomes.append(sum(now[name] == new[name] for name in now))
            stray += any(name.endswith(".tmp") for name in os.listdir(self.folder))
        # It would show nothing if no kill had struck while files were there to be spoilt.
        self.assertGreater(stray, 10)
        self.assertGreater(outcomes.count(0), 10)

    def test_a_killed_capture_leaves_the_fixture(self):
        os.mkdir(self.folder)
        fixture = os.path.join(self.folder, "mine.h5")
        words = ["capture", fixture, "--variant", "chunk", "--in-place"]
        self.assertEqual(kda_check("make", "control:T=256", "-o", fixture).returncode, 0)
        old = contents(self.folder)
        stray = 0
        for _ in self.killed(words, old, 20):
            whole = contents(self.folder)["mine.h5"] == old["mine.h5"]
            if not whole:
                shown = kda_check("show", fixture)
                self.assertEqual(shown.returncode, 0, shown.stderr)
                self.assertIn("expected/chunk@cpu", shown.stdout)
            if any(name.endswith(".tmp") for name in os.listdir(self.folder)):
                stray += 1
                # What a killed program leaves is not taken for a fixture.
                run = kda_check("run", self.folder, "--variant", "recurrent", "--against", "oracle", "-q")
                self.assertTrue(run.stdout.startswith("PASS: 1 fixture,"), run.stdout)
        self.assertGreater(stray, 0)

    # -- a disk that is full -----------------------------------------------------------------------------------------

    def outputs(self, fixture=None):
        """Commands, each with the one file it is to write; with another `fixture` no file is to be read."""
        regime, fixture, folder = fixture, fixture or f"{self.root}/fixture.h5", self.folder
        run = ["run", fixture, *variants]
        commands = [([*run, "--report", f"{name}={folder}/out"], "out") for name in formats]
        commands += [
            ([*run, "--report", f"text={folder}/out"], "out"),
            ([*run, "--json", f"{folder}/out"], "out"),
            ([*run, "--baseline", f"{folder}/baseline.tsv", "--update-baseline"], "baseline.tsv"),
            (["make", "corr_keys", "-o", f"{folder}/mine.h5"], "mine.h5"),
            (["capture", fixture, "--variant", "chunk", "--replace", "-o", f"{folder}/mine.h5"], "mine.h5"),
            (["explain", fixture, "--only", "overflow", "--report", f"html={folder}/out"], "out"),
            (["explain", fixture, "--only", "growth", "--variant", "recurrent", "--json", f"{folder}/out"], "out")]
        return commands if regime else commands + [
            (["capture", f"{folder}/mine.h5", "--variant", "chunk", "--in-place", "--replace"], "mine.h5"),
            (["diff", f"{fixture}:chunk@cpu", f"{fixture}:recurrent@cpu", "--tensor", "o", "--limit", "rms_ratio=1", "--report",
              f"html={folder}/out"], "out")]

    def good_files(self):
        """A good file for each output, in self.folder, which is there."""
        fixture = f"{self.root}/fixture.h5"
        self.assertEqual(kda_check("make", "tails:T=70", "-o", fixture).returncode, 0)
        shutil.copy(fixture, f"{self.folder}/mine.h5")
        self.assertEqual(kda_check("capture", fixture, "--variant", "recurrent,chunk", "--in-place").returncode, 0)
        self.assertEqual(kda_check("run", fixture, *variants, "--baseline", f"{self.folder}/baseline.tsv",
                                   "--update-baseline", "--json", f"{self.folder}/out").returncode, 0)
        with open(f"{self.folder}/baseline.tsv", "rb") as file:
            baseline = loose(file.read())
        with open(f"{self.folder}/baseline.tsv", "wb") as file:
            file.write(baseline)

    def check_outputs_fail(self, fixture=None, **how):
        before = contents(self.folder)
        for words, file in self.outputs(fixture):
            with self.subTest(" ".join(words)):
                self.complain(kda_check(*words, **how), 4, file)
                self.assertTrue(contents(self.folder) == before, "a good file was touched")
                self.assertEqual(sorted(os.listdir(self.folder)), sorted(before))

    def test_a_limit_on_the_size_of_files(self):
        os.mkdir(self.folder)
        self.good_files()

        def little():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (40, 40))
        # Tensors of a file pass through memory that counts as a file; those of a regime do not.
        self.check_outputs_fail("tails:T=70", preexec_fn=little)

    def test_a_full_disk(self):
        os.mkdir(self.folder)
        self.mount("size=4m")
        self.good_files()
        filler = os.open(f"{self.folder}/filler", os.O_WRONLY | os.O_CREAT)
        try:
            while True:
                os.write(filler, b"x" * 4096)
        except OSError:
            os.close(filler)
        self.check_outputs_fail()
        # As soon as there is room, all is written.
        os.remove(f"{self.folder}/filler")
        for words, _ in self.outputs():
            self.assertEqual(kda_check(*words).returncode, 0, words)

    def test_standard_output_that_is_full(self):
        if not os.path.exists("/dev/full"):
            self.skipTest("no /dev/full here")
        fixture = f"{self.root}/fixture.h5"
        kda_check("make", "tails:T=20", "-o", fixture)
        for words in (["completions", "bash"], ["completions", "zsh"], ["completions", "fish"], ["man"], ["--help"],
                      ["--version"], ["run", "--help"], ["list"], ["show", fixture],
                      ["run", fixture, *variants], ["run", fixture, *variants, "--report", "html"],
                      ["explain", fixture, "--only", "growth", "--variant", "recurrent"],
                      ["explain", fixture, "--only", "overflow"], ["explain", fixture, "--only", "overflow", "--json"],
                      ["power", fixture],
                      ["bench", "-T", "64", "--repeats", "1", "--variant", "recurrent"]):
            with self.subTest(" ".join(words)), open("/dev/full", "wb") as full:
                done = subprocess.run([program, *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
                self.complain(done, 4, "standard output")

    # -- places that may not be written ------------------------------------------------------------------------------

    def mount(self, options):
        """A small disk at self.folder, for this process and its children; unshare made that possible, or not."""
        if "KDA_CHECK_FAULTS_MAY_MOUNT" not in os.environ:
            self.skipTest("disks cannot be mounted here")
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", self.folder], check=True)
        self.addCleanup(subprocess.run, ["umount", "-l", self.folder])

    def test_a_disk_that_may_only_be_read(self):
        os.mkdir(self.folder)
        self.mount("size=8m")
        self.good_files()
        subprocess.run(["mount", "-o", "remount,ro", self.folder], check=True)
        self.check_outputs_fail()

    def test_files_and_folders_of_another_user(self):
        who = {}
        if os.geteuid() == 0:  # whom no permission binds
            who = {"user": 65534, "group": 65534, "extra_groups": []}
        copy = os.path.join(self.root, "kda-check")
        shutil.copy(program, copy)
        os.chmod(copy, 0o755)
        os.mkdir(self.folder)
        self.good_files()
        try:
            if subprocess.run([copy, "--version"], capture_output=True, **who).returncode != 0:
                self.skipTest("no other user can run the program here")
        except (OSError, subprocess.SubprocessError) as reason:
            self.skipTest(f"no other user here: {reason}")
        for mode in (0o555, 0o755):  # of the folder
            os.chmod(self.folder, mode)
            for name in os.listdir(self.folder):
                os.chmod(os.path.join(self.folder, name), 0o444)
            self.check_outputs_fail(using=copy, **who)

    # -- a fixture that changes while it is read ---------------------------------------------------------------------

    def meanwhile(self, change, codes):
        """Runs a suite of many lines about one fixture while change() is called again and again."""
        os.mkdir(self.folder)
        fixture, suite = f"{self.folder}/mine.h5", f"{self.folder}/mine.txt"
        for seed in (1, 2):
            made = f"{self.root}/{seed}.h5"
            self.assertEqual(kda_check("make", f"tails:T={60 + seed},seed={seed}", "-o", made).returncode, 0)
            self.assertEqual(kda_check("capture", made, "--variant", "recurrent", "--in-place").returncode, 0)
        shutil.copy(f"{self.root}/1.h5", fixture)
        with open(suite, "w", encoding="ascii") as file:
            file.write("mine.h5 --variant recurrent,chunk\n" * 25)
        runs, stop = [], threading.Event()

        def keep_changing():
            turn = 0
            while not stop.is_set():
                turn += 1
                change(fixture, turn)
                time.sleep(0.002)
        changing = threading.Thread(target=keep_changing)
        changing.start()
        try:
            for _ in range(3):
                done = kda_check("run", f"@{suite}", "--json", f"{self.folder}/out.json", "--report",
                                 f"junit={self.folder}/out.xml")
                self.assertIn(done.returncode, codes, done.stderr)
                with open(f"{self.folder}/out.json", encoding="utf-8") as file:
                    document = json.load(file)
                xml.parse(f"{self.folder}/out.xml")
                self.assertEqual(document["summary"]["exit_code"], done.returncode)
                errors = document["errors"]
                self.assertEqual(len([line for line in done.stderr.splitlines() if "error:" in line]), len(errors))
                self.assertLessEqual({0, *(error["exit_code"] for error in errors)}, set(codes))
                self.assertEqual(done.returncode != 0, bool(errors))
                self.assertEqual({item["verdict"] for item in document["cases"]} - {"pass"}, set())
                # A run is of one file, as it was when the run was planned: not a line of it is about another.
                self.assertLessEqual(len({item["fixture"] for item in document["cases"]}), 1)
                runs.append(done)
        finally:
            stop.set()
            changing.join()
        return runs

    def test_a_fixture_that_is_replaced(self):
        def replace(fixture, turn):
            shutil.copy(f"{self.root}/{1 + turn % 2}.h5", fixture + ".new")
            os.rename(fixture + ".new", fixture)
        for done in self.meanwhile(replace, (0, 4)):
            if done.returncode == 4:
                self.assertIn("was written by another process meanwhile", done.stderr)

    def test_a_fixture_that_is_cut(self):
        sizes = [0, 100, 2000, 20000]

        def cut(fixture, turn):
            shutil.copy(f"{self.root}/1.h5", fixture + ".new")
            os.rename(fixture + ".new", fixture)
            if turn % 4 == 0:
                os.truncate(fixture, sizes[turn // 4 % len(sizes)])
        self.meanwhile(cut, (0, 3, 4))


def in_own_mounts():
    """Begins again where disks can be mounted that nobody else sees and that go when this process does."""
    if os.geteuid() != 0 or not shutil.which("unshare"):
        return
    mounting = ["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", tempfile.gettempdir()]
    if subprocess.run(mounting, capture_output=True, check=False).returncode == 0:
        os.environ["KDA_CHECK_FAULTS_MAY_MOUNT"] = "1"
        os.execvp("unshare", ["unshare", "-m", sys.executable, *sys.argv])


if __name__ == "__main__":
    if "KDA_CHECK_FAULTS_MAY_MOUNT" not in os.environ:
        in_own_mounts()
    unittest.main(argv=sys.argv[:1], verbosity=2)
