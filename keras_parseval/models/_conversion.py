"""Any functional or Sequential model, made into its Parseval counterpart."""

import collections
import contextlib
from typing import Any, Literal

import keras

from keras_parseval._keras_internals import is_graph, lineages_of
from keras_parseval._layer_kernels import (
    LayerKernel,
    check_rows_fit,
    constrain_kernel,
    layer_kernels,
)
from keras_parseval._lending import give, lend
from keras_parseval._progress import Verbose, check_verbose
from keras_parseval._tight_frames import project_tight_frame
from keras_parseval._validation import check_choice
from keras_parseval.constraints import ParsevalTightFrame
from keras_parseval.initializers import TightFrame
from keras_parseval.layers import ConvexAdd
from keras_parseval.models._conversion_plan import Decision, decide, norm_penalty, summary_of

_STARTS = ("project", "random", None)


def parseval(
    model: Any,
    *,
    beta: float = 0.1,
    rows: float | int = 1.0,
    unbiased: bool = False,
    merge: bool = True,
    init: Literal["project", "random"] | None = "project",
    skip: Any = (),
    verbose: Verbose = "auto",
) -> Any:
    """The Parseval counterpart of any functional or Sequential model, nested models included.

    A clone of the model, with the same names and weights, in which
    `kp.ParsevalTightFrame` constrains the kernels of all hidden Dense, EinsumDense (by a matrix)
    and convolution layers, grouped, depthwise, separable and transposed ones
    included, each read in its own way and with its strides considered; and in which
    `kp.ConvexAdd` takes the place of `keras.layers.Add`. L1 and L2 regularizers of the
    constrained kernels are dropped, because they pull against the constraint.

    Left alone are the classifiers, which are the layers after which only
    activations, reshapes and global averages follow; kernels that have another constraint; sums
    that broadcast; and everything else. Batch normalisation stays as well, and
    with it the reason why a network that has it keeps no bound.

    Args:
        model: A functional or Sequential model that knows its input shape. It
            is not changed.
        beta: See `kp.ParsevalTightFrame`, as for `rows` and `unbiased`. Defaults to 0.1.
        rows: How many output units take part in each step. A count must suit
            every kernel; a fraction always does. Defaults to 1.0, all.
        unbiased: Whether `beta` makes up for the rows left out. Defaults to `False`.
        merge: Whether sums become convex. A convex sum of two starts
            as their average, so that it halves what the sum returned. Defaults to `True`.
        init: `"project"` moves each trained kernel to the nearest tight frame,
            `"random"` draws a new one, and `None` keeps the kernels as they are,
            for the constraint to pull. Defaults to `"project"`.
        skip: What to leave alone: names of layers or nested models, as
            patterns such as `"block1_*"` or `"backbone/conv?"`; or classes of layers.
            Defaults to `()`.
        verbose: 1 or `"auto"` to print what was changed and what was not, and why; 0 for
            silence. `kp.parseval_plan` returns the same as data. Defaults to `"auto"`.

    Returns:
        A new model, uncompiled.

    Example:

    ```python
    layers = [keras.layers.Dense(16, "relu", name=f"hidden{i}") for i in range(3)]
    model = keras.Sequential([keras.Input((8,)), *layers, keras.layers.Dense(3)])
    robust = kp.parseval(model, skip="hidden2")
    ```
    """
    constraint_options: dict[str, Any] = {"beta": beta, "rows": rows, "unbiased": unbiased}
    ParsevalTightFrame(**constraint_options)
    check_choice("init", init, _STARTS)
    check_verbose(verbose)
    decisions = decide(model, merge, skip)
    changes: dict[Any, list[Decision]] = collections.defaultdict(list)
    for decision in decisions:
        if decision.becomes is not None:
            changes[decision.layer].append(decision)
    check_rows_fit(rows, [each.kernel for each in decisions if each.kernel and each.becomes])
    clones: list[tuple[Any, Any]] = []

    def clone_layer(layer: Any) -> Any:
        # Before 3.14, Keras does not itself look into the models inside a Sequential one.
        if is_graph(layer):
            return keras.models.clone_model(layer, clone_function=clone_layer, recursive=True)
        clones.append((layer, _convert(layer, changes[layer], constraint_options)))
        return clones[-1][1]

    with _uncompiled(model):
        counterpart = keras.models.clone_model(model, clone_function=clone_layer, recursive=True)
    _check_class_is_kept(model, counterpart)
    for layer, clone in clones:
        _carry_weights(layer, clone)
        for decision in changes[layer]:
            _start_on_the_frame(clone, decision.kernel, init)
    if verbose:
        print(summary_of(model, decisions))
    return counterpart


