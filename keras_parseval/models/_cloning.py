"""Clones of models, in which some layers are changed."""

import contextlib
from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from keras_parseval._keras_internals import constructor_arguments, is_graph, lineages_of
from keras_parseval._layer_kernels import (
    ATTENTION,
    attention_layout,
    constrain_kernel,
    kernels_inside,
)
from keras_parseval._lending import give, lend
from keras_parseval.constraints import ParsevalTightFrame
from keras_parseval.layers import ConvexAdd
from keras_parseval.models._conversion_plan import Decision, norm_penalty


def clone_with_changes(
    model: Any, changes: Mapping[Any, list[Decision]], constraint_options: dict[str, Any]
) -> dict[Any, Any]:
    """Clones of a model and of all that is inside it, each once, with the weights of the originals.

    Args:
        model: A functional or Sequential model. It is not changed.
        changes: What is changed in each layer.
        constraint_options: Arguments of `kp.ParsevalTightFrame`, without those of the layout.

    Returns:
        Dictionary of clones, by what they are clones of; the model itself among them.
    """
    clones: dict[Any, Any] = {}

    def clone(layer: Any) -> Any:
        if layer not in clones:
            # Keras looks into models itself (`recursive=True`), but differently in every version,
            # and drops the `call` of those that have one of their own.
            if is_graph(layer):
                clones[layer] = keras.models.clone_model(layer, clone_function=clone)
            else:
                clones[layer] = _convert(layer, changes.get(layer, []), constraint_options)
        return clones[layer]

    with _uncompiled(model):
        clone(model)
    for layer, its_clone in clones.items():
        _carry_weights(layer, its_clone)
    return clones


def _convert(layer: Any, changes: list[Decision], constraint_options: dict[str, Any]) -> Any:
    """A clone of one layer, not built yet, with its changes made."""
    if any(change.becomes is ConvexAdd for change in changes):
        return ConvexAdd.from_config(layer.get_config())
    try:
        clone = _from_config(layer, changes, constraint_options)
    except Exception as error:
        clone = _from_arguments(layer, error)
    constraints = {change.weight: change.becomes for change in changes}
    for weight, kernel in kernels_inside(clone).items():
        if constraint := constraints.get(weight):
            constrain_kernel(kernel, constraint, **constraint_options)
            if norm_penalty(kernel):
                give(kernel.layer, **{f"{kernel.prefix}_regularizer": None})
    return clone


def _from_config(layer: Any, changes: list[Decision], constraint_options: dict[str, Any]) -> Any:
    """A layer of the same class, from its configuration."""
    config = layer.get_config()
    if changes:
        config = _without_builds(config)
    if changes and isinstance(layer, ATTENTION):
        config |= _attention_arguments(layer, changes, constraint_options)
    if not isinstance(layer, keras.layers.Lambda):
        return type(layer).from_config(config)
    # Keras loads no function from a configuration, which might come from anywhere.
    config |= {"function": keras.saving.serialize_keras_object(keras.activations.linear)}
    clone = type(layer).from_config(config)
    give(clone, function=layer.function)
    return clone


def _from_arguments(layer: Any, error: Exception) -> Any:
    """A layer of the same class, from what it was made with, if Keras has kept that.

    Args:
        layer: The layer.
        error: What its configuration raises.
    """
    try:
        clone = type(layer)(**constructor_arguments(layer))
    except Exception:
        # Keras puts an error inside another one.
        cause = str(error).rpartition("Exception encountered: ")[-1].strip().partition("\n")[0]
        raise ValueError(
            "To be cloned, a layer must come back from its own configuration, by "
            "`type(layer).from_config(layer.get_config())`; correct these in a subclass. "
            f"Received: the layer '{layer.name}' of class {type(layer).__name__}, which raises: "
            f"{cause or type(error).__name__}"
        ) from error
    give(clone, trainable=layer.trainable)
    return clone


def _without_builds(config: Any) -> Any:
    """A configuration after which the layers inside a wrapper are not built either.

    Keras would build them at once, and give their kernels the old constraint for good.
    """
    if isinstance(config, (list, tuple)):
        return type(config)(_without_builds(each) for each in config)
    if not isinstance(config, dict):
        return config
    return {key: _without_builds(each) for key, each in config.items() if key != "build_config"}


def _attention_arguments(
    layer: Any, changes: list[Decision], constraint_options: dict[str, Any]
) -> dict[str, Any]:
    """What an attention layer passes on to its kernels, which do not exist before it is built."""
    layout = attention_layout(layer)
    constraint = ParsevalTightFrame(**constraint_options, **(layout.get_config() if layout else {}))
    arguments = {"kernel_constraint": keras.constraints.serialize(constraint)}
    if any(change.kernel and norm_penalty(change.kernel) for change in changes):
        arguments["kernel_regularizer"] = None
    return arguments


def _weights_of(layer: Any, clone: Any) -> list[tuple[Any, Any]]:
    """The weights of a clone, each with that of the layer."""
    if is_graph(layer) or type(clone) is not type(layer):
        return []
    return list(zip(getattr(clone, "weights", []), getattr(layer, "weights", []), strict=True))


def _carry_weights(layer: Any, clone: Any) -> None:
    for ours, theirs in _weights_of(layer, clone):
        # A copy: JAX gives the memory of weights away when it trains, also that of the original.
        ours.assign(ops.copy(ops.convert_to_tensor(theirs)))
        if ours.trainable != theirs.trainable:
            give(ours, trainable=theirs.trainable)
    # Preprocessing layers compute with values that they derive from their weights.
    if hasattr(clone, "finalize_state"):
        clone.finalize_state()


def untied_weights(clones: dict[Any, Any]) -> str:
    """A sentence if layers that have a weight in common do not in the counterpart.

    Args:
        clones: What `clone_with_changes` returns.
    """
    copies: dict[int, Any] = {}
    untied = set()
    for layer, clone in clones.items():
        for ours, theirs in _weights_of(layer, clone):
            if copies.setdefault(id(theirs), ours) is not ours:
                untied.add(theirs.path)
    if not untied:
        return ""
    return f"Layers that shared a weight have copies of their own now: {', '.join(sorted(untied))}."


def _uncompiled(model: Any) -> contextlib.ExitStack:
    """Keep Keras from compiling the clone, which fails for losses that it cannot deserialize."""
    models = [model, *(lineage[-1] for lineage in lineages_of(model) if is_graph(lineage[-1]))]
    loans = contextlib.ExitStack()
    for each in models:
        if each.compiled:
            loans.enter_context(lend(each, compiled=False))
    return loans
