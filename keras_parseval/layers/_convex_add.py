"""A sum whose Lipschitz constant is that of its largest part."""

from typing import Any

import keras
from keras import ops

from keras_parseval._simplex import project_simplex
from keras_parseval._validation import check_floor
from keras_parseval.constraints import Simplex


@keras.saving.register_keras_serializable(package="keras_parseval")
class ConvexAdd(keras.layers.Layer):
    """Adds a list of inputs with learned coefficients that are non-negative and sum to 1.

    Where `keras.layers.Add` lets the Lipschitz constant of a residual network
    double at every block, a convex combination never exceeds the largest of its inputs'.
    The coefficients are equal at the start and are projected onto the simplex
    (`kp.Simplex`) after every update. At a high learning rate one of them would soon reach
    zero, and its branch would learn nothing from then on: hence the floor.

    All inputs must have the same shape. Unlike `Add`, there is no broadcasting:
    to repeat an input is to scale its norm, and the combination would no longer be 1-Lipschitz.

    Args:
        floor: No coefficient of `n` falls below `floor / n`, so that no branch dies. The
            paper's is 0. Defaults to 0.1.
        coefficients_initializer: Initializer of the coefficients. What it
            gives is projected onto the simplex, so that any constant means
            equal coefficients. Defaults to `"ones"`.
        **kwargs: Name, dtype and other arguments of a Keras layer.

    Attributes:
        coefficients: The coefficients, a variable of shape
            `(number of inputs,)`; `None` until the layer is built.

    Example:

    ```python
    shortcut = keras.Input((8, 8, 16))
    branch = keras.layers.Conv2D(16, 3, padding="same")(shortcut)
    outputs = kp.ConvexAdd()([branch, shortcut])
    ```
    """

    def __init__(
        self, *, floor: float = 0.1, coefficients_initializer: Any = "ones", **kwargs: Any
    ):
        super().__init__(**kwargs)
        self.floor = check_floor(floor)
        self.coefficients_initializer = keras.initializers.get(coefficients_initializer)
        self.coefficients = None
        self.supports_masking = True

    def build(self, input_shape: Any) -> None:
        _merge_shapes(input_shape)
        self.coefficients = self.add_weight(
            shape=(len(input_shape),),
            initializer=self._initial_coefficients,
            constraint=Simplex(floor=self.floor),
            name="coefficients",
        )

    def _initial_coefficients(self, shape: Any, dtype: Any = None) -> Any:
        return project_simplex(self.coefficients_initializer(shape, dtype=dtype), floor=self.floor)

    def call(self, inputs: Any) -> Any:
        shapes = keras.tree.map_structure(lambda x: tuple(x.shape), inputs)
        _merge_shapes(shapes)
        coefficients = ops.convert_to_tensor(self.coefficients)
        if len(inputs) != coefficients.shape[0]:
            raise ValueError(
                "`ConvexAdd` must be called on as many inputs as it was built for, here "
                f"{coefficients.shape[0]}; make a new layer for another number. "
                f"Received: {len(inputs)} inputs, of shapes {shapes}"
            )
        return sum(coefficients[index] * x for index, x in enumerate(inputs))

    def compute_output_shape(self, input_shape: Any) -> Any:
        return _merge_shapes(input_shape)

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        # As in Keras's own merge layers, a step counts if any input has it.
        if mask is None or any(each is None for each in mask):
            return None
        merged, *others = mask
        for other in others:
            merged = ops.logical_or(merged, other)
        return merged

    def get_config(self) -> dict[str, Any]:
        initializer = keras.initializers.serialize(self.coefficients_initializer)
        arguments = {"floor": self.floor, "coefficients_initializer": initializer}
        return {**super().get_config(), **arguments}


def convex_add(inputs: list[Any], **kwargs: Any) -> Any:
    """Functional interface to `kp.ConvexAdd`, as `keras.layers.add` is to `Add`.

    Args:
        inputs: A list of at least two tensors of the same shape.
        **kwargs: Arguments of `kp.ConvexAdd`.

    Returns:
        The convex combination of the inputs.

    Example:

    ```python
    first, second = keras.Input((8,)), keras.Input((8,))
    outputs = kp.layers.convex_add([first, second])
    ```
    """
    return ConvexAdd(**kwargs)(inputs)


def _merge_shapes(shapes: Any) -> tuple[int | None, ...]:
    """The common shape of all inputs; unknown dimensions take any size."""
    if not isinstance(shapes, (list, tuple)) or not all(
        isinstance(shape, (list, tuple)) for shape in shapes
    ):
        raise ValueError(
            "`ConvexAdd` must be called on a list of inputs, as in `ConvexAdd()([x, y])`. "
            f"Received: one input or another structure, of shape {shapes}"
        )
    if len(shapes) < 2:
        raise ValueError(
            "`ConvexAdd` must be called on at least two inputs; with one there is nothing to "
            f"combine. Received: {len(shapes)} input(s), of shapes {shapes}"
        )
    merged = list(shapes[0])
    for shape in shapes[1:]:
        sizes = [{size, other} - {None} for size, other in zip(merged, shape)]
        if len(shape) != len(merged) or any(len(size) > 1 for size in sizes):
            raise ValueError(
                "`ConvexAdd` must be called on inputs of the same shape; it does not broadcast, "
                "which would break its Lipschitz bound. Project or repeat the smaller input "
                f"first. Received: shapes {[tuple(each) for each in shapes]}"
            )
        merged = [size.pop() if size else None for size in sizes]
    return tuple(merged)
