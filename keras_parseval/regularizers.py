"""The tight-frame constraint as a penalty."""

import keras
from keras import ops

from keras_parseval._validation import check_number
from keras_parseval.kernels import KernelLayout
from keras_parseval.projections import tight_frame_penalty


@keras.saving.register_keras_serializable(package="keras_parseval")
class TightFrameRegularizer(keras.regularizers.Regularizer):
    """The paper's penalty on kernels that are not tight frames, as a loss term.

    `R(W) = beta / 4 * scale**2 * ||W W^T / scale**2 - I||_F**2`, over the smaller
    of the two Gram matrices. Its gradient is `beta (W W^T W / scale**2 - W)`, so one
    gradient step of size 1 on `R` alone is the retraction of `kp.ParsevalTightFrame`.

    In training, the optimizer multiplies that step by the learning rate and, if adaptive,
    rescales it. The constraint does neither, and is the better choice where both can be used.

    Args:
        beta: Positive weight of the penalty.
        scale: As in `kp.ParsevalTightFrame`.
        groups: As in `kp.ParsevalTightFrame`.
        output_axis: As in `kp.ParsevalTightFrame`.

    Example:

    ```python
    keras.layers.Dense(64, kernel_regularizer=kp.TightFrameRegularizer(beta=0.1))
    ```
    """

    def __init__(self, beta, scale="auto", groups=1, output_axis=-1):
        self.beta = check_number("beta", beta, "a positive number", lambda value: value > 0)
        self.layout = KernelLayout(scale, groups, output_axis)

    def __call__(self, x):
        kernel = ops.convert_to_tensor(x)
        target = self.layout.target(tuple(kernel.shape))
        return tight_frame_penalty(self.layout.to_matrices(kernel), self.beta, target)

    def get_config(self):
        return {"beta": self.beta, **self.layout.get_config()}
