"""The paper's constraint: kernels as matrices that are Parseval tight frames."""

import numbers
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_parseval._kernel_layout import Groups, HasLayout, Heads, KernelLayout, Scale
from keras_parseval._subspace_steps import hold
from keras_parseval._tight_frames import sampled_tight_frame_step, settle, tight_frame_step
from keras_parseval._validation import (
    Rows,
    Steps,
    check_beta,
    check_flag,
    check_integer,
    check_not_passed_as,
    check_number,
    check_steps,
)

# As many units of a matrix as are held at a cost that hardly counts. A convolution is used at many
# places of an image, next to which a step costs little at any width.
_FREE = 256
# From this `beta` on, the singular values are held, by more steps where one is not enough.
_HOLDS = 0.25


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
        beta: Size of the step, in (0, 0.5]. With the default, and where all units take part,
            the singular values stay within a few percent of 1 whatever the optimizer
            does, and come to 1 when the learning rate falls. 0.5 corrects in full after every
            update. Values below 0.25 pull gently: 0.1 lets the singular values be
            well above 1 while the rate is high; the paper's 3e-4 suits long schedules. Where a
            step would overshoot it is shortened, so no start and no learning
            rate makes it diverge. Defaults to 0.25.
        rows: How many output units take part in each step. `"auto"` takes all where that costs
            little: in convolutions, and in kernels of no more than 256 units. A wider kernel is
            corrected in the 64 directions in which it has drifted furthest at one of 16 updates,
            on average, or of eight if it has drifted far; and in full at one of as many as it has
            times 8 units. `beta` is larger to make up for the others, 0.5 at most. That is
            about a tenth of the training step at any width. While the learning rate is high, the
            largest singular value can be well above 1, such as 2; 1.0 holds it at all times,
            at the full cost. Or a fraction (float) in
            (0, 1], or a count (int) of at least 2, drawn at random each time. The cost of a step
            falls with its square. Kernels with no fewer outputs than inputs are sampled on the side
            of the inputs, each group of a grouped convolution separately. A fraction stands for 2
            units at least. Defaults to `"auto"`.
        unbiased: If true, `beta` is raised (to 0.5 at most) to make up for the
            pairs of units that a sample of a given size leaves out, so that a small
            sample keeps the kernel as tight as the full step would. The paper keeps `beta` as it
            is. Defaults to `False`.
        steps: Number of steps after each update. `"auto"` takes, with a `beta` of 0.25 or more, as
            many as bring the singular values within 5% of 1, at most 8: one after most
            updates, and full ones after it where the learning rate is high. With a smaller `beta`,
            or a sample of rows, it is 1. Defaults to `"auto"`.
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
        beta: float = 0.25,
        *,
        rows: Rows = "auto",
        unbiased: bool = False,
        steps: Steps = "auto",
        scale: Scale = "auto",
        groups: Groups = 1,
        axes: str = "...io",
        heads: Heads = None,
    ):
        self.beta = check_beta(beta)
        self.rows: Rows = _check_rows(rows)
        self.unbiased = check_flag("unbiased", unbiased)
        self.steps: Steps = check_steps(steps)
        self.layout = KernelLayout(scale, groups, axes, heads)

    def __call__(self, w: Any) -> Any:
        check_not_passed_as("regularizer", self, w)
        kernel = ops.convert_to_tensor(w)
        shape = tuple(kernel.shape)
        matrices = self._move(self.layout.to_matrices(kernel), shape)
        return self.layout.to_kernel(matrices, shape)

    def _move(self, matrices: Any, shape: tuple[int, ...]) -> Any:
        beta, target, units = self.beta, self.layout.target(shape), min(matrices.shape[-2:])
        if self.rows == "auto" and units > _FREE and "." not in self.layout.roles(shape):
            return self._repeat(lambda each: hold(each, beta, target), matrices)
        count = self._count_rows(units)
        if count < units:
            sample = (beta, count, target, self.unbiased)
            return self._repeat(lambda each: sampled_tight_frame_step(each, *sample), matrices)
        if self.steps == "auto" and beta >= _HOLDS:
            return settle(matrices, beta, target)
        return self._repeat(lambda each: tight_frame_step(each, beta, target), matrices)

    def _repeat(self, step: Callable[[Any], Any], matrices: Any) -> Any:
        for _ in range(1 if self.steps == "auto" else self.steps):
            matrices = step(matrices)
        return matrices

    def _count_rows(self, units: int) -> int:
        """The number of rows to draw from matrices whose shorter side is `units`."""
        rows = self.rows
        if rows == "auto":
            return units
        if isinstance(rows, float):
            return min(units, max(2, round(rows * units)))
        if rows > units:
            raise ValueError(
                f"`rows` must not exceed the number of units, here {units}: the outputs of the "
                "kernel (or of one of its groups), or its inputs where these are fewer. Give a "
                f"fraction to adapt to every kernel. Received: rows={rows}"
            )
        return rows

    def get_config(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in ("beta", "rows", "unbiased", "steps")}
        return own | self.layout.get_config()


def _check_rows(rows: Any) -> Rows:
    rule = (
        '"auto", a fraction (float) in the interval (0, 1], or a count (int) of at least 2, '
        "because one unit alone is never made orthogonal to another; 1.0 stands for all units"
    )
    if isinstance(rows, str) and rows == "auto":
        return "auto"
    if isinstance(rows, numbers.Integral):
        return check_integer("rows", rows, rule, lambda value: value >= 2)
    return check_number("rows", rows, rule, lambda value: 0 < value <= 1)
