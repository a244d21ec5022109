"""The tight-frame constraint as a penalty."""

from typing import Any

import keras
from keras import ops

from keras_parseval._kernel_layout import Groups, HasLayout, KernelLayout, Scale
from keras_parseval._tight_frames import tight_frame_penalty
from keras_parseval._validation import check_number

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
        output_axis: As in `kp.ParsevalTightFrame`. Defaults to -1.

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
        output_axis: int = -1,
    ):
        self.beta = check_number("beta", beta, "a positive number", lambda value: value > 0)
        self.layout = KernelLayout(scale, groups, output_axis)

    def __call__(self, x: Any) -> Any:
        kernel = ops.convert_to_tensor(x)
        target = self.layout.target(tuple(kernel.shape))
        return tight_frame_penalty(self.layout.to_matrices(kernel), self.beta, target)

    def get_config(self) -> dict[str, Any]:
        return {"beta": self.beta, **self.layout.get_config()}
