"""The child in which `evaluate` runs a kernel that nobody has read, seen from both sides."""

from __future__ import annotations

import base64
import contextlib
import ctypes
import functools
import importlib
import itertools
import json
import os
import pickle
import resource
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from . import _scratch, _who
from ._names import in_a_line
from ._tensors import ELEMENT_TYPES, Stored, stored
from .fixture import GRADIENTS, OUTPUTS, WHOLE_NUMBERS, Fixture
from .recorder import Recorder, start
from .signatures import Signature, Unsupported, Words
from .verifying import Caller

CHILD = "import sys; sys.path[:0] = sys.argv[1:2]; from kda_check._candidate import serve; serve(int(sys.argv[2]), sys.argv[3])"
# Events of Python by which a program is started: which argument is the command.
STARTS = {"subprocess.Popen": 1, "os.exec": 1, "os.posix_spawn": 1, "os.system": 0}


class Wrong(Exception):
    """What a candidate did in place of an answer."""


class Candidate:
    """The child, as the parent sees it. What it says is an answer to be judged or an admission, never a verdict."""

    def __init__(self, words: Words, timeout: float) -> None:
        self.timeout, self.buffer = timeout, bytearray()
        self.seen: dict[str, dict[str, None]] = {"calls": {}, "starts": {}}
        self.source, target = os.pipe()
        package, quiet = str(Path(__file__).resolve().parents[1]), subprocess.DEVNULL
        command = [sys.executable, "-c", CHILD, package, str(target), json.dumps(words)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, pass_fds=[target],
                                        start_new_session=True)  # fmt: skip
        os.close(target)

    def __enter__(self) -> Candidate:
        return self

    def __exit__(self, *_: Any) -> None:
        self.signal(signal.SIGKILL)
        self.process.wait()
        os.close(self.source)
        with contextlib.suppress(OSError):
            self.process.stdin.close()  # type: ignore[union-attr]

    def signal(self, which: int) -> None:
        """To it and to what it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, which)

    def wait(self, end: float, is_here: Callable[[], bool]) -> None:
        while not is_here():
            if (left := end - time.monotonic()) < 0 or not select.select([self.source], [], [], left)[0]:
                raise Wrong(f"it did not return within {self.timeout:g} s")
            part = os.read(self.source, 1 << 20)
            self.buffer += part
            if not part:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(1)
                code = self.process.poll()
                names = {-each.value: each.name for each in signal.Signals}
                raise Wrong("its process closed our pipe" if code is None else
                            f"its process ended before it returned ({names.get(code, f'exit code {code}')})")  # fmt: skip

    def message(self) -> Words:
        """The next that is no admission. Raises Wrong."""
        end = time.monotonic() + self.timeout
        while True:  # what it admits takes time, too
            self.wait(end, lambda: time.monotonic() < end and (b"\n" in self.buffer or len(self.buffer) > 1 << 20))
            line, _, rest = bytes(self.buffer).partition(b"\n")
            self.buffer = bytearray(rest)
            with _read():
                found = dict(json.loads(line))
                admitted = [key for key in self.seen if key in found]
                for key in admitted:
                    self.seen[key] |= {str(found[key])[:200]: None} if len(self.seen[key]) < 100 else {}
                about = {"versions": {str(key): str(x) for key, x in found.get("versions", {}).items()},
                         **{key: list(map(str, found.get(key, ()))) for key in ("modules", "left", "changed")}}  # fmt: skip
            if "raised" in found:
                raise Wrong(f"it raised {str(found['raised'])[:1000]}")
            if not admitted:
                return {**found, **about}

    def answer(self, problem: Fixture) -> tuple[dict[str, Stored], Words]:
        """Its answer, whose elements are our own, and what it says besides. Raises Wrong, Unsupported."""
        with _scratch.folder(problem.nbytes + (1 << 20)) as folder:
            path = os.path.join(folder, "problem.h5")
            Fixture(problem.inputs, problem.options).write(path)  # whose name has the seed
            with contextlib.suppress(OSError):  # it has ended: there is no message
                os.write(self.process.stdin.fileno(), f"{path}\n".encode())  # type: ignore[union-attr]
            found = self.message()
        if "unsupported" in found:
            raise Unsupported(str(found["unsupported"])[:1000])
        kind, answer = problem.inputs["v"].dtype, dict[str, Stored]()
        finer = {"float32"} if kind == "bfloat16" and found.get("frame") == "numpy" else set()  # numpy may have no bfloat16
        wanted = {"o": {kind} | finer, "final_state": {kind, "float32"}}
        with _read():
            for key, (dtype, shape) in found["outputs"].items():
                given = problem.inputs.get(key.removeprefix("d"))
                allowed = wanted.get(key, {given.dtype, "float32"} | finer if given else set(ELEMENT_TYPES))
                if dtype not in allowed:
                    raise Wrong(f"{key}: element type {dtype}; wanted {' or '.join(sorted(allowed))}")
                element = np.zeros((), {"bfloat16": "uint16"}.get(dtype, dtype))
                answer[key] = Stored(np.broadcast_to(element, [int(n) for n in shape]), dtype)  # which takes no memory
        if "o" not in answer:
            raise Wrong("it returns no o")
        try:
            Fixture(problem.inputs, problem.options).add("kernel", answer)
        except ValueError as error:
            raise Wrong(str(error).removeprefix("kernel: ")) from error
        for key, x in answer.items():
            size = x.data.nbytes
            self.wait(time.monotonic() + self.timeout, functools.partial(lambda count: len(self.buffer) >= count, size))
            data = np.frombuffer(bytes(self.buffer[:size]), x.data.dtype).reshape(x.shape)
            answer[key], self.buffer = Stored(data, x.dtype), self.buffer[size:]
        if found["changed"]:
            raise Wrong(f"it writes to its input {', '.join(found['changed'])}")
        return answer, found


@contextlib.contextmanager
def _read() -> Iterator[None]:
    """Whatever it wrote is no exception of ours."""
    try:
        yield
    except Wrong:
        raise
    except Exception as error:
        raise Wrong("its process wrote to our pipe") from error


def serve(target: int, said: str) -> None:
    """The child: imports the candidate and answers problems, a path a line, until there are no more."""
    words, requests = json.loads(said), os.fdopen(os.dup(0))
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)

    def write(content: Any) -> None:
        left = memoryview(content)
        while len(left):
            left = left[os.write(target, left) :]

    def tell(**message: Any) -> None:
        write(json.dumps(message).encode() + b"\n")

    def heard(event: str, arguments: tuple[Any, ...]) -> None:
        if event in STARTS:
            command = arguments[STARTS[event]]
            tell(starts=" ".join(map(os.fsdecode, command if isinstance(command, (list, tuple)) else [command])))

    class Seen(Recorder):
        def call(self, kernel: Callable[..., Any], signature: Signature, args: Any, kwargs: Any) -> Any:
            tell(calls=f"{kernel.__module__}.{kernel.__name__}")
            return kernel(*args, **kwargs)

    def failed(error: BaseException) -> None:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == words["file"]]
        tell(raised=in_a_line(error) + (f" (line {lines[-1]})" if lines else ""))

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it ends with its parent
    resource.setrlimit(resource.RLIMIT_DATA, (words["memory"],) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signature = pickle.loads(base64.b64decode(words["signature"]))
    before = {name.partition(".")[0] for name in (*sys.modules, *getattr(sys, "stdlib_module_names", ()), words["module"])}
    start(Seen())
    sys.addaudithook(heard)
    try:
        sys.path.insert(0, words["root"])
        kernel = functools.reduce(getattr, words["name"].split("."), importlib.import_module(words["module"]))
    except BaseException as error:
        return failed(error)
    frame = words["framework"] or next((each for each in ("torch", "jax") if each in sys.modules), "numpy")
    caller = Caller(kernel, signature, frame, words["device"], None)
    for path in itertools.chain([""], requests):
        others = {name.partition(".")[0] for name in sys.modules if name[0] != "_"} - before
        about = {"frame": frame, "modules": sorted(others), "versions": {"numpy": np.__version__, **_who.versions()}}
        if not path:
            tell(**about)
            continue
        problem = Fixture.read(path.rstrip("\n"))
        try:
            found, after = caller(problem)
            answer = {key: stored(x, key) for key, x in found.items() if key in OUTPUTS or key in GRADIENTS}
            inputs = {key: stored(x, key) for key, x in after.items() if key not in WHOLE_NUMBERS}
        except Unsupported as error:
            tell(unsupported=str(error))
            continue
        except BaseException as error:
            failed(error)
            continue
        given = {key: stored(caller.given(problem.inputs[key]), key) for key in inputs}
        changed = [key for key, x in inputs.items() if x.data.tobytes() != given[key].data.tobytes()]
        tell(outputs={key: (x.dtype, x.shape) for key, x in answer.items()}, changed=changed, left=sorted(caller.left), **about)
        for x in answer.values():
            write(x.data.tobytes())
