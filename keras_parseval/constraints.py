"""Constraints on weights, applied by Keras after every update."""

import numbers
from typing import Any

import keras
from keras import ops

from keras_parseval._kernel_layout import Groups, HasLayout, Heads, KernelLayout, Scale
from keras_parseval._simplex import project_simplex
from keras_parseval._tight_frames import (
    project_tight_frame,
    sampled_tight_frame_step,
    tight_frame_step,
)
from keras_parseval._validation import (
    check_beta,
    check_flag,
    check_floor,
    check_integer,
    check_not_passed_as,
    check_number,
)
from keras_parseval.initializers import TightFrame

__all__ = [
    "ParsevalTightFrame",
    "Simplex",
    "project_simplex",
    "project_tight_frame",
    "sampled_tight_frame_step",
    "tight_frame",
    "tight_frame_step",
]


@keras.saving.register_keras_serializable(package="keras_parseval")
class ParsevalTightFrame(HasLayout, keras.constraints.Constraint):
    """Keeps a kernel close to a Parseval tight frame, so that its layer is 1-Lipschitz.

    After every update of the weights, the kernel, read as a matrix `W` with one
    row for each output unit, takes a step towards orthonormal rows (or columns,
    where there are more outputs than inputs):
    `W <- (1 + beta) W - beta W W^T W`. All singular values of `W` are
    drawn to 1, and with them the layer's Lipschitz constant in the 2-norm. Those of
    convolutions are drawn to `prod(kernel_size)**-0.5`, which has the same
    effect on the layer. A convolution's kernel becomes tight as a flattened matrix: enough for
    Lipschitz constant 1, but not an orthogonal convolution.

    A constraint acts after the first update: start on the frame, with
    `kernel_initializer=kp.TightFrame()`. Leave the classifier, the last layer,
    unconstrained and give it weight decay.

    Args:
        beta: Size of the step, in (0, 0.5]. 0.1 keeps the singular values near 1,
            brings them to 1 when the learning rate falls, and cost little accuracy in the
            trials of the results page. While the rate is high they can be well above 1:
            0.5 and several `steps` hold them closer. The
            paper's 3e-4 corrects slowly and suits long schedules. Where a
            step would overshoot it is shortened, so no start and no learning
            rate makes it diverge. Defaults to 0.1.
        rows: How many output units take part in each step, drawn at random
            each time: a fraction (float) in (0, 1], or a count (int) of at least
            2. The cost of a step falls with its square. Kernels with no fewer
            outputs than inputs are sampled on the side of the inputs, each
            group of a grouped convolution separately. A fraction stands for 2
            units at least. Defaults to 1.0, all units.
        unbiased: If true, `beta` is raised (to 0.5 at most) to make up for the
            pairs of units that a sample leaves out, so that a small
            sample keeps the kernel as tight as the full step would. This is
            the cheap mode; the paper keeps `beta` as it is. Defaults to `False`.
        steps: Number of steps after each update. Defaults to 1.
        scale: The singular value to aim at: `"auto"`, as above, or a positive
            number. `prod(ceil(kernel_size / strides))**-0.5` is enough for a
            convolution with strides. Defaults to `"auto"`.
        groups: Into how many matrices the outputs are split: the `groups` argument of the
            convolution, or the gates of a recurrent layer, 4 for both kernels of an `LSTM` and 3
            for those of a `GRU`. Or `"depthwise"` for the depthwise kernel of `DepthwiseConv2D`
            or `SeparableConv2D`. Defaults to 1.
        axes: What each axis of the kernel is, in a letter: `i` for inputs, `o` for outputs, `g`
            for groups (an independent matrix at each index), and `...` for the taps of a
            convolution. `"...oi"` is the kernel of `Conv2DTranspose` and its kin, `"ioo"` that of
            `EinsumDense("abc,cde->abde", ...)`. Defaults to `"...io"`, which is how Keras stores
            the kernels of `Dense` and of convolutions.
        heads: For `MultiHeadAttention` and `GroupQueryAttention`, which give all their kernels
            the same constraint: the number of heads and the size of one, as in `(8, 64)`, or a
            list of such pairs where they differ between queries, keys and values. Each kernel is
            then read by its shape, `(inputs, *heads)` or `(*heads, outputs)`. Defaults to `None`.

    Example:

    ```python
    keras.layers.Conv2D(
        64,
        3,
        kernel_constraint=kp.ParsevalTightFrame(),
        kernel_initializer=kp.TightFrame(),
    )
    ```

    Reference:

    - [Cisse et al., 2017](https://arxiv.org/abs/1704.08847)
    """

    def __init__(
        self,
        beta: float = 0.1,
        *,
        rows: float | int = 1.0,
        unbiased: bool = False,
        steps: int = 1,
        scale: Scale = "auto",
        groups: Groups = 1,
        axes: str = "...io",
        heads: Heads = None,
    ):
        self.beta = check_beta(beta)
        self.rows = _check_rows(rows)
        self.unbiased = check_flag("unbiased", unbiased)
        self.steps = check_integer("steps", steps, "a positive integer", lambda value: value > 0)
        self.layout = KernelLayout(scale, groups, axes, heads)

    def __call__(self, w: Any) -> Any:
        check_not_passed_as("regularizer", self, w)
        kernel = ops.convert_to_tensor(w)
        shape = tuple(kernel.shape)
        matrices = self.layout.to_matrices(kernel)
        for _ in range(self.steps):
            matrices = self._step(matrices, self.layout.target(shape))
        return self.layout.to_kernel(matrices, shape)

    def _step(self, matrices: Any, target: float) -> Any:
        units = min(matrices.shape[-2:])
        count = _count_rows(self.rows, units)
        if count == units:
            return tight_frame_step(matrices, self.beta, target)
        return sampled_tight_frame_step(matrices, self.beta, count, target, self.unbiased)

    def get_config(self) -> dict[str, Any]:
        return {
            "beta": self.beta,
            "rows": self.rows,
            "unbiased": self.unbiased,
            "steps": self.steps,
            **self.layout.get_config(),
        }


