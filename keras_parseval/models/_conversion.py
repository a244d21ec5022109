"""Any functional or Sequential model, made into its Parseval counterpart."""

import collections
import warnings
from typing import Any, Literal

from keras_parseval._kernel_readings import Convolutions
from keras_parseval._layer_kernels import (
    LayerKernel,
    check_rows_fit,
    check_strength,
    kernels_inside,
)
from keras_parseval._nearest_frames import nearest_frames
from keras_parseval._progress import Progress, Verbose, check_verbose
from keras_parseval._validation import Rows, check_choice
from keras_parseval.constraints import (
    ParsevalConvolution,
    project_tight_convolution,
)
from keras_parseval.initializers import TightConvolution, TightFrame
from keras_parseval.models._cloning import clone_with_changes
from keras_parseval.models._conversion_plan import Decision, decide
from keras_parseval.models._conversion_summary import remarks_on, summary_of

_STARTS = ("project", "random", None)


def parseval(
    model: Any,
    *,
    beta: float | None = None,
    rows: Rows = "auto",
    unbiased: bool = False,
    convolutions: Convolutions = "kernel",
    merge: bool = True,
    init: Literal["project", "random"] | None = "project",
    skip: Any = (),
    verbose: Verbose = "auto",
) -> Any:
    """The Parseval counterpart of any functional or Sequential model, nested models included.

    A clone of the model, with the same names and weights, in which
    `kp.ParsevalTightFrame` constrains the kernels of all hidden Dense, EinsumDense, convolution,
    attention and recurrent layers (`kp.ParsevalConvolution` those of convolutions, on request).
    Each is read in its own way: grouped, depthwise, separable and transposed convolutions with
    their strides considered, attention with its heads, recurrent layers gate by gate, their
    recurrent kernels included. And in which `kp.ConvexAdd` takes the place of `keras.layers.Add`.
    L1 and L2 regularizers of the constrained kernels are dropped, because they pull against the
    constraint.

    Left alone are the classifiers, which are the layers after which only
    activations, reshapes and global averages follow; what is frozen, because a constraint acts only
    on weights that are updated; kernels that have another constraint; sums that broadcast; and
    everything else. What then still multiplies the Lipschitz bound is said in numbers: batch
    and layer normalisations, concatenations, plain sums.

    A functional model of a class of its own keeps it if its constructor takes `inputs`,
    `outputs` and `name`. If not, as in keras-hub, its counterpart is a plain functional model, and
    the summary says what is lost. With `verbose=0`, a warning still says if that changes how it
    trains or predicts, or if nothing was constrained.

    Args:
        model: A functional or Sequential model that knows its input shape. It
            is not changed.
        beta: See `kp.ParsevalTightFrame`, as for `rows` and `unbiased`. Defaults to `None`, the
            default of the constraint.
        rows: How many output units take part in each step. A count must suit
            every kernel; a fraction always does. Defaults to `"auto"`.
        unbiased: Whether `beta` makes up for the rows left out. Defaults to `False`.
        convolutions: `"kernel"` makes the flattened kernels of convolutions tight, as the paper
            does. `"operator"` makes the convolutions themselves tight, with
            `kp.ParsevalConvolution`, so that they keep their signal; depthwise ones cannot be.
            Defaults to `"kernel"`.
        merge: Whether sums become convex. A convex sum of two starts
            as their average, so that it halves what the sum returned. Defaults to `True`.
        init: `"project"` moves each trained kernel to the nearest tight frame,
            `"random"` draws a new one, and `None` keeps the kernels as they are,
            for the constraint to pull. A convolution is moved as near to a tight one as it gets,
            which for trained kernels with as many outputs as inputs can be far from tight: the
            summary says what was reached, and `"random"` is always tight.
            Defaults to `"project"`.
        skip: What to leave alone: names of layers or nested models, as
            patterns such as `"block1_*"` or `"backbone/conv?"`; or classes of layers.
            Defaults to `()`.
        verbose: 1 or `"auto"` to print what was changed and what was not, and why, with a progress
            bar on the way (`"auto"`: if it takes more than five seconds); 0 for
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
    constraint_options = check_strength(beta, rows, unbiased)
    check_choice("init", init, _STARTS)
    check_verbose(verbose)
    decisions = decide(model, merge, skip, convolutions)
    changes: dict[Any, list[Decision]] = collections.defaultdict(list)
    for decision in decisions:
        if decision.becomes is not None:
            changes[decision.layer].append(decision)
    check_rows_fit(rows, [each.kernel for each in decisions if each.kernel and each.becomes])
    clones = clone_with_changes(model, changes, constraint_options)
    counterpart = clones[model]
    if init:
        weights = [(each.layer, each.weight) for each in decisions if each.weight and each.becomes]
        progress = Progress(len(weights), verbose)
        for layer, weight in weights:
            _start_on_the_set(kernels_inside(clones[layer])[weight], init)
            progress.advance()
    remarks = remarks_on(model, clones, decisions)
    if verbose:
        print(summary_of(counterpart, decisions, remarks))
    for remark in remarks:
        # What may be a mistake is said in any case.
        if remark.serious and not verbose:
            warnings.warn(remark.sentence, stacklevel=2)
    return counterpart


def parseval_plan(
    model: Any, *, convolutions: Convolutions = "kernel", merge: bool = True, skip: Any = ()
) -> list[dict[str, Any]]:
    """What `kp.parseval` changes in a model, what it leaves alone, and why.

    Args:
        model: A functional or Sequential model that knows its input shape.
        convolutions: As in `kp.parseval`. Defaults to `"kernel"`.
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
    return [decision.to_row() for decision in decide(model, merge, skip, convolutions)]


def _start_on_the_set(kernel: LayerKernel, init: str) -> None:
    variable, constraint = kernel.variable, kernel.constraint
    shape, options = tuple(variable.shape), constraint.layout.get_config()
    convolution = isinstance(constraint, ParsevalConvolution)
    if init == "random":
        initializer = (TightConvolution if convolution else TightFrame)(**options)
        variable.assign(initializer(shape, variable.dtype))
    elif convolution:
        variable.assign(project_tight_convolution(variable, **options))
    else:
        layout = constraint.layout
        frames = nearest_frames(layout.to_matrices(variable), layout.target(shape))
        variable.assign(layout.to_kernel(frames, shape))
