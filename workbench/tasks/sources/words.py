"""The recipes of the embedded tasks of text."""

from __future__ import annotations

from workbench.tasks import tables
from workbench.tasks.build import Blueprint
from workbench.tasks.sources.recipe import Number, Recipe, Text

RECIPES: tuple[Recipe, ...] = (
    Recipe(
        Blueprint(
            id="tweet-valence",
            metric="mae",
            id_column="note_id",
            train_target="mood",
            seed=1120,
            summary="Predict how good or bad the mood of a short message is.",
            row="a message of one or two sentences",
            target="the mean judgement of some readers, from about -100 (very bad) to 100 (very good)",
            source="tweets of C. Hutto and E. Gilbert, taken from vaderSentiment 3.3.2",
            origin="C. Hutto and E. Gilbert, VADER, ICWSM 2014; names and addresses were removed by the authors",
            licence="MIT (vaderSentiment)",
        ),
        tables.tweets,
        (
            Text("text", "message"),
            Number("valence", "mood", 25, noise=0.6, decimals=1),
        ),
    ),
)
