#!/usr/bin/env python3
"""signals.py PROGRAM: ends `run @smoke` with SIGTERM at random moments. Whatever was finished is in every report, every report
is complete and says that it is not the whole, none can be read as a pass, and the process ends by the signal.
KDA_CHECK_SIGNALS=30 in the environment: so many moments in place of 3, from another seed each time."""
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import xml.etree.ElementTree as xml

program = sys.argv[1]
times = int(os.environ.get("KDA_CHECK_SIGNALS", "3"))
seed = random.randrange(10**6) if "KDA_CHECK_SIGNALS" in os.environ else 11
files = {"json": "out.json", "junit": "out.xml", "html": "out.html", "github": "out.txt", "summary": "out.md"}
baseline = "baseline.tsv"  # which only a whole run writes
begun = ".tmp"  # what a report is written under until it is whole


class Signals(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="kda-check-signals-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def path(self, format_):
        return os.path.join(self.folder, files[format_])

    def text(self, format_):
        with open(self.path(format_), encoding="utf-8") as file:
            return file.read()

    def words(self):
        return [program, "run", "@smoke", "--variant", "recurrent,chunk", "-v", "--baseline", os.path.join(self.folder, baseline), "--update-baseline",
                *(word for name in files for word in ("--report", f"{name}={self.path(name)}"))]

    def start(self):
        for name in os.listdir(self.folder):
            os.remove(os.path.join(self.folder, name))
        self.out = tempfile.TemporaryFile("w+", encoding="utf-8")  # a pipe that nobody reads would hold it up
        self.addCleanup(self.out.close)
        return subprocess.Popen(self.words(), stdout=self.out, stderr=subprocess.DEVNULL)

    def begin(self):
        """A run that has opened all its reports."""
        process = self.start()
        while sum(name.endswith(begun) for name in os.listdir(self.folder)) <= len(files):
            self.assertIsNone(process.poll(), "it ended without opening its reports")
            time.sleep(0.001)
        return process

    def check_reports(self, process, whole):
        self.out.seek(0)
        out = self.out.read()
        self.assertEqual(process.returncode, -signal.SIGTERM)
        self.assertEqual(sorted(os.listdir(self.folder)), sorted(files.values()))
        document = json.loads(self.text("json"))
        self.assertEqual(document["summary"]["outcome"], "interrupted")
        self.assertEqual(document["summary"]["exit_code"], 128 + signal.SIGTERM)
        self.assertEqual(document["interrupted"], {"signal": signal.SIGTERM})
        self.assertLess(len(document["cases"]), len(whole["cases"]))
        # What is there is what a whole run says, in the same order.
        known = {case["number"]: case for case in whole["cases"]}
        numbers = [case["number"] for case in document["cases"]]
        self.assertEqual(numbers, sorted(set(numbers)))
        for case in document["cases"]:
            self.assertEqual(case, known[case["number"]])

        suites = xml.fromstring(self.text("junit"))
        self.assertGreater(int(suites.get("failures")), 0)
        messages = [failure.get("message") for failure in suites.iter("failure")]
        self.assertTrue(any("interrupted" in message for message in messages), messages)
        page = self.text("html")
        xml.fromstring(page)  # complete: every element is closed
        self.assertTrue(page.rstrip().endswith("</html>"))
        for format_, text in ("html", page), ("summary", self.text("summary")), ("text", out):
            self.assertIn("INTERRUPTED", text.upper(), format_)
        self.assertIn("INTERRUPTED", self.text("summary").splitlines()[0])
        self.assertTrue(out.splitlines()[-1].startswith("INTERRUPTED: "), out[-300:])
        self.assertTrue(self.text("github").startswith("::error"))
        return len(document["cases"])

    def test_terminated_at_random_moments(self):
        print(f"{times} moments, seed {seed}", file=sys.stderr)
        draw = random.Random(seed)
        process = self.begin()
        start = time.monotonic()
        process.wait()
        seconds = time.monotonic() - start
        self.assertEqual(process.returncode, 0)
        whole = json.loads(self.text("json"))
        self.assertEqual(whole["summary"]["outcome"], "pass")

        finished, strikes = [], 0
        for _ in range(4 * times):
            process = self.begin()
            start = time.monotonic()
            time.sleep(draw.uniform(0, 0.9) * seconds)
            process.terminate()
            process.wait()
            if process.returncode == 0:  # too late: runs are shorter than was thought
                self.assertEqual(json.loads(self.text("json"))["cases"], whole["cases"])
                seconds = min(seconds, time.monotonic() - start)
                continue
            finished.append(self.check_reports(process, whole))
            merged = subprocess.run([program, "merge", self.path("json")], capture_output=True, check=False)
            self.assertNotEqual(merged.returncode, 0)
            strikes += 1
            if strikes == times:
                break
        self.assertEqual(strikes, times)
        print(f"cases finished, of {len(whole['cases'])}: {finished}", file=sys.stderr)
        self.assertGreater(max(finished), 0)  # else nothing of this was about a report with rows

    def test_terminated_before_it_began(self):
        """While the run is planned there is nothing to report: no report, and nothing half written."""
        for milliseconds in (0, 5, 20, 60):
            process = self.start()
            time.sleep(milliseconds / 1000)
            process.terminate()
            process.wait()
            self.assertEqual(process.returncode, -signal.SIGTERM)
            left = sorted(os.listdir(self.folder))
            self.assertIn(left, ([], sorted(files.values())))
            if left:
                self.assertEqual(json.loads(self.text("json"))["summary"]["outcome"], "interrupted")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
