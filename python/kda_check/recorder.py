"""The recorder: judges or keeps every call of known kernels, without a change to the program that makes them."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder
from typing import Any, TypeVar, overload

from . import _program, _who
from ._files import Path, make_folder
from ._kinds import flag, listed, number, whole
from ._names import in_a_line, printable
from ._pending import Pending
from .checking import ALONE, judge, of_file
from .fixture import Fixture
from .report import Report, not_kept
from .signatures import KNOWN, Signature, Words

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass
class Call:
    """A call of a kernel: `fixture` until it is judged, then `report`; `error`: why there is none, or not of all
    gradients. `place`: the layer or the test that made it. `path`: where its problem and answer were saved. `backends`: whom
    FLA handed it to, or steps of it. `swallowed`: keywords that the kernel does not name, and may not read."""

    kernel: str
    place: str
    fixture: Fixture | None = None
    report: Report | None = None
    error: str = ""
    path: str = ""
    backends: Sequence[str] = ()
    swallowed: Sequence[str] = ()

    @property
    def failed(self) -> bool:
        """Whether it did not pass; what is inconclusive did not."""
        return self.report is not None and not self.report.passed

    @property
    def verdict(self) -> str:
        """pass, fail or inconclusive; empty where it was not judged."""
        return self.report.verdict if self.report is not None else ""

    def __str__(self) -> str:
        rows = self.report.tensors() if self.report is not None else []
        said = [f"{row.row['name']} {row.verdict.upper()} {row.reason}".strip() for row in rows]
        said += [] if self.report is None else self.report.errors
        by = f" by {', '.join(self.backends)}" if self.backends else ""
        unread = f"not read: {', '.join(self.swallowed)}" if self.swallowed else ""
        verdict = "; ".join(filter(None, [*said, self.error])) or "recorded"
        return printable(f"{self.place or '-'}: {self.kernel}{by}: {'; '.join(filter(None, [verdict, unread]))}")


def counted(verdicts: Sequence[str]) -> str:
    """How many calls have each verdict."""
    numbers = {"passed": "pass", "failed": "fail", "inconclusive": "inconclusive", "not judged": ""}
    return f"{len(verdicts)} calls: " + ", ".join(f"{verdicts.count(each)} {name}" for name, each in numbers.items())


@dataclass
class Log:
    """What `recording` saw. `cost`: seconds it took; `skipped`: calls that a filter or a budget left out; `repeated`:
    calls that torch.utils.checkpoint began once more and ended, as soon as the backward pass of the first had what it
    needs. Every call of a kernel is one of `calls`, `skipped` or `repeated`. `versions`: of the packages that compute."""

    calls: list[Call] = field(default_factory=list)
    cost: float = 0.0
    skipped: int = 0
    repeated: int = 0
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def failed(self) -> list[Call]:
        """Calls that did not pass."""
        return [call for call in self.calls if call.failed]

    @property
    def not_judged(self) -> list[Call]:
        """Calls without a report; `error` says why."""
        return [call for call in self.calls if call.report is None]

    def judge(self, **words: Any) -> None:
        """Judges what was only kept; words: of `kda_check.judge`."""
        for call in self.calls:
            if call.fixture is None or not call.fixture.expected or call.report is not None:
                continue  # or it waits for its gradients
            try:
                call.report = judge(call.fixture, **{"instead": lambda _: not_kept("save='FOLDER' of recording"), **words})
            except (_program.InputError, _program.ProgramDied, _program.ProgramTimeout) as error:  # of this call alone
                call.error = in_a_line(error)

    def __str__(self) -> str:
        left_out = f"{self.skipped} skipped" + (f"; {self.repeated} repeated by a checkpoint" if self.repeated else "")
        head = f"{counted([call.verdict for call in self.calls])}; {left_out}; {self.cost:.2f} s"
        packages = " ".join(f"{name} {version}" for name, version in self.versions.items())
        return "\n".join([head, *([packages] if packages else []), *map(str, self.calls)])


class Recorder:
    """What `recording` runs; see there."""

    def __init__(
        self,
        judged: bool = True,
        save: Path | None = None,
        every: int = 1,
        where: Callable[[str, Words], bool] = lambda name, words: True,
        seconds: float = float("inf"),
        nbytes: float = float("inf"),
        options: Sequence[str] = ALONE,
        place: Callable[[], str] = lambda: os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0],
        saving: str = "save='FOLDER'",
    ) -> None:
        self.judged, self.every, self.where = flag(judged, "judged"), whole(every, "every"), where
        if self.every < 1:
            raise ValueError(f"every: wanted 1 or more, got {every}")
        self.save = None if save is None else os.path.abspath(save)  # tests change folders
        self.seconds, self.bytes_left = number(seconds, "seconds"), number(nbytes, "nbytes")
        self.place, self.saving = place, saving
        self.options = listed(options, "options")
        self.log, self.seen, self.thread = Log(), 0, threading.local()
        self.pending: list[Pending] = []
        self.numbers, self.process = itertools.count(1), os.getpid()  # several threads may call

    def call(self, kernel: Callable[..., Any], signature: Signature, args: Any, kwargs: Any) -> Any:
        """Calls the kernel, and records what it was given and what it answered."""
        if getattr(self.thread, "is_inside", False):  # called by a kernel
            return kernel(*args, **kwargs)
        self.thread.is_inside = True
        try:
            self.seen += 1
            if (self.seen - 1) % self.every or self.log.cost > self.seconds or self.bytes_left < 0 or _is_captured():
                self.log.skipped += 1
                return kernel(*args, **kwargs)
            with self.timed():
                for earlier in [each for each in self.pending if each.is_gone]:
                    earlier.finish()
                call, pending = self._before(kernel, signature, args, kwargs)
                if pending is not None:
                    args, kwargs = pending.with_aliases(kernel, args, kwargs)
            try:
                with _who.watching() as backends:
                    returned = kernel(*args, **kwargs)
            except BaseException as error:
                if call is not None:
                    self._note_end(call, error)
                raise
            if call is not None and call.fixture is not None:
                call.backends, call.swallowed = backends, _who.swallowed(kernel, kwargs)
                self.log.versions = _who.versions()
                by = {"backends": ", ".join(backends)} if backends else {}
                call.fixture.provenance = {**call.fixture.provenance, **self.log.versions, **by}
            if pending is not None:
                with self.timed(), self.noting(pending.call):
                    pending.after(returned)
            return returned
        finally:
            self.thread.is_inside = False

    def _note_end(self, call: Call, error: BaseException) -> None:
        call.error, call.fixture = "; ".join(filter(None, [f"it raised {in_a_line(error)}", call.error])), None
        if type(error).__module__ == "torch.utils.checkpoint":  # computed again, so far as the backward pass needs it
            self.log.calls[:] = [other for other in self.log.calls if other is not call]
            self.log.repeated += 1

    def finish(self) -> None:
        """Judges calls whose gradients never came."""
        for pending in list(self.pending):
            pending.finish()

    def complete(self, call: Call, answer: Words) -> None:
        """Judges and saves a call of which everything is there."""
        if call.fixture is None:
            return
        call.fixture.add(call.kernel, answer)
        if self.judged:
            known_as = f"{self.save}/" if self.save else ""
            call.report = judge(call.fixture, known_as=known_as, instead=lambda _: not_kept(self.saving), options=self.options)
        if self.save and (call.failed or not self.judged):
            make_folder(self.save)
            path = os.path.join(self.save, call.fixture.file_name)
            call.fixture.write(path)
            call.path = path
        if self.judged or self.save:
            call.fixture = None
        if call.report is not None:
            call.report.source = of_file(call.path) if call.path else None  # and no tensors

    @contextlib.contextmanager
    def noting(self, call: Call) -> Iterator[None]:
        """What goes wrong in recording is noted, and none of the program's business."""
        try:
            yield
        except Exception as error:
            call.error, call.fixture = in_a_line(error), None

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.log.cost += time.perf_counter() - start

    def _before(
        self, kernel: Any, signature: Signature, args: Any, kwargs: Any
    ) -> tuple[Call, Pending | None] | tuple[None, None]:
        """The call in the log, and what waits for its answer where that has a place in a fixture. None: it is skipped."""
        call = Call(str(getattr(kernel, "__name__", "kernel")), self.place())
        with self.noting(call):
            arguments = signature.arguments(kernel, args, kwargs)
            words = signature.problem(arguments)
            if not self.where(call.kernel, words):
                self.log.skipped += 1
                return None, None
            forked = "" if os.getpid() == self.process else f"-{os.getpid()}"  # which counts on from the same number
            fixture = Fixture.of(**words, name=f"{next(self.numbers):04d}{forked}-{call.kernel}")
            fixture.inputs = {key: tensor.owned() for key, tensor in fixture.inputs.items()}
            self.bytes_left -= 0 if self.judged or self.save else fixture.nbytes
            call.fixture = fixture
        self.log.calls.append(call)
        return call, Pending(self, call, signature, arguments, words) if call.fixture is not None else None


