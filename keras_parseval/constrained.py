"""Kernels that take the constraint: how it is put on them, and where it does not fit."""

from keras_parseval.constraints import ParsevalTightFrame


def constrain_kernel(kernel, **options):
    """Put a `kp.ParsevalTightFrame` on a kernel of a layer that is not built yet.

    Args:
        kernel: A `LayerKernel`.
        **options: Arguments of `kp.ParsevalTightFrame`, without those of the layout.
    """
    constraint = ParsevalTightFrame(**options, **kernel.layout.get_config())
    setattr(kernel.layer, f"{kernel.prefix}_constraint", constraint)


def check_rows_fit(rows, kernels):
    """Refuse a count of rows that would fail for one of the kernels in the first training step.

    Args:
        rows: The argument of `kp.ParsevalTightFrame`.
        kernels: List of `LayerKernel`, of layers that are built.
    """
    for kernel in kernels if not isinstance(rows, float) else ():
        units = min(kernel.layout.matrices_shape(tuple(kernel.variable.shape))[-2:])
        if rows > units:
            raise ValueError(
                "`rows` must not exceed the units of any kernel (or of one of its groups); give a "
                f"fraction, which adapts to each. Received: rows={rows}, and the layer "
                f"'{kernel.layer.name}' with {units} units"
            )
