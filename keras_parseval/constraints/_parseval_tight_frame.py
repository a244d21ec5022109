"""The paper's constraint: kernels as matrices that are Parseval tight frames."""

import numbers
from typing import Any, Literal

import keras
from keras import ops

from keras_parseval._kernel_layout import Groups, HasLayout, Heads, KernelLayout, Scale
from keras_parseval._tight_frames import sampled_tight_frame_step, settle, tight_frame_step
from keras_parseval._validation import (
    check_beta,
    check_flag,
    check_integer,
    check_not_passed_as,
    check_number,
)

Steps = int | Literal["auto"]


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
        beta: Size of the step, in (0, 0.5]. The default, 0.5, corrects in full, so that the
            singular values stay at 1 whatever the optimizer does. Smaller values pull
            gently: 0.1 brings the values to 1 when the learning rate falls, and lets them be well
            above 1 while it is high; the paper's 3e-4 suits long schedules. Where a
            step would overshoot it is shortened, so no start and no learning
            rate makes it diverge. Defaults to 0.5.
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
        steps: Number of steps after each update. `"auto"` takes, with the default `beta`, as many
            as bring the singular values within about 2% of 1, at most 8: one after most
            updates, more where the learning rate is high. With a smaller `beta`, or a sample of
            rows, it is 1. Defaults to `"auto"`.
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
        beta: float = 0.5,
        *,
        rows: float | int = 1.0,
        unbiased: bool = False,
        steps: Steps = "auto",
        scale: Scale = "auto",
        groups: Groups = 1,
        axes: str = "...io",
        heads: Heads = None,
    ):
        self.beta = check_beta(beta)
        self.rows = _check_rows(rows)
        self.unbiased = check_flag("unbiased", unbiased)
        self.steps: Steps = _check_steps(steps)
        self.layout = KernelLayout(scale, groups, axes, heads)

    def __call__(self, w: Any) -> Any:
        check_not_passed_as("regularizer", self, w)
        kernel = ops.convert_to_tensor(w)
        shape = tuple(kernel.shape)
        matrices = self._move(self.layout.to_matrices(kernel), self.layout.target(shape))
        return self.layout.to_kernel(matrices, shape)

    def _move(self, matrices: Any, target: float) -> Any:
        everything = _count_rows(self.rows, min(matrices.shape[-2:])) == min(matrices.shape[-2:])
        if self.steps == "auto" and self.beta == 0.5 and everything:
            return settle(matrices, target)
        for _ in range(1 if self.steps == "auto" else self.steps):
            matrices = self._step(matrices, target)
        return matrices

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


def _check_steps(steps: Any) -> Steps:
    rule = 'a positive integer or "auto"'
    if isinstance(steps, str) and steps == "auto":
        return "auto"
    return check_integer("steps", steps, rule, lambda value: value > 0)


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
