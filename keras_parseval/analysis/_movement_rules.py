"""Lipschitz rules for operations of `keras.ops` that move elements: slices, shapes, joins.

Such an operation is run on the numbers of its elements. The outputs tell where each of them goes,
whatever the operation is called, and whether examples stay apart.
"""

import keras
import numpy as np

from keras_parseval.analysis._batch_axis import check_known, mixes_examples
from keras_parseval.analysis._operation_rules import is_tensor, run
from keras_parseval.analysis._rules import Constant, operation_rule


@operation_rule(
    *("GetItem", "Slice", "Take", "Split", "ArraySplit", "Hsplit", "Vsplit", "Dsplit", "Unstack"),
    *("Reshape", "Ravel", "Squeeze", "ExpandDims", "Transpose", "Swapaxes", "Moveaxis", "Rot90"),
    *("Flip", "Fliplr", "Flipud", "Roll", "Repeat", "Tile", "BroadcastTo", "Diagonal"),
    *("Tril", "Triu", "DepthToSpace", "SpaceToDepth", "PadImages", "CropImages"),
)
def _moves_elements(operation, call):
    if len(call.input_shapes) > 1:
        raise ValueError(
            "Elements that are chosen by what depends on the input have no Lipschitz constant; "
            f"choose them by constants. Received: '{operation.name}'"
        )
    return _movement(operation, call, call)


@operation_rule("Pad")
def _pad(operation, call):
    # Zeros in place of the constant, because other numbers are elements.
    arguments = {**call.arguments, "constant_values": None}
    return _movement(operation, call, _with(call, arguments))


@operation_rule("Concatenate", "Stack", "Hstack", "Vstack", "Dstack", combine="stack")
def _join(operation, call):
    zeros = keras.tree.map_structure(
        lambda each: each if is_tensor(each) else np.zeros_like(keras.ops.convert_to_numpy(each)),
        dict(call.arguments),
    )
    return _movement(operation, call, _with(call, zeros))


def _with(call, arguments):
    return type(call)(
        *(call.norm, call.method, call.input_shapes, call.output_shape), arguments=arguments
    )


def _movement(operation, call, runnable):
    check_known(operation, *call.input_shapes)
    tensors = [each for each in keras.tree.flatten(dict(call.arguments)) if is_tensor(each)]
    # Two examples, unless the model says how many there are.
    batch = tensors[0].shape[0] or 2
    inputs, owners, examples, total = [], [np.zeros(1, int)], [np.zeros(1, int)], 1
    for index, shape in enumerate(call.input_shapes):
        size = batch * int(np.prod(shape))
        inputs.append(np.arange(total, total + size).reshape(batch, *shape))
        owners.append(np.full(size, index))
        examples.append(np.repeat(np.arange(batch), size // batch))
        total += size
    # Single precision counts so far; some operations take no integers.
    dtype = "float32" if total < 2**24 else "int32"
    outputs = run(operation, runnable, [each.astype(dtype) for each in inputs])
    owner, example = np.concatenate(owners), np.concatenate(examples)
    copies = np.zeros(len(inputs))
    for output in outputs:
        numbers = output.astype("int64")
        own = np.arange(batch).reshape(-1, *(1,) * (numbers.ndim - 1)) if numbers.ndim else None
        apart = numbers.shape[:1] == (batch,) and ((example[numbers] == own) | (numbers == 0)).all()
        if not apart:
            raise mixes_examples(operation, f"shapes {call.input_shapes} to {call.output_shape}")
        met = np.bincount(numbers.ravel(), minlength=total)
        met[0] = 0
        copies = np.maximum(copies, [met[owner == index].max() for index in range(len(inputs))])
    growth = np.minimum(copies, 1.0) if call.norm == "inf" else np.sqrt(copies)
    return Constant(growth, _words(copies))


def _words(copies):
    return f"repeats {int(copies.max())} times" if copies.max() > 1 else "moves or drops elements"
