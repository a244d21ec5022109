"""The constraint that makes convolutions tight frames as operators."""

from typing import Any

import keras
from keras import ops

from keras_parseval._convolution_frames import settle_convolution, tight_convolution_step
from keras_parseval._convolution_layout import ConvolutionLayout, HasConvolutionLayout, Strides
from keras_parseval._validation import Steps, check_beta, check_not_passed_as, check_steps


@keras.saving.register_keras_serializable(package="keras_parseval")
class ParsevalConvolution(HasConvolutionLayout, keras.constraints.Constraint):
    """Keeps a convolution close to a Parseval tight frame: it keeps the length of its signal.

    `kp.ParsevalTightFrame` makes the flattened kernel tight, which holds the
    Lipschitz constant of the layer at 1 and shrinks most of what passes through: deep networks of
    such layers lose their signal. This constraint makes the convolution itself
    the tight frame, so that all of its singular values are near 1, for every size of image. Deep
    networks train without batch normalisation, and their certificates are larger.

    After every update of the weights the kernel takes steps of the retraction
    `K <- K + beta (K - P[K * K^T * K])`, in which `*` composes convolutions and `P` keeps the taps
    of the kernel's own size: the paper's formula, with `W` the convolution. At
    the end of a training whose learning rate falls to zero, singular values are within 1 to 2%
    of 1. While the rate is high the largest can be a few percent above, so call
    `kp.tighten(model)` before you certify, and believe `kp.lipschitz_bound`, which is always right.

    Zero padding loses what leaves the image at its border; it never makes the layer expand.
    Start on the set, with `kernel_initializer=kp.TightConvolution()`: from other starts, square
    kernels above all, the steps may end elsewhere.

    Args:
        beta: Size of the step, in (0, 0.5]. Where a step would overshoot it is shortened, so no
            start and no learning rate makes it diverge. Defaults to 0.5.
        strides: The `strides` of the layer, an integer or one for each axis. A constraint sees the
            kernel alone, so it must be told. Defaults to 1.
        groups: The `groups` of the layer. Defaults to 1.
        steps: Number of steps after each update. `"auto"` takes, with the default `beta`, a second
            one where singular values may have been more than 4% off before the first, as they are
            while the learning rate is high. With a smaller `beta` it is 1. Defaults to `"auto"`.

    Dilation and padding make no difference. The kernel of a transposed convolution is read as the
    convolution that it transposes. Depthwise kernels are refused: the only tight ones are shifts.

    Example:

    ```python
    keras.layers.Conv2D(
        64,
        3,
        strides=2,
        kernel_constraint=kp.ParsevalConvolution(strides=2),
        kernel_initializer=kp.TightConvolution(strides=2),
    )
    ```
    """

    def __init__(
        self,
        beta: float = 0.5,
        *,
        strides: Strides = 1,
        groups: int = 1,
        steps: Steps = "auto",
    ):
        self.beta = check_beta(beta)
        self.layout = ConvolutionLayout(strides, groups)
        self.steps: Steps = check_steps(steps)

    def __call__(self, w: Any) -> Any:
        check_not_passed_as("regularizer", self, w)
        kernel = ops.convert_to_tensor(w)
        if self.steps == "auto" and self.beta == 0.5:
            return settle_convolution(kernel, self.layout, most=2)
        steps = 1 if self.steps == "auto" else self.steps
        return tight_convolution_step(kernel, self.beta, self.strides, self.groups, steps)

    def get_config(self) -> dict[str, Any]:
        return {"beta": self.beta, **self.layout.get_config(), "steps": self.steps}
