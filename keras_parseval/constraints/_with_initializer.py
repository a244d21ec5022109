"""Constraint and initializer of a layer from one call."""

from typing import Any

from keras_parseval.constraints._parseval_convolution import ParsevalConvolution
from keras_parseval.constraints._parseval_tight_frame import ParsevalTightFrame
from keras_parseval.initializers import TightConvolution, TightFrame


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


def tight_convolution(*, seed: Any = None, **options: Any) -> dict[str, Any]:
    """Constraint and initializer of a convolution that is a tight frame as an operator.

    Args:
        seed: As in `kp.TightConvolution`. Defaults to `None`.
        **options: Arguments of `kp.ParsevalConvolution`; `strides` and `groups` must be those of
            the layer.

    Returns:
        A dictionary of arguments: `kernel_constraint`, a `kp.ParsevalConvolution`, and
        `kernel_initializer`, a `kp.TightConvolution`.

    Example:

    ```python
    keras.layers.Conv2D(64, 3, padding="same", **kp.tight_convolution())
    keras.layers.Conv2D(64, 3, strides=2, **kp.tight_convolution(strides=2))
    ```
    """
    constraint = ParsevalConvolution(**options)
    initializer = TightConvolution(seed=seed, **constraint.layout.get_config())
    return {"kernel_constraint": constraint, "kernel_initializer": initializer}
