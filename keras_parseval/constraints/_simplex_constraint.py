"""The constraint of coefficients that sum to 1."""

from typing import Any

import keras

from keras_parseval._simplex import project_simplex
from keras_parseval._validation import check_floor, check_integer, check_not_passed_as


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
