"""A recorded call until the last of its gradients came: what autograd of torch says of it."""

from __future__ import annotations

import functools
import inspect
import sys
import weakref
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ._tensors import Stored, stored
from .fixture import GRADIENTS, LOSS
from .signatures import PROBLEM, TENSORS, Signature, Words

if TYPE_CHECKING:
    from .recorder import Call, Recorder


class Pending:
    """A call between its beginning and the last of its gradients."""

    def __init__(self, recorder: Recorder, call: Call, signature: Signature, arguments: Words, words: Words) -> None:
        self.recorder, self.call, self.signature, self.arguments = recorder, call, signature, arguments
        self.answer: Words = {}
        self.is_open, self.task = True, -1
        self.hooks: list[weakref.ref[Any]] = []
        torch = sys.modules.get("torch")
        is_on = torch is not None and torch.is_grad_enabled()
        flowing = {name: x for name, x in arguments.items() if is_on and getattr(x, "requires_grad", False)}
        # By word: the argument, and its alias. What flows into an alias is the gradient of this call alone, not that of all
        # uses of the tensor.
        self.aliases: dict[str, tuple[str, Any]] = {}
        self.back: dict[str, tuple[Any, Any]] = {}  # of what the signature converts: what it made, and the way back
        # The last first: autograd goes back in the other order, and adds up what flows into one tensor in that.
        for key in reversed(TENSORS):
            own = [name for name in flowing if signature.words.get(name, name) == key]  # first: q and k may be one tensor
            name = next((name for name in [*own, *flowing] if flowing[name] is words.get(key)), None)
            if name is None and own and key in words:
                self.back.update(_way_back(signature, words, key, own[0], flowing[own[0]]))
                name = own[0] if key in self.back else None
            if name is not None:
                self.aliases[key] = name, flowing[name].view_as(flowing[name])
        given = [name for name, _ in self.aliases.values()]  # one for two words: its gradient is the sum of theirs
        self.aliases = {key: alias for key, alias in self.aliases.items() if given.count(alias[0]) == 1}
        used = {*signature.ignored, *signature.outputs, *(name for name, _ in self.aliases.values())}
        self.lost = sorted(word for word in (signature.words.get(name, name) for name in flowing if name not in used)
                           if word in words or word not in PROBLEM)  # fmt: skip
        self.waiting = set(self.aliases)
        self.versions = {key: self.aliases[key][1]._version for key in self.waiting}
        self.around: set[str] = set()

    def with_aliases(self, kernel: Any, args: Any, kwargs: Words) -> tuple[tuple[Any, ...], Words]:
        own = dict(self.aliases.values())
        names = list(inspect.signature(kernel).parameters) if own and args else []
        named = tuple(own.get(name, x) for name, x in zip(names, args))
        return (*named, *args[len(named) :]), {name: own.get(name, x) for name, x in kwargs.items()}

    def after(self, returned: Any) -> None:
        outputs = self.signature.answer(self.arguments, returned)
        self.answer = {key: stored(x, key).owned() for key, x in outputs.items()}
        if self.call.fixture is not None:
            self.answer |= self.signature.about(self.call.fixture.inputs["q"].dtype)
        self.recorder.pending.append(self)
        hooked = {LOSS[key]: x for key, x in outputs.items() if getattr(x, "requires_grad", False)}
        # What flows into an alias that was changed is not the gradient of what it was.
        changed = {key for key in self.waiting if self.aliases[key][1]._version != self.versions[key]}
        self.waiting -= changed
        missing = {"the kernel changed in place": sorted(changed),
                   "to_problem converts and to_kernel does not convert back": self.lost if hooked else []}  # fmt: skip
        said = [f"no gradient of what {why}: {', '.join(keys)}" for why, keys in missing.items() if keys]
        left = self.signature.left(self.arguments, returned)
        self.call.error = "; ".join([*said, *[f"not judged: {', '.join(left)}"] * bool(left)])
        nodes = _nodes_behind([x.grad_fn for x in hooked.values()], {self.aliases[key][1].grad_fn for key in self.waiting})
        reached = {key for key in self.waiting if self.aliases[key][1].grad_fn in nodes}
        if not reached:
            return self.finish()
        for key in self.waiting - reached:
            self.got_nothing(key)
        self.waiting = reached
        for name, x in hooked.items():
            if x._is_view() and x._base.requires_grad:
                x._base.register_hook(functools.partial(self.got_around, name))
        for name, x in {**hooked, **{f"d{key}": self.aliases[key][1] for key in self.waiting}}.items():
            hook = functools.partial(self.got, name)
            self.hooks.append(weakref.ref(hook))
            x.register_hook(hook)
        self.aliases, self.arguments = {}, {}  # the graph may go before its gradients come

    @property
    def is_gone(self) -> bool:
        """Whether the graph is: no gradients will come any more."""
        return bool(self.hooks) and all(hook() is None for hook in self.hooks)

    def got(self, name: str, gradient: Any) -> None:
        """A gradient came, or None where nothing flows; it goes on as it is. Those of a later pass belong to another
        loss."""
        if not self.is_open:
            return
        with self.recorder.timed(), self.recorder.noting(self.call):
            task = _backward_pass()
            if self.task not in (-1, task):
                return self.finish()
            self.task = task
            if gradient is not None:
                self.answer[name] = stored(self.converted(name[1:], gradient), name).owned()
            elif name not in LOSS.values():
                self.got_nothing(name[1:])
            self.waiting.discard(name[1:])
            if not self.waiting:
                self.finish()

    def converted(self, key: str, gradient: Any) -> Any:
        """The gradient of what the signature made of an argument, from that of the argument."""
        if key not in self.back:
            return gradient
        made, argument = self.back.pop(key)
        (found,) = sys.modules["torch"].autograd.grad(argument, made, gradient)
        return found.to(gradient.dtype)

    def got_around(self, name: str, gradient: Any) -> None:
        """Something flows to what an output is a view of. Where the view itself has nothing then, it was changed in
        place: it is another node of autograd since, and its hook is not called."""
        if gradient is not None:
            self.around.add(name)

    def got_nothing(self, key: str) -> None:
        """Nothing flows back to this input: its gradient is zero, and a kernel that forgets it is wrong."""
        if self.call.fixture is not None:
            x = self.call.fixture.inputs[key]
            self.answer[f"d{key}"] = Stored(np.zeros_like(x.data), x.dtype)

    def finish(self) -> None:
        if self in self.recorder.pending:
            self.is_open = False
            self.recorder.pending.remove(self)
            with self.recorder.noting(self.call):
                lost = sorted(self.around - set(self.answer))
                loss = {key: self.answer.pop(key) for key in LOSS.values() if key in self.answer}
                if lost and self.task != -1:
                    self.call.error = f"no gradients: {', '.join(lost)} did not come, of an output that is a view"
                if lost or not loss:
                    loss, self.answer = {}, {key: x for key, x in self.answer.items() if key not in GRADIENTS}
                if self.call.fixture is not None:
                    self.call.fixture.inputs.update(loss)
                self.recorder.complete(self.call, self.answer)
            self.aliases, self.arguments, self.answer, self.back = {}, {}, {}, {}


