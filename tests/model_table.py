"""What becomes of the models that others made: `python tests/model_table.py [names]`.

Each is built small, with random weights, converted by `kp.parseval`, checked and bounded. A line of
JSON for each model, and a table at the end. Models of keras-hub are left out where it is missing.
"""

import json
import os
import sys
import time
import warnings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Threads of several libraries that wait for one another take ten times as long.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import keras
import numpy as np

import keras_parseval as kp
from keras_parseval._keras_internals import layers_by_path
from keras_parseval._layer_kernels import is_parseval, kernels_inside

try:
    import keras_hub
except ImportError:
    keras_hub = None


def application(name, size=32, **options):
    def build():
        make = getattr(keras.applications, name)
        return make(weights=None, input_shape=(size, size, 3), classes=10, **options)

    return build


def hub(name, **options):
    return lambda: getattr(keras_hub.models, name)(**options)


def classifier(task, backbone, **options):
    return lambda: getattr(keras_hub.models, task)(backbone=backbone(), num_classes=3, **options)


APPLICATIONS = {
    "ConvNeXtTiny": application("ConvNeXtTiny"),
    "DenseNet121": application("DenseNet121"),
    "EfficientNetB0": application("EfficientNetB0"),
    "EfficientNetV2B0": application("EfficientNetV2B0"),
    "InceptionResNetV2": application("InceptionResNetV2", 75),
    "InceptionV3": application("InceptionV3", 75),
    "MobileNet": application("MobileNet", alpha=0.25),
    "MobileNetV2": application("MobileNetV2", alpha=0.35),
    "MobileNetV3Small": application("MobileNetV3Small", alpha=0.75),
    "NASNetMobile": application("NASNetMobile"),
    "ResNet50": application("ResNet50"),
    "ResNet50V2": application("ResNet50V2"),
    "VGG16": application("VGG16"),
    "Xception": application("Xception", 71),
}

_IMAGE = {"image_shape": (32, 32, 3)}
_TEXT = {
    **{"vocabulary_size": 50, "num_layers": 2, "num_heads": 2, "hidden_dim": 8},
    **{"intermediate_dim": 16, "max_sequence_length": 12},
}
_RESNET = {
    **{"input_conv_filters": [64], "input_conv_kernel_sizes": [3], "block_type": "basic_block"},
    **{"stackwise_num_filters": [64, 64], "stackwise_num_blocks": [2, 2]},
    **{"stackwise_num_strides": [1, 2], **_IMAGE},
}
_EFFICIENTNET = {
    **{"stackwise_width_coefficients": [0.5] * 2, "stackwise_depth_coefficients": [1.0] * 2},
    **{"stackwise_kernel_sizes": [3, 5], "stackwise_num_repeats": [1, 2]},
    **{"stackwise_input_filters": [32, 16], "stackwise_output_filters": [16, 24]},
    **{"stackwise_expansion_ratios": [1, 6], "stackwise_strides": [1, 2]},
    **{"stackwise_squeeze_and_excite_ratios": [0.25] * 2, "stackwise_block_types": ["v1"] * 2},
    **{"include_stem_padding": True, **_IMAGE},
}
_MOBILENET = {
    **{"stackwise_expansion": [[8, 16], [16]], "stackwise_num_blocks": [2, 1]},
    **{"stackwise_num_filters": [[8, 8], [16]], "stackwise_kernel_size": [[3, 3], [5]]},
    **{"stackwise_num_strides": [[2, 1], [2]], "stackwise_se_ratio": [[None, None], [0.25]]},
    **{
        "stackwise_activation": [["relu", "relu"], ["hard_swish"]],
        "stackwise_padding": [[1, 1], [2]],
    },
    **{"output_num_filters": 32, "input_num_filters": 8, "depthwise_filters": 8},
    **{"input_activation": "hard_swish", "output_activation": "hard_swish"},
    **{"depthwise_stride": 1, "depthwise_residual": True, "squeeze_and_excite": 0.5},
    **{"last_layer_filter": 32, **_IMAGE},
}
_VIT = {
    **{"image_shape": (16, 16, 3), "patch_size": 4, "num_layers": 2, "num_heads": 2},
    **{"hidden_dim": 8},
}
_MIT = {
    **{"layerwise_depths": [1, 1], "num_layers": 2, "layerwise_num_heads": [1, 2]},
    **{"layerwise_sr_ratios": [2, 1], "max_drop_path_rate": 0.1, "layerwise_patch_sizes": [7, 3]},
    **{"layerwise_strides": [4, 2], "hidden_dims": [8, 16], **_IMAGE},
}
_HGNET = {
    **{"depths": [1, 2], "embedding_size": 8, "hidden_sizes": [16, 32], "hidden_act": "relu"},
    **{"stem_channels": [3, 8, 8], "use_learnable_affine_block": False, **_IMAGE},
    **{"stackwise_stage_filters": [(8, 8, 16, 1, 2, 3), (16, 8, 32, 2, 2, 3)]},
    **{"apply_downsample": [False, True], "use_lightweight_conv_block": [False, True]},
}