def _is_compiled() -> bool:
    """Whether torch compiles: there is nothing to look at, and what the recorder counts must not be part of it."""
    torch = sys.modules.get("torch")
    compiler = getattr(torch, "compiler", None)  # not in torch before 2.1
    return compiler is not None and hasattr(compiler, "is_compiling") and bool(compiler.is_compiling())


def _is_captured() -> bool:
    """Whether a graph is captured: there is nothing to look at. CUDA is not begun for the question."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_initialized() and bool(torch.cuda.is_current_stream_capturing())


class _Watch(MetaPathFinder):
    """Wraps the kernels of modules that are imported while the recorder is on."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        spec = PathFinder.find_spec(fullname, path) if fullname in KNOWN else None
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            load(module)
            wrap_known()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


_active: list[Recorder] = []
_own: ContextVar[tuple[Recorder, ...]] = ContextVar("recorders that this thread or task began", default=())
_wrapped: dict[Any, Any] = {}  # the wrapper of a known kernel -> the kernel
_watch = _Watch()
_changing = threading.RLock()  # what is above, and which functions are wrapped


def _innermost() -> Recorder | None:
    """That of this thread or task; where it began none, as the threads of a program that is recorded, the last of all."""
    active = tuple(_active)  # another thread may stop one now
    return next((each for each in reversed(_own.get()) if each in active), active[-1] if active else None)


