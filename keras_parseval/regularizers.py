"""The tight-frame constraint as a penalty."""

from typing import Any

import keras
from keras import ops

from keras_parseval._kernel_layout import Groups, HasLayout, Heads, KernelLayout, Scale
from keras_parseval._tight_frames import tight_frame_penalty
from keras_parseval._validation import check_not_passed_as, check_number

__all__ = ["TightFrameRegularizer"]


@keras.saving.register_keras_serializable(package="keras_parseval")
class TightFrameRegularizer(HasLayout, keras.regularizers.Regularizer):
    """The paper's penalty on kernels that are not tight frames, as a loss term.

    `R(W) = beta / 4 * scale**2 * ||W W^T / scale**2 - I||_F**2`, over the smaller
    of the two Gram matrices. Its gradient is `beta (W W^T W / scale**2 - W)`, so one
    gradient step of size 1 on `R` alone is the retraction of `kp.ParsevalTightFrame`.

    In training, the optimizer multiplies that step by the learning rate and, if adaptive,
    rescales it. The constraint does neither, and is the better choice where both can be used.

    Args:
        beta: Positive weight of the penalty.
        scale: As in `kp.ParsevalTightFrame`. Defaults to `"auto"`.
        groups: As in `kp.ParsevalTightFrame`. Defaults to 1.
        axes: As in `kp.ParsevalTightFrame`. Defaults to `"...io"`.
        heads: As in `kp.ParsevalTightFrame`. Defaults to `None`.

    Example:

    ```python
    keras.layers.Dense(64, kernel_regularizer=kp.TightFrameRegularizer(beta=0.1))
    ```
    """

    def __init__(
        self,
        beta: float,
        *,
        scale: Scale = "auto",
        groups: Groups = 1,
        axes: str = "...io",
        heads: Heads = None,
    ):
        self.beta = check_number("beta", beta, "a positive number", lambda value: value > 0)
        self.layout = KernelLayout(scale, groups, axes, heads)

    def __call__(self, x: Any) -> Any:
        check_not_passed_as("constraint", self, x)
        kernel = ops.convert_to_tensor(x)
        target = self.layout.target(tuple(kernel.shape))
        return tight_frame_penalty(self.layout.to_matrices(kernel), self.beta, target)

    def get_config(self) -> dict[str, Any]:
        return {"beta": self.beta, **self.layout.get_config()}