KERAS_HUB = {
    "hub ResNet": hub("ResNetBackbone", **_RESNET),
    "hub ResNetV2": hub("ResNetBackbone", **_RESNET, use_pre_activation=True),
    "hub EfficientNet": hub("EfficientNetBackbone", **_EFFICIENTNET),
    "hub MobileNetV3": hub("MobileNetBackbone", **_MOBILENET),
    "hub DenseNet": hub("DenseNetBackbone", stackwise_num_repeats=[2, 2], growth_rate=8, **_IMAGE),
    "hub VGG": hub(
        "VGGBackbone", stackwise_num_repeats=[1, 2], stackwise_num_filters=[8, 16], **_IMAGE
    ),
    "hub Xception": hub(
        "XceptionBackbone",
        stackwise_conv_filters=[[8, 16], [16, 16]],
        stackwise_pooling=[True, False],
        **_IMAGE,
    ),
    "hub CSPNet": hub(
        "CSPNetBackbone",
        **{"stem_filters": 8, "stem_kernel_size": 3, "stem_strides": 1, "stackwise_depth": [1, 2]},
        **{"stackwise_strides": [1, 2], "stackwise_num_filters": [16, 32], **_IMAGE},
        block_type="dark_block",
        stage_type="dark",
    ),
    "hub HGNetV2": hub("HGNetV2Backbone", **_HGNET),
    "hub MiT": hub("MiTBackbone", **_MIT),
    "hub Swin": hub(
        "SwinTransformerBackbone",
        **{"embed_dim": 8, "depths": (1, 1), "num_heads": (1, 2), "window_size": 4, **_IMAGE},
    ),
    "hub ViT": hub("ViTBackbone", **_VIT, mlp_dim=16),
    "hub DeiT": hub("DeiTBackbone", **_VIT, intermediate_dim=16),
    "hub BERT": hub("BertBackbone", **_TEXT),
    "hub RoBERTa": hub("RobertaBackbone", **_TEXT),
    "hub DistilBERT": hub("DistilBertBackbone", **_TEXT),
    "hub ALBERT": hub("AlbertBackbone", **_TEXT, embedding_dim=4),
    "hub GPT-2": hub("GPT2Backbone", **_TEXT),
    "hub FNet": hub("FNetBackbone", **{k: v for k, v in _TEXT.items() if k != "num_heads"}),
    "hub ResNet classifier": classifier("ResNetImageClassifier", hub("ResNetBackbone", **_RESNET)),
    "hub EfficientNet classifier": classifier(
        "EfficientNetImageClassifier", hub("EfficientNetBackbone", **_EFFICIENTNET)
    ),
    "hub ViT classifier": classifier(
        "ViTImageClassifier", hub("ViTBackbone", **_VIT, mlp_dim=16), pooling="token"
    ),
    "hub BERT classifier": classifier("BertTextClassifier", hub("BertBackbone", **_TEXT)),
}

MODELS = {**APPLICATIONS, **(KERAS_HUB if keras_hub else {})}


def random_inputs(model, count=2):
    """Images in [0, 1], and tokens and masks of ones and twos, for each input of a model."""
    rng = np.random.default_rng(0)

    def draw(tensor):
        shape = (count, *(size or 8 for size in tensor.shape[1:]))
        if keras.backend.is_float_dtype(tensor.dtype):
            return rng.random(shape, dtype="float32")
        return np.ones(shape, "int32") if "mask" in tensor.name else rng.integers(0, 2, shape)

    return keras.tree.map_structure(draw, model.input)


