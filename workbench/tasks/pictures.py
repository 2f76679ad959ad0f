"""Tables made of the pictures that scikit-learn bundles, such that none can be matched to its origin.

Every patch and digit is turned, magnified and shifted by fractions of a pixel, then brightened and covered by noise, so
that no array of the bundle equals it and the nearest one says little.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Array = NDArray[np.float64]
BLOCK = 64
"""Side of the squares of a photograph, in pixels: train and test patches come from different ones."""
SIDE = 8


def patches(count: int = 2800, noise: float = 9.0) -> pd.DataFrame:
    """8 by 8 grey pixels (0 to 255) cut from two photographs, whether from the flower, and from which square."""
    from sklearn.datasets import load_sample_images

    rng = np.random.default_rng([1121, 9])
    photos = [np.asarray(image, dtype=np.float64) @ [0.3, 0.55, 0.15] for image in load_sample_images().images]
    rows: list[dict[str, Any]] = []
    for _ in range(count):
        label = int(rng.integers(2))
        photo = photos[label]
        height, width = (int(size) // BLOCK for size in photo.shape)
        block = int(rng.integers(height * width))
        corner = np.array(divmod(block, width)) * BLOCK
        zoom = rng.uniform(0.9, 2.2)
        reach = SIDE / 2 * zoom * np.sqrt(2)
        centre = corner + rng.uniform(reach, BLOCK - 1 - reach, size=2)
        pixels = _cut(photo, centre, zoom, rng.uniform(0, 2 * np.pi), bool(rng.integers(2)))
        pixels = 128 + (pixels - 128) * rng.uniform(0.75, 1.3) + rng.normal(0, 22)
        pixels = np.clip(pixels + rng.normal(0, noise, pixels.shape), 0, 255)
        named = {f"p{row}{column}": pixels[row, column] for row in range(SIDE) for column in range(SIDE)}
        rows.append({**named, "flower": label, "block": f"{label}-{block}"})
    return pd.DataFrame(rows)


def noisy_digits(images: int = 36, noise: float = 45.0) -> pd.DataFrame:
    """A row per pixel of turned digits: id image_row_column, the clean value, and the 5 by 5 noisy ones around it."""
    from sklearn.datasets import load_digits

    rng = np.random.default_rng([1122, 9])
    digits = load_digits().images
    numbers = rng.choice(np.arange(100, 1000), size=images, replace=False)
    rows: list[dict[str, Any]] = []
    for image, place in zip(numbers, rng.choice(len(digits), size=images, replace=False), strict=True):
        centre = (SIDE - 1) / 2 + rng.uniform(-0.5, 0.5, size=2)
        clean = _cut(digits[place], centre, rng.uniform(0.88, 1.12), rng.uniform(-0.25, 0.25), False)
        clean = np.clip(clean * rng.uniform(12.0, 14.5) + rng.normal(0, 2, clean.shape), 0, None)
        seen = np.pad(clean + rng.normal(0, noise, clean.shape), 2, constant_values=np.nan)
        for row, column in np.ndindex(clean.shape):
            near = {f"n{down}{across}": seen[row + down, column + across] for down, across in np.ndindex(5, 5)}
            own = {"id": f"{image}_{row}_{column}", "image": int(image), "row": row, "column": column}
            rows.append({**own, **near, "clean": clean[row, column]})
    return pd.DataFrame(rows)


def _cut(picture: Array, centre: Array, zoom: float, turn: float, mirrored: bool) -> Array:
    """8 by 8 values around `centre` (row, column), `zoom` source pixels apart, turned by `turn` radians."""
    from scipy.ndimage import map_coordinates

    grid = (np.indices((SIDE, SIDE)) - (SIDE - 1) / 2).reshape(2, -1) * zoom
    if mirrored:
        grid = grid[::-1]
    spin = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    points = centre[:, None] + spin @ grid
    return np.asarray(map_coordinates(picture, points, order=1, mode="constant")).reshape(SIDE, SIDE)