def _check_rows(rows: Any) -> float | int:
    rule = (
        "a fraction (float) in the interval (0, 1], or a count (int) of at least 2, because "
        "one unit alone is never made orthogonal to another; 1.0 stands for all units"
    )
    if isinstance(rows, numbers.Integral):
        return check_integer("rows", rows, rule, lambda value: value >= 2)
    return check_number("rows", rows, rule, lambda value: 0 < value <= 1)


def _count_rows(rows: float | int, units: int) -> int:
    """The number of rows to draw from a matrix whose shorter side is `units`."""
    if isinstance(rows, float):
        return min(units, max(2, round(rows * units)))
    if rows > units:
        raise ValueError(
            f"`rows` must not exceed the number of units, here {units}: the outputs of the "
            "kernel (or of one of its groups), or its inputs where these are fewer. Give a "
            f"fraction to adapt to every kernel. Received: rows={rows}"
        )
    return rows


@keras.saving.register_keras_serializable(package="keras_parseval")
class Simplex(keras.constraints.Constraint):
    """Projects weights onto the simplex: non-negative, with sum 1.

    The exact Euclidean projection, see `kp.constraints.project_simplex`.

    Args:
        axis: The axis along which the weights sum to 1. Defaults to -1.
        floor: No weight of `n` falls below `floor / n`: with 0 any may vanish, and with 0.1
            each keeps a tenth of its equal share. In [0, 1). Defaults to 0.0.

    Example:

    ```python
    kp.Simplex()(keras.ops.array([0.8, 0.6, -1.0]))  # [0.6, 0.4, 0.0]
    ```
    """

    def __init__(self, axis: int = -1, *, floor: float = 0.0):
        self.axis = check_integer("axis", axis, "an integer", lambda value: True)
        self.floor = check_floor(floor)

    def __call__(self, w: Any) -> Any:
        check_not_passed_as("regularizer", self, w)
        return project_simplex(w, self.axis, self.floor)

    def get_config(self) -> dict[str, Any]:
        return {"axis": self.axis, "floor": self.floor}


def tight_frame(prefix: str = "kernel", *, seed: Any = None, **options: Any) -> dict[str, Any]:
    """Constraint and initializer of a layer in one call, with the same reading of the kernel.

    Args:
        prefix: What the layer calls the kernel: `"depthwise"`, `"pointwise"` or `"recurrent"` for
            layers with such kernels. Defaults to `"kernel"`.
        seed: As in `kp.TightFrame`. Defaults to `None`.
        **options: Arguments of `kp.ParsevalTightFrame`.

    Returns:
        A dictionary of arguments: `kernel_constraint`, a `kp.ParsevalTightFrame`, and
        `kernel_initializer`, a `kp.TightFrame`.

    Example:

    ```python
    keras.layers.Dense(64, **kp.tight_frame())
    keras.layers.Conv2D(64, 3, groups=4, **kp.tight_frame(beta=0.5, groups=4))
    keras.layers.DepthwiseConv2D(3, **kp.tight_frame("depthwise", groups="depthwise"))
    ```
    """
    if prefix not in ("kernel", "depthwise", "pointwise", "recurrent"):
        raise ValueError(
            '`prefix` must be what the layer calls its kernel: "kernel", "depthwise", "pointwise" '
            f'or "recurrent". Received: prefix={prefix!r}'
        )
    constraint = ParsevalTightFrame(**options)
    initializer = TightFrame(seed=seed, **constraint.layout.get_config())
    return {f"{prefix}_constraint": constraint, f"{prefix}_initializer": initializer}
