"""Images as PNG in data URIs."""

import base64
import math
import struct
import zlib
from typing import Any

import keras
import numpy as np

# Pixels along the longer side of a picture: pages shall not grow beyond a few megabytes.
_LARGEST = 128


def as_images(x: np.ndarray) -> np.ndarray | None:
    """The examples as images with channels last; `None` if they do not look like images.

    Images have one or three channels, or none and as many rows as columns.
    """
    if x.ndim == 3 and x.shape[1] == x.shape[2] >= 8:
        return x[..., None]
    if x.ndim == 4 and keras.config.image_data_format() == "channels_first":
        x = np.moveaxis(x, 1, -1)
    return x if x.ndim == 4 and x.shape[-1] in (1, 3) else None


def pictures(
    clean: np.ndarray, perturbed: np.ndarray, low: float, high: float
) -> tuple[tuple[str, ...], float]:
    """Pictures of an image, the perturbed one and the difference; and how that is magnified.

    Args:
        clean: An image, channels last.
        perturbed: The same under attack.
        low: What is black.
        high: What is white.
    """
    clean, perturbed = _reduced(clean), _reduced(perturbed)
    difference = perturbed - clean
    span = (high - low) or 1.0
    factor = span / (2 * float(np.abs(difference).max()) or 1.0)
    shown = ((clean - low) / span, (perturbed - low) / span, 0.5 + factor * difference / span)
    return tuple(map(_data_uri, shown)), factor


def _reduced(image: np.ndarray) -> np.ndarray:
    """An image of a size to show: the mean of blocks of pixels."""
    block = math.ceil(max(image.shape[:2]) / _LARGEST)
    rows, columns = (size // block * block for size in image.shape[:2])
    image = image[:rows, :columns].astype("float64")
    blocks = image.reshape(rows // block, block, columns // block, block, -1)
    return blocks.mean(axis=(1, 3))


def _data_uri(image: np.ndarray) -> str:
    pixels = np.clip(np.rint(255 * image), 0, 255).astype("uint8")
    return "data:image/png;base64," + base64.b64encode(png(pixels)).decode("ascii")


def png(pixels: Any) -> bytes:
    """A file of PNG, from pixels of 8 bits with one or three channels."""
    rows, columns, channels = pixels.shape
    # The filter of a row comes before its pixels; 0 is none.
    lines = np.insert(pixels.reshape(rows, -1), 0, 0, axis=1).tobytes()
    header = struct.pack(">IIBBBBB", columns, rows, 8, 0 if channels == 1 else 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
