"""Lets `fit` call another training function, and gives the model its own back.

A callback of Keras never sees a batch. But `fit` looks the training function up for every batch, so
a callback can put another in its place before the batch begins.
"""

from collections.abc import Callable, Hashable
from typing import Any

from keras_parseval._backend import attack_outside_xla, keep_weights_on_error, wrap_train_step
from keras_parseval._lending import lend

Change = Callable[[Any], Any]
TrainFunction = Callable[..., Any]


class TrainFunctionSwap:
    """The training function of a model that changes each batch first, and how it comes and goes.

    Args:
        model: A compiled Keras model.
        owner: What swaps, for error messages: one at a time can do so for a model.
    """

    def __init__(self, model: Any, owner: Any):
        self.model, self.owner = model, owner
        # Unless it is compiled anew, a model keeps its function from one fit to the next.
        self._plain = model.train_function
        self._changed: Any = None

    def swap(self, key: Callable[[], Hashable], make_change: Callable[[], Change]) -> None:
        """From here on, the model trains on changed batches.

        Args:
            key: Returns what tells changes apart: one function is compiled for equal keys.
            make_change: Returns the function that changes the data of a step.
        """
        self._check_alone()
        if self.model.train_function not in (self._plain, self._changed):
            # Another callback has compiled the model anew.
            self._changed, self._plain = None, self.model.train_function
        if self._changed is None:
            self._changed = self._find(key(), make_change)
        self.model.train_function = self._changed
        # A fit that is interrupted calls no callback. But the next one begins with this call.
        self.model.make_train_function = self._heal

    def restore(self) -> None:
        """From here on, the model trains as it did before."""
        if self._changed is not None and self.model.train_function is self._changed:
            self.model.train_function = self._plain
        vars(self.model).pop("make_train_function", None)

    def _heal(self, force: bool = False) -> Any:
        self.restore()
        return self.model.make_train_function(force=force)

    def _check_alone(self) -> None:
        hook = vars(self.model).get("make_train_function")
        if hook is not None and hook != self._heal:
            raise ValueError(
                f"A model can be trained by one `{type(self.owner).__name__}` at a time; leave the "
                f"other out of the callbacks. Received: {hook.__self__.owner} beside {self.owner}"
            )

    def _find(self, key: Hashable, make_change: Callable[[], Change]) -> TrainFunction:
        """Compiled once for all swaps with the same key.

        It is kept with the plain function, and gone with it when the model is compiled anew.
        """
        functions = vars(self._plain).setdefault("changed_functions", {})
        if key not in functions:
            functions[key] = self._make(make_change())
        return functions[key]

    def _make(self, change: Change) -> TrainFunction:
        model = self.model
        changed_step = wrap_train_step(model, change)
        with lend(model, train_step=changed_step), attack_outside_xla(model):
            model.make_train_function(force=True)
        train_function = keep_weights_on_error(model, model.train_function)
        model.train_function = self._plain

        def changed_function(*args: Any) -> Any:
            # Backends look the step up when they trace it, or each time.
            with lend(model, train_step=changed_step):
                return train_function(*args)

        return changed_function
