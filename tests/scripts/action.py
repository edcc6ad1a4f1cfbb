#!/usr/bin/env python3
"""action.py PROGRAM SOURCE: the workflows of docs/ci.md and the action of action.yml, which they use. Their `run:` steps
run in bash as a runner of GitHub has it, one after the other, with the answers of a kernel that is right, wrong or silent. Actions of
others are not run; where kda_check is installed, PROGRAM and the package of SOURCE lie on the path, and what pip was asked for is looked
at. Exits with 77 where numpy or PyYAML is missing."""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

program, source = map(os.path.abspath, sys.argv[1:3])
try:
    import numpy  # noqa: F401
    import yaml
except ImportError as missing:
    print(f"SKIPPED: {missing}")
    sys.exit(77)
sys.path.insert(0, os.path.join(source, "python"))
import kda_check  # noqa: E402

# What the page says of its own; others only come before, between and behind our steps.
OTHERS = {"actions/checkout@v4", "actions/setup-python@v5", "actions/cache/restore@v4", "actions/cache/save@v4",
          "actions/upload-artifact@v4", "actions/download-artifact@v4"}
OURS = re.compile(r"owner/kda-check@[0-9a-f]{40}")
# `pip install` notes its words; all else is the Python of this test.
PYTHON = """#!/bin/sh
if [ "$1 $2" = "-m pip" ]; then shift 2; fi
if [ "$1" = install ]; then printf '%s\\n' "$*" >>"$ASKED"; else exec "{python}" "$@"; fi
"""
KERNEL = """import numpy as np
def run(inputs, options):
    given = [inputs[name] for name in ("q", "k", "v", "g", "beta")]  # numpy takes no bfloat16 of torch
    q, k, v, g, beta = (x.astype(np.float32) if isinstance(x, np.ndarray) else x.float().numpy() for x in given)
    o, state = np.zeros_like(v), np.zeros((1, q.shape[2], q.shape[3], v.shape[3]), np.float32)
    for t in range(q.shape[1]):
        state = state * np.exp(g[:, t])[..., None]
        error = v[:, t] - np.einsum("bhkv,bhk->bhv", state, k[:, t])
        state = state + np.einsum("bhk,bhv->bhkv", k[:, t] * beta[:, t][..., None], error)
        o[:, t] = errors[0] * options["scale"] * np.einsum("bhkv,bhk->bhv", state, q[:, t])
    kind, state = inputs["v"].dtype, errors[1] * state
    return (o.astype(kind), state) if isinstance(inputs["v"], np.ndarray) else (torch_of(o).to(kind), torch_of(state))
def torch_of(array):
    import torch
    return torch.from_numpy(array)
"""


def blocks(kind):
    with open(os.path.join(source, "docs", "ci.md"), encoding="utf-8") as page:
        return [text for word, text in re.findall(r"^```(\w*)\n(.*?)^```$", page.read(), re.M | re.S) if word == kind]


def parsed(text):
    return yaml.load(text, yaml.BaseLoader)  # all of it text, as in an expression of GitHub


with open(os.path.join(source, "action.yml"), encoding="utf-8") as file:
    ACTION = parsed(file)
WORKFLOW, ON_TWO_MACHINES = map(parsed, blocks("yaml"))