def _way_back(signature: Signature, words: Words, key: str, name: str, given: Any) -> dict[str, tuple[Any, Any]]:
    """What to_problem made of an argument, and the argument as to_kernel makes it of that, with its graph. Nothing where it
    makes another: then no gradient of the one says that of the other."""
    torch = sys.modules["torch"]
    plain = {word: x.detach() if torch.is_tensor(x) else x for word, x in words.items()}
    made = plain[key].clone().requires_grad_()
    try:
        with torch.enable_grad():
            found = signature.to_kernel({**plain, key: made})
        argument: Any = found.get(key, found.get(name))
        room = 8 * torch.finfo(given.dtype).eps
        leads = (torch.is_tensor(argument) and argument.requires_grad and made.numel() == given.numel()
                 and argument.shape == given.shape and argument.dtype == given.dtype
                 and torch.allclose(argument, given, room, room, equal_nan=True))  # fmt: skip
    except Exception:  # it is a program's own, for problems of verify
        leads = False
    return {key: (made, argument)} if leads else {}


def _nodes_behind(outputs: Sequence[Any], ends: Collection[Any]) -> set[Any]:
    """The nodes of autograd behind those of outputs, no further than `ends`."""
    found: set[Any] = set()
    left = list(outputs)
    while left:
        node = left.pop()
        if node is not None and node not in found:
            found.add(node)
            left += [] if node in ends else [behind for behind, _ in node.next_functions]
    return found


def _backward_pass() -> int:
    """A number of the backward pass that runs."""
    return int(getattr(sys.modules["torch"]._C, "_current_graph_task_id", int)())
