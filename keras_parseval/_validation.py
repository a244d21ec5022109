"""Argument checks shared by the public objects: the rule, the value received, the remedy."""

import math
import numbers
from collections.abc import Callable
from typing import Any, Literal

# What users may pass: the number may be 2, or infinity.
Norm = Literal["inf"] | float
# How many units take part in a step, and how many steps follow an update.
Rows = float | int | Literal["auto"]
Steps = int | Literal["auto"]


def check_number(name: str, value: Any, rule: str, accept: Callable[[float], bool]) -> float:
    """Return `value` as a float if it is a finite number for which `accept` holds.

    Args:
        name: The argument's name, as the user wrote it.
        value: What the user passed.
        rule: What `value` must be, to finish the sentence "`name` must be".
        accept: Function of a float that says whether the rule holds.
    """
    # A NumPy scalar is a number and a bool is not, whatever Python's own hierarchy says.
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(
            f"`{name}` must be {rule}. Received: {name}={value!r} of type {type(value).__name__}"
        )
    if not math.isfinite(value) or not accept(float(value)):
        raise ValueError(f"`{name}` must be {rule}. Received: {name}={value!r}")
    return float(value)


def check_integer(name: str, value: Any, rule: str, accept: Callable[[int], bool]) -> int:
    """Return `value` as an int if it is an integer for which `accept` holds."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(
            f"`{name}` must be {rule}. Received: {name}={value!r} of type {type(value).__name__}"
        )
    if not accept(int(value)):
        raise ValueError(f"`{name}` must be {rule}. Received: {name}={value!r}")
    return int(value)


def check_flag(name: str, value: Any) -> bool:
    """Return `value` if it is a bool."""
    if not isinstance(value, bool):
        raise TypeError(f"`{name}` must be True or False. Received: {name}={value!r}")
    return value


def check_beta(beta: Any) -> float:
    """Return the step size of the retraction as a float, or raise."""
    return check_number(
        "beta",
        beta,
        "a number in the interval (0, 0.5]: at 0.5 the retraction is the Newton-Schulz "
        "iteration, above it overshoots",
        lambda value: 0 < value <= 0.5,
    )


def check_steps(steps: Any) -> Steps:
    """Return the number of steps after each update, or "auto", or raise."""
    if isinstance(steps, str) and steps == "auto":
        return "auto"
    rule = 'a positive integer or "auto"'
    return check_integer("steps", steps, rule, lambda value: value > 0)


def check_scale(scale: Any) -> float:
    """Return the singular value to aim at as a float, or raise."""
    # Beyond these, its square or the kernel itself may be zero or infinite in half precision.
    rule = "a positive number, from 1e-4 to 1e4"
    return check_number("scale", scale, rule, lambda value: 1e-4 <= value <= 1e4)


def check_floor(floor: Any) -> float:
    """Return the share of its equal part that each coefficient keeps, as a float, or raise."""
    rule = "a number in [0, 1): the share of its equal part that each coefficient keeps"
    return check_number("floor", floor, rule, lambda value: 0 <= value < 1)


def check_norm(norm: Any) -> Literal["inf", 2]:
    """Return the norm as "inf" or 2, or raise."""
    number = isinstance(norm, numbers.Real) and not isinstance(norm, bool)
    if not (number and norm in (2, math.inf)) and not (isinstance(norm, str) and norm == "inf"):
        raise ValueError(f'`norm` must be "inf" or 2. Received: norm={norm!r}')
    return 2 if norm == 2 else "inf"


def check_not_passed_as(role: str, instance: Any, variable: Any) -> None:
    """Raise if Keras was given the object as something that it is not, as far as that can be told.

    Args:
        role: The attribute of a variable that holds what was given: `"regularizer"`, for instance.
        instance: The object.
        variable: What it is called on. Where that is a tensor, it tells nothing.
    """
    if getattr(variable, role, None) is instance:
        name = type(instance).__name__
        other = {"regularizer": "constraint", "constraint": "regularizer"}[role]
        raise TypeError(
            f"`{name}` must be passed as a {other}, as in `kernel_{other}={name}(...)`. "
            f"Received: it is the {role} of '{variable.path}'"
        )


def check_choice(name: str, value: Any, choices: tuple[Any, ...]) -> Any:
    """Return `value` if it is one of `choices`."""
    # By type as well: an array is equal to a choice here and there.
    if not any(type(value) is type(choice) and value == choice for choice in choices):
        listed = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"`{name}` must be one of {listed}. Received: {name}={value!r}")
    return value