class Runner:
    """The machine of a job: what it ran, what that printed, whether something failed."""

    def __init__(self, folder, **cached):
        self.folder, self.cached, self.has_failed = folder, cached, False
        self.ran, self.printed, self.kept = [], "", {}
        for name in ("work", "temp", "home", "bin"):
            os.makedirs(os.path.join(folder, name), exist_ok=True)
        at = lambda *names: os.path.join(folder, *names)
        for name in ("python3", "pip"):
            with open(at("bin", name), "w") as script:
                script.write(PYTHON.format(python=sys.executable))
            os.chmod(at("bin", name), 0o755)
        if not os.path.exists(at("bin", "kda-check")):
            os.symlink(program, at("bin", "kda-check"))
        self.environment = {**os.environ, "PATH": at("bin") + os.pathsep + os.environ["PATH"], "HOME": at("home"), "ASKED": at("asked"),
                            "PYTHONPATH": os.path.join(source, "python"), "KDA_CHECK_PROGRAM": program, "RUNNER_TEMP": at("temp"),
                            "RUNNER_OS": "Linux", "RUNNER_ARCH": "X64", "GITHUB_STEP_SUMMARY": at("summary"),
                            "GITHUB_OUTPUT": at("output"), "GITHUB_ACTION_PATH": at("action")}  # fmt: skip

    def asked(self):
        with open(self.environment["ASKED"]) as file:
            return file.read().splitlines()

    def job(self, workflow, name):
        env = workflow.get("env", {})
        for step in workflow["jobs"][name]["steps"]:
            self.step(step, {"env": env}, env)
        return self

    def step(self, step, known, env):
        if not self.is_due(step.get("if", "success()"), known):
            return
        said = {key: self.filled(x, known) for key, x in {**env, **step.get("env", {})}.items()}
        given = {key: self.filled(x, known) for key, x in step.get("with", {}).items()}
        if "run" in step:
            self.bash(step, self.filled(step["run"], known), said, known)
        elif OURS.fullmatch(step["uses"]):
            self.action(given)
        else:
            assert step["uses"] in OTHERS, step["uses"]
            self.ran.append(step["uses"])
            if step["uses"] == "actions/upload-artifact@v4":
                self.kept[given["name"]] = given["path"]
            if "id" in step:
                known["steps"][step["id"]] = {"outputs": self.cached}

    def action(self, given):
        inputs = {name: given.pop(name) if name in given else about.get("default") for name, about in ACTION["inputs"].items()}
        assert not given and None not in inputs.values(), (given, inputs)
        known = {"inputs": inputs, "steps": {}, "runner": {"temp": self.environment["RUNNER_TEMP"]}}
        for step in ACTION["runs"]["steps"]:
            assert ("run" in step) == (step.get("shell") == "bash"), step  # a composite action must say it
            self.step(step, known, {})

    def bash(self, step, script, said, known):
        with open(self.environment["GITHUB_OUTPUT"], "w"):
            pass
        with open(os.path.join(self.folder, "step.sh"), "w") as file:
            file.write(script)
        done = subprocess.run(["bash", "--noprofile", "--norc", "-eo", "pipefail", file.name], cwd=os.path.join(self.folder, "work"),
                              env={**self.environment, **said}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.printed += done.stdout
        self.has_failed |= done.returncode != 0
        self.ran.append((step.get("name", script), done.returncode))
        if "id" in step:
            with open(self.environment["GITHUB_OUTPUT"]) as file:
                known["steps"][step["id"]] = {"outputs": dict(line.rstrip("\n").split("=", 1) for line in file)}

    def is_due(self, condition, known):
        value = re.sub(r"\b(?:inputs|steps)(?:\.[\w-]+)+", lambda found: repr(self.value(found[0], known)), condition)
        value = value.replace("&&", " and ").replace("||", " or ")
        functions = {"always": lambda: True, "success": lambda: not self.has_failed, "failure": lambda: self.has_failed}
        asks = any(f"{name}()" in value for name in functions)
        return bool(eval(value, functions)) and (asks or not self.has_failed)

    def filled(self, text, known):
        return re.sub(r"\$\{\{ *([^}]*?) *\}\}", lambda found: self.value(found[1], known), text)

    def value(self, expression, known):
        *path, last = expression.split(".")
        for name in path:  # of a step that was not run nothing is known
            known = known.get(name, {}) if path[0] == "steps" else known[name]
        return known.get(last, "") if path[0] == "steps" else known[last]


class Action(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        os.makedirs(self.path("work/fixtures"))
        for seed, name in enumerate(("one", "two")):
            words = ["make", f"control:T=48,K=16,V=16,dtype=bf16,seed={seed}", "-o", self.path(f"work/fixtures/{name}.h5"), "--quiet"]
            subprocess.run([program, *words], check=True)
        (answering,) = (block for block in blocks("python") if "my_kernel" in block)
        try:
            import torch  # noqa: F401
        except ImportError:  # the page names this form, too
            answering = answering.replace('x.torch("cpu")', "x.numpy()")
        self.write("work/answer.py", answering)
        self.kernel(1)

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text):
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        with open(self.path(name), "w") as file:
            file.write(text)

    def kernel(self, o, state=1):
        self.write("work/my_kernel.py", f"errors = {o}, {state}\n{KERNEL}")

    def text(self, name):
        with open(self.path(name)) as file:
            return file.read()

    def runner(self, **cached):
        return Runner(self.folder, **{"cache-hit": "true", **cached})

    def baseline(self):
        """As the page says it is made; a wheel is in the cache."""
        self.write("home/.cache/kda-check/kda_check-0.1.0-py3-none-any.whl", "")
        self.write("action/action.yml", "")
        runner = self.runner()
        (command,) = (line for block in blocks("") for line in block.splitlines() if line.endswith("once, and when something got better"))
        known = {"steps": {}}
        for script in ("python3 answer.py fixtures answers", re.split(" {2,}", command)[0]):
            runner.bash({"name": script}, script, {}, known)
        self.assertFalse(runner.has_failed, runner.printed)
        shutil.rmtree(self.path("work/answers"))

    def test_a_right_kernel_passes_and_its_answers_are_judged_in_bfloat16(self):
        self.baseline()
        runner = self.runner().job(WORKFLOW, "numerics")
        self.assertFalse(runner.has_failed, runner.printed)
        answer = kda_check.Fixture.read(self.path("work/answers/one.h5")).expected["my_kernel"]
        self.assertEqual((answer.tensors["o"].dtype, answer.about["compute"]), ("bfloat16", "bf16"))
        report = json.loads(self.text("temp/kda-check/kda-check.json"))
        self.assertEqual([(case["variant"], case["against"], case["compute"]) for case in report["cases"]], [("my_kernel", "oracle", "bf16")] * 2)
        answers = [row for case in report["cases"] for row in case["tensors"] if row["name"] == "o"]
        self.assertEqual([(row["dtype"], "twins" in row["metrics"]) for row in answers], [("bf16", True)] * 2)
        self.assertEqual(runner.kept, {"kda-check": self.path("temp/kda-check")})
        self.assertLessEqual({"kda-check.html", "kda-check.xml", "kda-check.json"}, set(os.listdir(self.path("temp/kda-check"))))
        self.assertIn("PASS", self.text("summary"))
        self.assertNotIn("::error", runner.printed)

    def test_a_wrong_kernel_fails_the_job_and_is_explained_where_it_is_seen(self):
        self.baseline()
        self.kernel(1.02)
        runner = self.runner().job(WORKFLOW, "numerics")
        self.assertEqual(dict(step for step in runner.ran if isinstance(step, tuple))["Check the numerics"], 1)
        self.assertRegex(runner.printed, r"(?m)^::error .*my_kernel")
        self.assertIn("FAIL", self.text("summary"))
        self.assertEqual(runner.kept, {"kda-check": self.path("temp/kda-check")})

    def test_what_got_worse_than_the_baseline_fails(self):
        self.baseline()
        self.kernel(1, state=1.00001)  # nothing that a limit for bf16 would mind
        self.assertIn("worse than the baseline", self.runner().job(WORKFLOW, "numerics").printed)
        shutil.rmtree(self.path("work/answers"))
        runner = self.runner()
        runner.action({"kernel": "my_kernel", "answer": "python3 answer.py fixtures answers"})
        self.assertFalse(runner.has_failed, runner.printed)

    def test_a_kernel_that_never_answers_fails(self):
        self.baseline()
        self.write("work/answer.py", "import shutil; shutil.copytree('fixtures', 'answers')")
        runner = self.runner().job(WORKFLOW, "numerics")
        self.assertTrue(runner.has_failed)
        self.assertRegex(runner.printed, "(?m)^::error .*my_kernel")
        shutil.rmtree(self.path("work/answers"))
        self.write("work/answer.py", "raise SystemExit('out of memory')")
        runner = self.runner().job(WORKFLOW, "numerics")
        self.assertEqual([step for step in runner.ran if step == ("Answer the fixtures", 1) or "Check the numerics" in step],
                         [("Answer the fixtures", 1)])

    def test_the_wheel_of_the_commit_is_made_once_and_kept(self):
        self.write("action/scripts/wheel", "#!/bin/sh\nmkdir -p $1 && : >$1/kda_check-0.1.0-py3-none-any.whl\n")
        os.chmod(self.path("action/scripts/wheel"), 0o755)
        keys = []
        for change in ("", "", "another source"):
            self.write("action/src/file", change)
            runner = self.runner(**{"cache-hit": ""})
            known = {"inputs": {name: about.get("default", "") for name, about in ACTION["inputs"].items()}, "steps": {}}
            for step in ACTION["runs"]["steps"][:5]:
                runner.step(step, known, {})
            self.assertEqual([step for step in runner.ran if not isinstance(step, tuple)], ["actions/cache/restore@v4", "actions/cache/save@v4"])
            keys.append(known["steps"]["source"]["outputs"]["key"])
        self.assertEqual((keys[0] == keys[1], keys[0] == keys[2]), (True, False))
        self.assertEqual(runner.asked(), [f"install --quiet {self.path('home/.cache/kda-check/kda_check-0.1.0-py3-none-any.whl')}"] * 3)
        self.assertIn("Make it", dict(step for step in runner.ran if isinstance(step, tuple)))

    def test_answers_of_another_machine_are_judged_with_the_wheel_that_is_named(self):
        self.baseline()
        runner = self.runner().job(ON_TWO_MACHINES, "answers").job(ON_TWO_MACHINES, "numerics")
        self.assertFalse(runner.has_failed, runner.printed)
        self.assertNotIn("actions/cache/restore@v4", runner.ran)
        wheel = ON_TWO_MACHINES["env"]["WHEEL"]
        self.assertEqual(runner.asked()[-2:], [f"install {wheel}", f"install --quiet {wheel}"])

    def test_the_page_says_what_every_word_of_the_action_is(self):
        with open(os.path.join(source, "docs", "ci.md"), encoding="utf-8") as page:
            table = page.read().split("| word | |\n|---|---|\n")[1].split("\n\n")[0]
        self.assertEqual(re.findall(r"^\| `(\w+)` \|", table, re.M), list(ACTION["inputs"]))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
