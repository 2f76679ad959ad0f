"""The recipes of the embedded tasks of pictures."""

from __future__ import annotations

from workbench.tasks import pictures
from workbench.tasks.build import Blueprint
from workbench.tasks.sources.recipe import Number, Recipe

RECIPES: tuple[Recipe, ...] = (
    Recipe(
        Blueprint(
            id="photo-patch",
            metric="auc",
            id_column="patch",
            train_target="flower",
            seed=1121,
            summary="Predict which of two photographs a small, noisy patch was cut from.",
            row="a patch of 8 by 8 grey pixels, turned and magnified by chance; px_23 is row 2, column 3",
            target="1 if it was cut from the picture of a flower, 0 if from that of a building",
            source="two photographs, taken from scikit-learn 1.9.1",
            origin="danielbuechele and vultilion (Flickr), CC BY 2.0; patches were cut, turned, scaled and made noisy",
            licence="CC-BY-2.0 (the photographs)",
        ),
        pictures.patches,
        (
            *(Number(f"p{row}{column}", f"px_{row}{column}") for row in range(8) for column in range(8)),
            Number("flower", "flower"),
        ),
        group="block",
    ),
    Recipe(
        Blueprint(
            id="denoise-digits",
            metric="rmse",
            id_column="id",
            train_target="value",
            seed=1122,
            train_rows=1152,
            test_rows=1152,
            summary="Predict the clean value of each pixel of a noisy handwritten digit.",
            row="a pixel, whose id is image_row_column; train and test hold different images of 8 by 8 pixels",
            target="its value before the noise, about 0 (paper) to 220 (ink)",
            note="n22 is its noisy value, n00 to n44 are those of the 5 by 5 pixels around it; blank beyond the edge.",
            source="digits, taken from scikit-learn 1.9.1",
            origin="E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Repository "
            "(CC BY 4.0); turned, shifted, scaled and made noisy",
            licence="BSD-3-Clause (scikit-learn)",
        ),
        pictures.noisy_digits,
        (
            Number("row", "row"),
            Number("column", "col"),
            *(Number(f"n{down}{across}", f"n{down}{across}") for down in range(5) for across in range(5)),
            Number("clean", "value", decimals=1),
        ),
        group="image",
        ids="id",
    ),
)
