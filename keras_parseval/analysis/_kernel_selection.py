"""Which kernels of a layer or model are measured, and under which names."""

import collections
import dataclasses
import warnings
from collections.abc import Iterator
from typing import Any

import keras

from keras_parseval._final_layers import classifiers_of
from keras_parseval._keras_internals import layers_by_path
from keras_parseval._kernel_readings import misreading
from keras_parseval._layer_kernels import LayerKernel, is_parseval, kernels_inside, layer_kernels
from keras_parseval.constraints import ParsevalConvolution, ParsevalTightFrame


def named_kernels(layer_or_model: Any) -> dict[str, LayerKernel]:
    """All kernels that a layer or model holds, by name, or an error if there is none.

    Returns:
        Dictionary of `LayerKernel`.
    """
    if not isinstance(layer_or_model, keras.layers.Layer):
        raise TypeError(
            "Singular values are those of a Keras layer or model; for a matrix use "
            f"`numpy.linalg.svd`. Received: {layer_or_model!r}"
        )
    named: dict[str, LayerKernel] = {}
    layers = layers_by_path(layer_or_model)
    for path, layer in layers:
        _check_activity_regularizer(path, layer)
    for name, kernel in _walk_kernels(layers):
        _check_readable(kernel)
        if name in named:
            raise ValueError(
                "Layers must have names of their own, to be told apart; pass `name` to one "
                f"of them. Received: two layers named '{name}'"
            )
        named[name] = kernel
    if not named:
        raise ValueError(
            "There must be the kernel of a Dense, a convolution, an attention or recurrent layer, "
            "or an EinsumDense that multiplies by matrices. "
            f"Received: '{layer_or_model.name}' of type "
            f"{type(layer_or_model).__name__}, which has no kernel that is read as a matrix"
        )
    _warn_of_misreadings(named)
    return named


def measured_kernels(layer_or_model: Any, layers: Any) -> dict[str, LayerKernel]:
    """The kernels that are expected to be tight, or those of the given layers.

    Args:
        layer_or_model: A built Keras layer or model.
        layers: As in `select_kernels`, but that `None` stands for the kernels that are
            constrained, or else for all but the classifier's.

    Returns:
        Dictionary of `LayerKernel`.
    """
    named = select_kernels(layer_or_model, layers)
    if layers is not None:
        return named
    constrained = {name: kernel for name, kernel in named.items() if is_parseval(kernel)}
    final = {
        kernel.layer
        for classifier in classifiers_of(layer_or_model)
        for kernel in kernels_inside(classifier).values()
    }
    hidden = {name: kernel for name, kernel in named.items() if kernel.layer not in final}
    return constrained or hidden or named


def select_kernels(model: Any, layers: Any) -> dict[str, LayerKernel]:
    """Those of the kernels of a model that belong to the given layers.

    Args:
        model: A built Keras model.
        layers: `None` for all kernels; a layer or its name, or a list of such. A
            name stands for all kernels of the layer, and of those inside it.

    Returns:
        Dictionary of `LayerKernel`.
    """
    named = named_kernels(model)
    if layers is None:
        return named
    layers = list(layers) if isinstance(layers, (list, tuple)) else [layers]
    if not layers:
        raise ValueError("`layers` must name at least one layer, or be None. Received: layers=[]")
    paths = {id(layer): path for path, layer in layers_by_path(model)}
    selected: dict[str, LayerKernel] = {}
    for layer in layers:
        path = layer if isinstance(layer, str) else paths.get(id(layer))
        inside = {
            name: kernel
            for name, kernel in named.items()
            if path is not None and f"{name}/".startswith(f"{path}/")
        }
        if not inside:
            raise ValueError(
                "`layers` must name layers of the model that have a kernel read as a matrix, "
                f"among them {', '.join(named)}. Received: {layer!r}"
            )
        selected.update(inside)
    return selected


@dataclasses.dataclass(frozen=True)
class _ConstrainedWeight(LayerKernel):
    """A weight of a layer whose kernels are not known, which a constraint says how to read."""

    weight: Any

    @property
    def variable(self) -> Any:
        return self.weight

    @property
    def constraint(self) -> Any:
        return self.weight.constraint


def _walk_kernels(layers: list[tuple[str, Any]]) -> Iterator[tuple[str, LayerKernel]]:
    """Every kernel of the layers once, with its name, and all other constrained weights."""
    owners: set[int] = set()
    holders: dict[int, tuple[str, Any, Any]] = {}
    for path, layer in layers:
        # A recurrent layer comes before its cell, whose kernels are the same.
        kernels = [each for each in layer_kernels(layer) if id(each.layer) not in owners]
        for kernel in kernels:
            yield path if len(kernels) == 1 else f"{path}/{kernel.attribute}", kernel
        owners |= {id(kernel.layer) for kernel in kernels}
        # Layers come before those inside them: the last to have a weight is the one that holds it.
        for weight in layer.weights:
            if isinstance(weight.constraint, (ParsevalTightFrame, ParsevalConvolution)):
                holders[id(weight)] = path, layer, weight
    for path, layer, weight in holders.values():
        if id(layer) not in owners:
            layout = weight.constraint.layout
            kernel = _ConstrainedWeight(layer, weight.name, weight.name, layout, weight)
            yield f"{path}/{weight.name}", kernel


def misread_kernels(layer_or_model: Any) -> dict[str, list[str]]:
    """The names of the kernels that their constraints misread, by what those should be told."""
    return _misread(dict(_walk_kernels(layers_by_path(layer_or_model))))


def _misread(named: dict[str, LayerKernel]) -> dict[str, list[str]]:
    misread: dict[str, list[str]] = collections.defaultdict(list)
    for name, kernel in named.items():
        misread[misreading(kernel)].append(name)
    misread.pop("", None)
    return misread


def _warn_of_misreadings(named: dict[str, LayerKernel]) -> None:
    for remedy, names in _misread(named).items():
        warnings.warn(
            "A constraint sees a kernel and not its layer, and must be told how the kernel is read "
            f"unless it is that of a Dense layer or plain convolution: {remedy}. Received: "
            f"a constraint without it on {', '.join(names)}, where it makes other "
            "matrices tight than those that the layer multiplies by",
            stacklevel=4,
        )


def _check_activity_regularizer(path: str, layer: Any) -> None:
    # A constraint sees a tensor there, and cannot tell by itself that it is none of the weights.
    regularizer = getattr(layer, "activity_regularizer", None)
    if isinstance(regularizer, keras.constraints.Constraint):
        name = type(regularizer).__name__
        raise TypeError(
            f"`{name}` must be passed as a constraint, as in `kernel_constraint={name}(...)`. "
            f"Received: it is the `activity_regularizer` of '{path}'"
        )


def _check_readable(kernel: LayerKernel) -> None:
    layer = kernel.layer
    if not layer.built:
        raise ValueError(
            "A layer must be built to have a kernel; call the model on data first, or start it "
            f"with `keras.Input`. Received: layer '{layer.name}', which is not built"
        )
    if not keras.backend.is_float_dtype(keras.backend.standardize_dtype(kernel.variable.dtype)):
        raise ValueError(
            "A kernel must consist of floating-point numbers; measure the model before it is "
            f"quantized. Received: layer '{layer.name}' with dtype={kernel.variable.dtype}"
        )