def outputs_of(model, inputs):
    outputs = keras.tree.flatten(model(inputs, training=False))
    return [keras.ops.convert_to_numpy(each) for each in outputs]


def is_same_function(model, other):
    """Whether two models return the same, up to rounding."""
    inputs = random_inputs(model)
    return all(
        np.allclose(ours, theirs, rtol=0, atol=1e-5 * max(1.0, np.abs(theirs).max()))
        for ours, theirs in zip(outputs_of(other, inputs), outputs_of(model, inputs), strict=True)
    )


def constrained_kernels(model):
    kernels = {}
    for _, layer in layers_by_path(model):
        kernels |= {id(each.variable): each for each in kernels_inside(layer).values()}
    return [kernel for kernel in kernels.values() if is_parseval(kernel)]


def tightness_error(kernel):
    """The largest relative error of a singular value, from the smaller Gram matrix by NumPy."""
    layout, shape = kernel.constraint.layout, tuple(kernel.variable.shape)
    matrices = keras.ops.convert_to_numpy(layout.to_matrices(kernel.variable)).astype("float64")
    transposed = np.swapaxes(matrices, -1, -2)
    wide = matrices.shape[-2] <= matrices.shape[-1]
    gram = matrices @ transposed if wide else transposed @ matrices
    values = np.sqrt(np.maximum(np.linalg.eigvalsh(gram), 0))
    return np.abs(values / layout.target(shape) - 1).max()


def reason(error):
    """An error in one line."""
    return " ".join(str(error).split())


def brief(text):
    """A cell of the table: of a long error, what it was raised for."""
    _, found, missing = text.partition(", with - ")
    if found:
        text = missing.partition(" - the ")[0]
    elif text.startswith("To be cloned"):
        text = text.partition("Received: ")[2]
    return text.replace("|", "/")[:240]


def examine(model):
    """A dictionary: what the plan says, whether it was kept, and the bound."""
    row = {"parameters": model.count_params()}
    start = time.monotonic()
    try:
        plan = kp.parseval_plan(model)
        twin = kp.parseval(model, init=None, merge=False, verbose=0)
        robust = kp.parseval(model, verbose=0)
    except ValueError as error:
        return row | {"converted": reason(error)}
    kernels = [each for each in plan if each["weight"]]
    row |= {
        "constrained": sum(each["becomes"] is not None for each in kernels),
        "left alone": sum(each["becomes"] is None for each in kernels),
        "opaque": sum(not each["weight"] and "kernels" in each["note"] for each in plan),
        "convex": sum(each["becomes"] == "ConvexAdd" for each in plan),
        "seconds": round(time.monotonic() - start, 1),
    }
    found = constrained_kernels(robust)
    row["tightness"] = float(max(map(tightness_error, found), default=0.0))
    runs = all(np.isfinite(each).all() for each in outputs_of(robust, random_inputs(robust)))
    mistakes = {
        "not the same function with init=None and merge=False": not is_same_function(model, twin),
        "another number of kernels than planned": len(found) != row["constrained"],
        "not tight": row["tightness"] > 1e-4,
        "does not run": not runs,
    }
    right = "yes" if found else "yes, but nothing is constrained"
    row["converted"] = "; ".join(what for what, wrong in mistakes.items() if wrong) or right
    try:
        row["bound"] = kp.lipschitz_bound(robust).bound
    except Exception as error:
        row["bound"] = reason(error)
    return row


def markdown(rows):
    columns = ["model", "parameters", "constrained", "left alone", "opaque", "convex"]
    columns += ["converted", "bound"]
    lines = [columns, ["---"] * len(columns)]
    for row in rows:
        cells = [row.get(column, "") for column in columns]
        cells = [f"{each:.3g}" if isinstance(each, float) else brief(str(each)) for each in cells]
        lines.append(cells)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def main(names):
    rows = []
    for name in names or MODELS:
        keras.utils.set_random_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rows.append({"model": name, **examine(MODELS[name]())})
        print(json.dumps(rows[-1]), flush=True)
        keras.backend.clear_session()
    print(markdown(rows))


if __name__ == "__main__":
    main(sys.argv[1:])
