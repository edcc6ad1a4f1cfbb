"""Invariants of a call: a kernel has the bits of a plain call however it is called (docs/serving.md, "Of calls from Python").

Each is a row of `INVARIANTS`. It wraps the kernel: what is wrapped takes the arguments of the call, calls the kernel in another
way, from a CUDA graph, beside another call, with views, and returns what came of that. So a signature is carried out as ever.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import math
import mmap
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ._calls import Called, Kernel, Law, Trial, copied, each, handed_back, instead, is_float, is_tensor, passed
from ._names import in_a_line
from ._tensors import Stored, stored
from .fixture import INPUTS, LOSS, OUTPUTS, STATES, Fixture
from .signatures import Unsupported, Words

FAR = 1 << 31  # elements: beyond what an int32 counts
HEADS = 65_535  # blocks of a launch along its second and third axis, at most
ROUNDS = 4  # of two calls at once
SHORT, LONG = 10_000_000, 200_000_000  # cycles that a stream sleeps: some 5 ms, 100 ms
MOST = 1.2e30  # what memory holds that is not NaN
NORESERVE = 0x4000  # of Linux: pages that nobody touches take no memory
ABOUT_LAYOUT = r"strid|contiguous|layout|align|\bview\b"


# graph ----------------------------------------------------------------------------------------------------------------


def _wants_gpu(called: Called) -> str:
    return "" if called.is_on_gpu else "it needs torch and its tensors on a GPU"


def _others(problem: Fixture) -> Iterator[tuple[str, Fixture]]:
    """Problems of the same shapes: other values; sequences, with their rows of tables, in reverse order."""

    def of(inputs: Mapping[str, Stored]) -> Fixture:
        return Fixture({**problem.inputs, **inputs}, problem.options, {}, problem.name)

    def turned(x: Stored, axis: int) -> Stored:
        return Stored(np.ascontiguousarray(np.flip(x.data, axis)), x.dtype)

    floats = [key for key in problem.inputs if key in INPUTS and "T" in INPUTS[key]]
    yield "other values", of({key: turned(problem.inputs[key], 1) for key in floats})
    tables = ("state_indices", "output_indices", "num_accepted_tokens", "has_initial_state", "ring_length", "ring_base")
    rows = {key: turned(problem.inputs[key], 0) for key in (*tables, "initial_state") if key in problem.inputs}
    if "checkpoint_tokens" in problem.inputs or not rows.keys() | {"cu_seqlens"} & problem.inputs.keys():
        return
    kind = "other tables" if rows.keys() & set(tables) else "other states"
    if "cu_seqlens" in problem.inputs:
        ends = problem.inputs["cu_seqlens"].data
        rows["cu_seqlens"] = Stored(np.ascontiguousarray(ends[-1] - ends[::-1]), "int64")
        kind = kind if np.array_equal(rows["cu_seqlens"].data, ends) else "other lengths"
    if any(not np.array_equal(x.data, problem.inputs[key].data) for key, x in rows.items()):
        yield kind, of(rows)


def _captured(called: Called, given: Mapping[str, Any]) -> tuple[Any, Any]:
    """A graph of the kernel on these arguments, and what it returned. Raises Unsupported where the kernel cannot be captured."""
    torch, side = called.torch, called.torch.cuda.Stream()
    graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
    side.wait_stream(torch.cuda.current_stream())
    try:
        with torch.cuda.stream(side):
            for _ in range(2):  # what is compiled, tuned or allocated once
                called.kernel(**given)
            torch.cuda.synchronize()
            gc.collect()  # not within
            graph.capture_begin(pool)
            try:
                returned = called.kernel(**given)
            finally:
                graph.capture_end()
    except Exception as error:
        # Else torch takes the capture to go on.
        ends = (getattr(torch._C, f"_cuda_endAllocate{name}ToPool", None) for name in ("", "CurrentStream"))
        for end in filter(None, ends):
            with contextlib.suppress(RuntimeError):
                end(torch.cuda.current_device(), pool)
        torch.cuda.synchronize()
        raise Unsupported(f"it cannot be captured: {in_a_line(error.__context__ or error)}") from error
    return graph, returned


def _graph(called: Called) -> Iterator[Trial | str]:
    given = copied(called.arguments)
    try:
        graph, returned = _captured(called, given)
    except Unsupported as error:
        yield str(error)
        return

    def replayed(**arguments: Any) -> Any:
        for key, x in arguments.items():
            if is_tensor(x):
                given[key].copy_(x)
        graph.replay()
        called.torch.cuda.synchronize()
        return handed_back(arguments, given, returned, keeps=True)

    yield Trial("replayed", replayed)
    for kind, problem in _others(called.problem):
        yield Trial(f"replayed with {kind}", replayed, asked=problem)
    yield Trial("replayed", replayed)


# streams --------------------------------------------------------------------------------------------------------------


def _streams(called: Called) -> Iterator[Trial]:
    torch = called.torch
    other = next(problem for _, problem in _others(called.problem))
    words = [called.arguments, called.noted(other)]

    def beside(which: int, is_first: bool) -> Kernel:
        def call(**arguments: Any) -> Any:
            given = copied(arguments), copied(words[1 - which])
            torch.cuda.synchronize()
            torch.cuda._sleep(SHORT)  # both wait until both are queued
            gate = torch.cuda.Event()
            gate.record()
            found: dict[int, Any] = {}
            for n in (0, 1) if is_first else (1, 0):
                stream = torch.cuda.Stream()
                stream.wait_event(gate)
                with torch.cuda.stream(stream):
                    found[n] = called.kernel(**given[n])
            torch.cuda.synchronize()
            return handed_back(arguments, given[0], found[0])

        return call

    for n in range(ROUNDS):
        for which, problem in enumerate((called.problem, other)):
            yield Trial("of two calls at once", beside(which, n % 2 == 0), asked=problem)

    def behind(**arguments: Any) -> Any:
        side = torch.cuda.Stream()
        # Numbers arrive late, so that a kernel on another stream does not see them; indices at once, or it would go astray.
        given = copied(arguments)
        late = [key for key, x in given.items() if is_tensor(x) and is_float(x)]
        for key in late:
            given[key].fill_(math.nan)
        for stream in (side, torch.cuda.default_stream()):  # else it may hold what another call computed
            with torch.cuda.stream(stream):
                _fill_freed_memory(called, 63)
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.default_stream()):
            torch.cuda._sleep(LONG)
        with torch.cuda.stream(side):
            torch.cuda._sleep(SHORT)
            for key in late:
                given[key].copy_(arguments[key])
            returned = handed_back(arguments, given, called.kernel(**given), keeps=True)
            side.synchronize()
        torch.cuda.synchronize()
        return returned

    yield Trial("on a side stream, the default one asleep", behind)


# stale ----------------------------------------------------------------------------------------------------------------


def _fill_freed_memory(called: Called, byte: int) -> None:
    """What the allocator has free on this stream is that byte, for every size that a small problem asks for."""
    torch, device = called.torch, next(x.device for x in called.arguments.values() if is_tensor(x) and x.is_cuda)
    sizes = [1 << 19] * 64 + [1 << n for n in range(21, 29)] * 2
    blocks = [torch.full((size,), byte, dtype=torch.uint8, device=device) for size in sizes]
    torch.cuda.current_stream().synchronize()
    blocks.clear()


@contextlib.contextmanager
def _filled_memory(called: Called, value: float) -> Iterator[None]:
    """Tensors that are made without a value hold this one."""

    def fill(x: Any) -> Any:
        finfo = called.torch.finfo if called.framework == "torch" else np.finfo
        if x.dtype.is_floating_point if called.framework == "torch" else x.dtype.kind == "f":
            x[...] = value if math.isnan(value) else min(value, float(finfo(x.dtype).max))
        return x

    if called.framework == "numpy":
        own: dict[str, Any] = {"empty": np.empty, "empty_like": np.empty_like}
        for name, function in own.items():
            setattr(np, name, functools.wraps(function)(lambda *args, _make=function, **words: fill(_make(*args, **words))))
        try:
            yield
        finally:
            for name, function in own.items():
                setattr(np, name, function)
        return
    from torch.utils._python_dispatch import TorchDispatchMode

    aten = called.torch.ops.aten
    without = [getattr(aten, name, None) for name in ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")]

    class Filling(TorchDispatchMode):  # type: ignore[misc,unused-ignore]
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), words: Any = None) -> Any:
            made = function(*args, **(words or {}))
            return fill(made) if function.overloadpacket in without and made.device.type != "meta" else made

    with Filling():
        yield


def _stale(called: Called) -> Iterator[Trial]:
    def with_outputs(value: float, arguments: Mapping[str, Any]) -> None:
        for word in called.signature.outputs:
            if is_tensor(arguments.get(word)):
                arguments[word][...] = value

    def filled(value: float) -> Trial:
        def call(**arguments: Any) -> Any:
            with_outputs(value, arguments)
            return called.kernel(**arguments)

        kind = "NaN" if math.isnan(value) else f"{value:g}"
        return Trial(f"with new tensors full of {kind}", call, around=lambda: _filled_memory(called, value))

    def freed(**arguments: Any) -> Any:
        called.torch.cuda.empty_cache()
        _fill_freed_memory(called, 255)
        return called.kernel(**arguments)

    def after_nan(**arguments: Any) -> Any:
        first = copied(arguments)
        for x in first.values():
            if is_tensor(x) and is_float(x):
                x[...] = math.nan
        try:
            called.kernel(**first)
        except Exception as error:
            raise Unsupported(f"it takes no NaN: {in_a_line(error)}") from error
        return called.kernel(**arguments)

    yield filled(math.nan)
    yield filled(MOST)
    yield Trial("after a call of NaN", after_nan)
    if called.is_on_gpu:
        yield Trial("in freed memory full of NaN", freed)
    inputs = called.problem.inputs
    pool = inputs.get("state_pool")
    if pool is None or pool.dtype not in ("float64", "float32", "float16", "bfloat16") or "state_source" in inputs:
        return
    named = np.concatenate([inputs[key].data.reshape(-1) for key in ("state_indices", "output_indices") if key in inputs])
    others = np.setdiff1d(np.arange(len(pool.data)), named)
    if not len(others):
        return

    def poisoned(x: Stored) -> Stored:
        data = x.data.copy()
        data.view(np.uint8).reshape(len(data), -1)[others] = 255
        return Stored(data, x.dtype)

    def want() -> Words:
        answer = called.answer()
        return {**answer, "state_pool": poisoned(stored(answer["state_pool"], "state_pool"))}

    asked = Fixture({**inputs, "state_pool": poisoned(pool)}, called.problem.options, {}, called.problem.name)
    yield Trial("with NaN in slots that no row names", called.kernel, asked=asked, want=want)


# strides, offsets -----------------------------------------------------------------------------------------------------


def _wants_strides(called: Called) -> str:
    return "" if called.framework in ("torch", "numpy") else f"tensors of {called.framework} have no strides"


def _dense(shape: Sequence[int]) -> list[int]:
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


def _span(shape: Sequence[int], strides: Sequence[int], offset: int) -> int:
    return offset + sum((extent - 1) * stride for extent, stride in zip(shape, strides)) + 1


def _laid(x: Any, strides: Sequence[int], offset: int, buffer: Any = None) -> Any:
    """x with these strides, in elements, in a buffer that holds NaN elsewhere. buffer: a larger one, of bytes."""
    shape, size = tuple(x.shape), _span(x.shape, strides, offset) + 3
    if hasattr(x, "as_strided"):
        torch = sys.modules["torch"]
        if buffer is None:
            buffer = torch.full((size * x.element_size(),), 255, dtype=torch.uint8, device=x.device)
        view = buffer.view(x.dtype).as_strided(shape, strides, offset)
    else:
        buffer = np.full(size * x.dtype.itemsize, 255, np.uint8) if buffer is None else buffer
        elements = buffer.view(x.dtype)[offset:]
        view = np.lib.stride_tricks.as_strided(elements, shape, [stride * x.dtype.itemsize for stride in strides])
    view[...] = x
    return view


def _layouts(shape: Sequence[int]) -> Iterator[tuple[str, list[int], int]]:
    yield "at an odd offset", _dense(shape), 1
    larger = [extent + (3 if axis == len(shape) - 1 else 1) for axis, extent in enumerate(shape)]
    yield ("every second element", [2], 0) if len(shape) == 1 else ("of a larger buffer", _dense(larger), _dense(larger)[0])
    first = min(1, len(shape) - 2)  # tokens and heads; of a table its two axes
    if first >= 0 and min(shape[first : first + 2]) > 1:
        order = list(range(len(shape)))
        order[first], order[first + 1] = first + 1, first
        there = _dense([shape[axis] for axis in order])
        yield "of transposed storage", [there[order.index(axis)] for axis in range(len(shape))], 0


def _strides(called: Called) -> Iterator[Trial]:
    for name, x in called.arguments.items():
        if not is_tensor(x) or not len(x.shape) or 0 in x.shape:
            continue
        for kind, strides, offset in _layouts(x.shape):
            laid = functools.partial(_laid, strides=strides, offset=offset)
            yield Trial(kind, instead(called.kernel, name, laid), name)
    for gradient, output in ((gradient, output) for output, gradient in LOSS.items() if gradient in called.problem.inputs):
        for kind, strides, offset in _layouts(called.problem.inputs[gradient].shape):
            laid = functools.partial(_laid, strides=strides, offset=offset)
            yield Trial(kind, _with_gradient(called, output, laid), gradient)


def _with_gradient(called: Called, output: str, change: Kernel) -> Kernel:
    """The kernel, which gets another tensor as the gradient of that output."""
    which = called.signature.results.index(output) if output in called.signature.results else -1

    def call(**arguments: Any) -> Any:
        returned = called.kernel(**arguments)
        if not isinstance(returned, (tuple, list)):
            return passed(returned, back=change) if which == 0 else returned
        return tuple(passed(x, back=change) if n == which else x for n, x in enumerate(returned))

    return call


def _laid_far(called: Called, x: Any, strides: Sequence[int], offset: int) -> Any:
    """As `_laid`, in a buffer that is made for it; on a CPU only what is written of that takes memory."""
    size = (_span(x.shape, strides, offset) + 63) * (x.element_size() if hasattr(x, "element_size") else x.dtype.itemsize)
    if called.is_on_gpu:
        called.torch.cuda.empty_cache()
        free = called.torch.cuda.mem_get_info(x.device)[0]
        if size > free * 0.9:
            raise MemoryError(f"{size >> 30} GiB, and the GPU has {free >> 30} free")
        return _laid(x, strides, offset, called.torch.empty((size,), dtype=called.torch.uint8, device=x.device))
    try:
        flat = np.frombuffer(mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE), np.uint8)
    except OSError as error:
        raise MemoryError(f"{size >> 30} GiB: {error}") from error
    return _laid(x, strides, offset, called.torch.from_numpy(flat) if called.framework == "torch" else flat)


def _offsets(called: Called) -> Iterator[Trial | str]:
    for name, x in called.arguments.items():
        if not is_tensor(x) or len(x.shape) < 3 or 0 in x.shape:
            continue
        dense = _dense(x.shape)
        trials = [("beginning beyond 2^31", dense, FAR)]
        for axis in (0, 1):  # rows and tokens; slots and heads
            step = -(-FAR // max(x.shape[axis] - 1, 1) // 64) * 64 + 64
            if x.shape[axis] > 1 and (axis == 0 or x.shape[0] == 1 or x.shape[0] * dense[0] <= step):
                trials.append(("spanning 2^31", [*dense[:axis], step, *dense[axis + 1 :]], 0))
        for kind, strides, offset in trials:
            laid = functools.partial(_laid_far, called, strides=strides, offset=offset)
            yield Trial(kind, instead(called.kernel, name, laid), name)
    yield _pool_of_many(called) if "state_pool" in called.problem.inputs else _many(called)


def _many(called: Called) -> Trial | str:
    """So many copies of the problem, in a batch or packed, that the last begins beyond 2^31 elements: what strides cannot show
    of a kernel that copies its inputs first."""
    inputs, kind = called.forward.inputs, "the last of many copies"
    axes = {called.signature.words.get(word, word): word for word in called.arguments}
    same = {key: axes[key] for key in inputs if key in axes and tuple(called.arguments[axes[key]].shape) == inputs[key].shape}
    heads = len(inputs["cu_seqlens"].data) - 1 if "cu_seqlens" in inputs else inputs["q"].shape[0]
    copies = FAR // max(min(inputs[key].data.size for key in "qkv"), 1) + 2
    heads *= inputs["v"].shape[2] * copies
    size = 3 * copies * sum(x.data.nbytes for x in inputs.values())  # with outputs, and what is computed between
    if not called.is_on_gpu:
        return f"{kind}: it needs a GPU"
    if same.keys() != inputs.keys() or called.signature.outputs or called.signature.in_place or "C" in called.problem.extents():
        return f"{kind}: the kernel has other arguments than the problem, or buffers"
    if heads > HEADS:
        return f"{kind}: {copies} of them have {heads} heads; wanted a larger problem, so that at most {HEADS} do"
    called.torch.cuda.empty_cache()
    if size > called.torch.cuda.mem_get_info()[0]:
        return f"{kind}: the GPU has no {size >> 30} GiB free"
    is_packed, tokens = "cu_seqlens" in inputs, inputs["q"].shape[1]

    def axis_of(letters: str) -> int | None:
        return 1 if is_packed and "T" in letters else 0 if letters[0] in "BN" else None

    def change(word: str, x: Any) -> Any:
        key = next((key for key, own in same.items() if own == word), "")
        if key == "cu_seqlens":
            starts = called.torch.arange(copies, device=x.device, dtype=x.dtype)[:, None] * tokens + x[:-1]
            return called.torch.cat([starts.reshape(-1), x[-1:] + (copies - 1) * tokens])
        axis = axis_of(INPUTS.get(key, " "))
        if axis is None:
            return x
        other = x.flip(1) if "T" in INPUTS[key] else -0.5 * x  # so that it shows whose elements are read
        return called.torch.cat([other] * (copies - 1) + [x], axis)

    def call(**arguments: Any) -> Any:
        returned = called.kernel(**{key: change(key, x) if is_tensor(x) else x for key, x in arguments.items()})
        items = returned if isinstance(returned, (tuple, list)) else (returned,)
        found = []
        for key, x in zip(called.signature.results, items):
            axis = axis_of(OUTPUTS[key])
            found.append(x if x is None or axis is None else x.narrow(axis, x.shape[axis] // copies * (copies - 1),
                                                                      x.shape[axis] // copies).clone())  # fmt: skip
        return tuple(found)

    return Trial(kind, call, asked=called.forward)


def _pool_of_many(called: Called) -> Trial | str:
    """The slots of the call are the last of a pool of more than 2^31 elements."""
    inputs, kind = called.problem.inputs, "the last slots of a large pool"
    slots, words = len(inputs["state_pool"].data), called.signature
    more = FAR // math.prod(inputs["state_pool"].shape[1:]) + 1
    if not called.is_on_gpu:
        return f"{kind}: it needs a GPU"
    if STATES & inputs.keys() - {"state_pool"} or any(key.startswith("ring_") for key in inputs) or "output_indices" in inputs:
        return f"{kind}: not of a call with other pools, rings or codes"
    first = 1 if called.problem.options.get("padding_slots") == "nonpositive" else 0

    def call(**arguments: Any) -> Any:
        word = next((word for word, x in arguments.items() if is_tensor(x) and tuple(x.shape) == inputs["state_pool"].shape), "")
        pool, table = arguments[word], arguments[words.pool or ""]
        whole = called.torch.empty((more + slots, *pool.shape[1:]), dtype=pool.dtype, device=pool.device)
        whole[more:] = pool
        given = {**arguments, word: whole, words.pool or "": called.torch.where(table >= first, table + more, table)}
        returned = called.kernel(**given)
        pool[...] = whole[more:]

        def of_pool(x: Any) -> Any:
            return pool if x is whole else x[more:].clone() if tuple(x.shape) == tuple(whole.shape) else x

        return each(returned, of_pool)

    return Trial(kind, call)


INVARIANTS = (  # in this order: memory that stale has filled may come back later
    Law("graph", _wants_gpu, _graph, of_gradients=False),
    Law("streams", _wants_gpu, _streams, of_gradients=False),
    Law("strides", _wants_strides, _strides, ABOUT_LAYOUT, is_layout=True),
    Law("offsets", _wants_strides, _offsets, ABOUT_LAYOUT, is_layout=True, by_name=True),
    Law("stale", lambda called: "" if called.framework != "jax" else "memory of JAX is out of reach", _stale),
)


def wanted(names: Sequence[str] | None) -> list[Law]:
    """Of these names; None: all that need not be asked for by name."""
    return [law for law in INVARIANTS if (not law.by_name if names is None else law.name in names)]