@overload
def kernel(signature: Signature | None = None) -> Callable[[Function], Function]: ...


@overload
def kernel(signature: Function) -> Function: ...


def kernel(signature: Any = None) -> Any:
    """A decorator for a kernel of your own: its calls are recorded where `recording` is on, else nothing happens.
    Without a signature it takes no parentheses.

    >>> @kernel(Signature(words={"query": "q", "key": "k", "value": "v"}))
    ... def mine(query, key, value, g, beta): return value
    """
    if callable(signature):
        return kernel()(signature)
    if not isinstance(signature, (Signature, type(None))):
        raise TypeError(f"kernel: wanted a Signature, got {type(signature).__name__}")

    def wrap(function: Function) -> Function:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            recorder = _innermost() if _active and not _is_compiled() else None
            if recorder is None:
                return function(*args, **kwargs)
            return recorder.call(function, signature or Signature(), args, kwargs)

        return wrapper  # type: ignore[return-value]

    return wrap


@contextlib.contextmanager
def recording(model: Any = None, **words: Any) -> Iterator[Log]:
    """Records every call of FLA's, FlashKDA's and FlashInfer's kernels, and of those under `@kernel`, for as long as it
    lasts. What the program computes stays what it is. Of several recorders a call belongs to the innermost that its
    thread or task began, else to the one that began last.

    model: a torch module whose layers name the calls. judged: each call at once, or at the end of its backward pass;
    False: they are only kept, in `call.fixture`, for `log.judge()`. save: a folder for those that fail, with
    judged=False for all. every: only every Nth call. where: a function of the kernel's name and the words of
    `Fixture.of`. seconds, nbytes: what it may take; calls beyond are skipped. options: of `kda-check run`. Calls that
    cannot be recorded (arguments without a place) are in the log with the reason.
    """
    layers: list[str] = []

    def leave(*_: Any) -> None:  # anything but None would take the place of what the layer returned
        layers.pop()

    if model is not None:
        words["place"] = lambda: "".join(layers[-1:])
    recorder = Recorder(**words)
    hooks = []
    for name, module in model.named_modules() if model is not None else ():
        hooks.append(module.register_forward_pre_hook(lambda *_, name=name: layers.append(name)))
        hooks.append(module.register_forward_hook(leave, always_call=True))
    start(recorder)
    try:
        yield recorder.log
    finally:
        stop(recorder)
        for hook in hooks:
            hook.remove()


def start(recorder: Recorder) -> None:
    """Turns a recorder on until `stop`."""
    _own.set((*_own.get(), recorder))
    with _changing:
        watch()
        _active.append(recorder)
    wrap_known()


def watch() -> None:
    """From now on known kernels are wrapped as they are imported. A wrapper does nothing while no recorder is on."""
    if not any(finder is _watch for finder in sys.meta_path):
        sys.meta_path.insert(0, _watch)


def stop(recorder: Recorder) -> None:
    """Turns it off, and judges what waits for gradients."""
    _own.set(tuple(each for each in _own.get() if each is not recorder))
    with _changing:
        _active.remove(recorder)
        if not _active:
            sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not _watch]
            for wrapper, function in list(_wrapped.items()):
                _replace(wrapper, function)
            _wrapped.clear()
    recorder.finish()


def wrap_known() -> None:
    """Wraps the known kernels of the modules that are there."""
    # To ask a module for a name may import another: not under a lock that whoever imports waits for.
    found = [(getattr(sys.modules.get(module), name, None), signature)
             for module, names in KNOWN.items() for name, signature in names.items()]
    with _changing:
        for function, signature in found:
            if function is not None and function not in _wrapped and function not in _wrapped.values():
                wrapper = kernel(signature)(function)
                _wrapped[wrapper] = function
                _replace(function, wrapper)


def _replace(old: Any, new: Any) -> None:
    """Wherever a module calls it by name."""
    for module in list(sys.modules.values()):
        try:
            names = object.__getattribute__(module, "__dict__")  # of a lazy module without loading it
        except AttributeError:
            continue
        for key, value in list(names.items()):
            if value is old:
                setattr(module, key, new)
