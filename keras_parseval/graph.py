"""The graph of a functional or Sequential model: which layer is called on what."""

import functools

import keras


def is_graph(operation):
    """Whether this is a model that does what its graph says, and nothing else."""
    return isinstance(operation, keras.Model) and type(operation).call in _graph_calls()


@functools.cache
def _graph_calls():
    """What `call` is in a functional and in a Sequential model."""
    inputs = keras.Input((1,))
    outputs = keras.layers.Identity()(inputs)
    return type(keras.Model(inputs, outputs)).call, keras.Sequential.call


def check_graph(model):
    """Raise unless the model has a graph that can be walked, and weights."""
    if not is_graph(model):
        raise ValueError(
            "The model must be functional or Sequential, because its graph is walked; a subclassed "
            "model has none. Write it with `keras.Model(inputs, outputs)`. "
            f"Received: {type(model).__name__}"
        )
    if not model.built or not model.inputs:
        raise ValueError(
            "The model must be built, so that it has weights and shapes: begin it with "
            f"`keras.Input(shape)`, or call it once. Received: model '{model.name}'"
        )


def calls_in_order(model):
    """Every call of a layer on the way from the model's inputs to its outputs, inputs first.

    Returns:
        List of Keras's nodes, with `operation`, `input_tensors` and `outputs`. A model that
        is nested in this one is one operation.
    """
    entrances = {id(tensor) for tensor in model.inputs}
    order, seen, stack = [], set(), [(tensor, False) for tensor in model.outputs]
    while stack:
        tensor, ready = stack.pop()
        if id(tensor) in entrances:
            continue
        history = tensor._keras_history
        node = history.operation._inbound_nodes[history.node_index]
        if id(node) in seen:
            continue
        if ready:
            seen.add(id(node))
            order.append(node)
        else:
            stack.append((tensor, True))
            stack += [(each, False) for each in node.input_tensors]
    return order