def parseval_plan(model: Any, *, merge: bool = True, skip: Any = ()) -> list[dict[str, Any]]:
    """What `kp.parseval` changes in a model, what it leaves alone, and why.

    Args:
        model: A functional or Sequential model that knows its input shape.
        merge: As in `kp.parseval`. Defaults to `True`.
        skip: As in `kp.parseval`. Defaults to `()`.

    Returns:
        List of dictionaries, one for each kernel and sum: `layer` (its name,
        after those of the models around it), `class`, `weight`, `becomes` (what is put there, or
        `None`) and `note` (the reason, where there is one). It is what `pandas.DataFrame` takes.

    Example:

    ```python
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4), keras.layers.Dense(3)])
    [row["becomes"] for row in kp.parseval_plan(model)]  # ["ParsevalTightFrame", None]
    ```
    """
    return [decision.to_row() for decision in decide(model, merge, skip)]


def _check_class_is_kept(model: Any, counterpart: Any) -> None:
    # Keras clones these as plain functional models, without their own `train_step` and the like.
    if type(counterpart) is not type(model):
        raise ValueError(
            "A functional model of a class of its own must take `inputs`, `outputs` and `name` in "
            "its constructor, or Keras cannot clone it; convert "
            "`keras.Model(model.inputs, model.outputs)`. "
            f"Received: '{model.name}' of type {type(model).__name__}"
        )


def _convert(layer: Any, changes: list[Decision], constraint_options: dict[str, Any]) -> Any:
    """A clone of one layer, not built yet, with its changes made."""
    config = layer.get_config()
    if any(change.becomes is ConvexAdd for change in changes):
        return ConvexAdd.from_config(config)
    clone = type(layer).from_config(config)
    constrained = {change.kernel.attribute for change in changes if change.kernel}
    for kernel in layer_kernels(clone):
        if kernel.attribute in constrained:
            constrain_kernel(kernel, **constraint_options)
            if norm_penalty(kernel):
                give(clone, **{f"{kernel.prefix}_regularizer": None})
    return clone


def _carry_weights(layer: Any, clone: Any) -> None:
    if type(clone) is not type(layer) or not isinstance(layer, keras.layers.Layer):
        return
    clone.set_weights(layer.get_weights())
    # Preprocessing layers compute with values that they derive from their weights.
    if hasattr(clone, "finalize_state"):
        clone.finalize_state()


def _start_on_the_frame(clone: Any, kernel: LayerKernel | None, init: str | None) -> None:
    if kernel is None or init is None:
        return
    variable, layout = getattr(clone, kernel.attribute), kernel.layout
    shape = tuple(variable.shape)
    if init == "random":
        variable.assign(TightFrame(**layout.get_config())(shape, variable.dtype))
    else:
        frames = project_tight_frame(layout.to_matrices(variable), layout.target(shape))
        variable.assign(layout.to_kernel(frames, shape))


def _uncompiled(model: Any) -> contextlib.ExitStack:
    """Keep Keras from compiling the clone, which fails for losses that it cannot deserialize."""
    models = [model, *(lineage[-1] for lineage in lineages_of(model) if is_graph(lineage[-1]))]
    loans = contextlib.ExitStack()
    for each in models:
        if each.compiled:
            loans.enter_context(lend(each, compiled=False))
    return loans
