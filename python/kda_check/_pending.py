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
from .signatures import TENSORS, Signature, Words

if TYPE_CHECKING:
    from .recorder import Call, Recorder


class Pending:
    """A call between its beginning and the last of its gradients."""

    def __init__(self, recorder: Recorder, call: Call, arguments: Words, words: Words) -> None:
        self.recorder, self.call, self.arguments = recorder, call, arguments
        self.answer: Words = {}
        self.is_open, self.task = True, -1
        self.hooks: list[weakref.ref[Any]] = []
        torch = sys.modules.get("torch")
        # What flows into an alias is the gradient of this call alone, not that of all uses of the tensor.
        self.aliases = {
            key: (words[key], words[key].view_as(words[key]))
            # The last first: autograd goes back in the other order, and adds up what flows into one tensor in that.
            for key in reversed(TENSORS)
            if torch is not None and torch.is_grad_enabled() and getattr(words.get(key), "requires_grad", False)
        }
        self.waiting = {key for key, (x, _) in self.aliases.items() if any(x is given for given in arguments.values())}
        self.versions = {key: self.aliases[key][1]._version for key in self.waiting}
        self.around: set[str] = set()

    def with_aliases(self, kernel: Any, signature: Signature, args: Any, kwargs: Words) -> tuple[tuple[Any, ...], Words]:
        def alias(word: str, given: Any) -> Any:  # by name: q and k may be one tensor
            x, own = self.aliases.get(signature.words.get(word, word), (None, None))
            return own if x is given and x is not None else given

        names = list(inspect.signature(kernel).parameters) if self.aliases and args else []
        named = tuple(alias(word, x) for word, x in zip(names, args))
        return (*named, *args[len(named) :]), {key: alias(key, x) for key, x in kwargs.items()}

    def after(self, signature: Signature, returned: Any) -> None:
        outputs = signature.answer(self.arguments, returned)
        self.answer = {key: stored(x, key).owned() for key, x in outputs.items()}
        if self.call.fixture is not None:
            self.answer |= signature.about(self.call.fixture.inputs["q"].dtype)
        self.recorder.pending.append(self)
        hooked = {LOSS[key]: x for key, x in outputs.items() if getattr(x, "requires_grad", False)}
        changed = {key for key in self.waiting if self.aliases[key][1]._version != self.versions[key]}
        if changed:  # what flows into an alias now is not the gradient of what it was
            self.call.error = f"no gradient of what the kernel changed in place: {', '.join(sorted(changed))}"
            self.waiting -= changed
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
                self.answer[name] = stored(gradient, name).owned()
            elif name not in LOSS.values():
                self.got_nothing(name[1:])
            self.waiting.discard(name[1:])
            if not self.waiting:
                self.finish()

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
            self.aliases, self.arguments, self.answer = {}, {}, {}


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
