"""Random tables to learn from: names without meaning, columns of every kind, a target for each metric.

Names are made of random syllables, letters and digits. No word list of any real data set is used, so that a policy
warm-started on these tables can only copy names, never recall them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from workbench.agent.cards import Card, Column, card_from_frames

if TYPE_CHECKING:
    import pandas as pd

WANTS = {
    "auc": "probability",
    "logloss": "probabilities",
    "qwk": "label",
    "rmse": "number",
    "rmsle": "number",
    "mae": "number",
    "accuracy": "label",
    "f1": "label",
}
"""What each metric is computed from."""
HIGHER = frozenset({"auc", "qwk", "accuracy", "f1"})

ONSETS = (
    "b c d f g h j k l m n p r s t v w y z bl br ch cl cr dr fl fr gl gr pl pr qu sh sk sl sp st str th tr tw".split()
)
NUCLEI = "a e i o u a e i o ai au ea ee ei ia ie io oa oo ou ue y".split()
CODAS = " | | | |n|r|s|t|l|m|d|c|ng|nt|st|ck|x|p|rd|ss|ll".replace(" ", "").split("|")
LETTERS = "abcdefghijklmnopqrstuvwxyz"
ID_MARKS = ("id", "Id", "ID", "key", "idx", "no", "ref")


@dataclass(frozen=True, slots=True)
class Feature:
    """One column of a random table."""

    name: str
    kind: str
    missing: float
    """Share of missing values."""
    values: tuple[str, ...]
    """Categories of a text column."""
    rare: bool
    """One category is seen in test.csv only."""


@dataclass(frozen=True, slots=True)
class Schema:
    """A random task: what its tables look like and what is asked."""

    metric: str
    id_column: str
    target: str
    target_kind: str
    classes: tuple[str, ...]
    """Class labels as written in the CSV; empty for a numeric target."""
    features: tuple[Feature, ...]
    seed: int

    @property
    def wants(self) -> str:
        return WANTS[self.metric]

    @property
    def submission(self) -> tuple[str, ...]:
        return (self.id_column, *(self.classes if self.wants == "probabilities" else (self.target,)))


def syllable(rng: random.Random) -> str:
    return rng.choice(ONSETS) + rng.choice(NUCLEI) + rng.choice(CODAS)


def word(rng: random.Random) -> str:
    """A lower-case made-up word, an abbreviation, or letters drawn at random."""
    style = rng.random()
    if style < 0.6:
        return "".join(syllable(rng) for _ in range(rng.choice((1, 1, 2, 2, 2, 3))))
    if style < 0.8:
        return "".join(rng.choice(LETTERS) for _ in range(rng.randint(2, 8)))
    if style < 0.9:
        return "".join(rng.choice("bcdfghjklmnpqrstvwxz") for _ in range(rng.randint(2, 4)))
    return rng.choice(NUCLEI) + syllable(rng)


def name(rng: random.Random) -> str:
    """A column name: snake_case, camelCase, PascalCase, UPPER, dotted, with digits, or one word."""
    words = [word(rng) for _ in range(rng.choice((1, 1, 1, 2, 2, 3)))]
    style = rng.random()
    if style < 0.45:
        text = "_".join(words)
    elif style < 0.6:
        text = words[0] + "".join(part.capitalize() for part in words[1:])
    elif style < 0.8:
        text = "".join(part.capitalize() for part in words)
    elif style < 0.88:
        text = "_".join(words).upper()
    elif style < 0.94:
        text = " ".join(words) if rng.random() < 0.5 else ".".join(words)
    else:
        text = rng.choice(LETTERS) + str(rng.randint(1, 99))
    if rng.random() < 0.12:
        text += rng.choice(("", "_")) + str(rng.randint(0, 99))
    return text[:22]


def id_name(rng: random.Random) -> str:
    mark, stem = rng.choice(ID_MARKS), word(rng)[:8]
    return rng.choice(
        (
            f"{stem}_{mark}",
            f"{stem}{mark.capitalize()}",
            f"{mark}_{stem}",
            name(rng),
            mark.lower() + str(rng.randint(0, 9)),
            stem,
        )
    )


def unique_names(rng: random.Random, n: int) -> list[str]:
    """`n` names that differ; now and then they share a prefix."""
    prefix = name(rng)[:8] + rng.choice(("_", "")) if rng.random() < 0.25 else ""
    found: list[str] = []
    while len(found) < n:
        candidate = prefix + word(rng)[:8] if prefix and rng.random() < 0.6 else name(rng)
        if candidate not in found:
            found.append(candidate)
    return found


def label(rng: random.Random) -> str:
    text = word(rng)[: rng.choice((1, 2, 3, 5, 8, 10))]
    return rng.choice((text, text, text.capitalize(), text.upper()))


def labels(rng: random.Random, n: int) -> tuple[str, ...]:
    found: set[str] = set()
    while len(found) < n:
        candidate = label(rng)
        if candidate.lower() not in ("nan", "na", "null", "none", "n", "inf", "true", "false"):
            found.add(candidate)
    return tuple(sorted(found))


def make_schema(seed: int) -> Schema:
    """The random task number `seed`."""
    rng = random.Random(f"schema {seed}")
    metric = rng.choice(tuple(WANTS))
    names = unique_names(rng, rng.randint(3, 14) + 1)
    taken = {text.lower() for text in names}
    id_column = id_name(rng)
    while id_column.lower() in taken:
        id_column = id_name(rng) + str(rng.randint(0, 9))
    textual, holes = rng.random() < 0.7, rng.random() < 0.5
    features = tuple(_feature(rng, text, textual, holes) for text in names[1:])
    kind, classes = _target(rng, metric)
    return Schema(metric, id_column, names[0], kind, classes, features, seed)


def _feature(rng: random.Random, text: str, textual: bool, holes: bool) -> Feature:
    kind = "text" if textual and rng.random() < 0.4 else rng.choice(("int", "float", "float"))
    missing = rng.choice((0.02, 0.05, 0.1, 0.3)) if holes and rng.random() < 0.4 else 0.0
    values = labels(rng, rng.randint(2, 7)) if kind == "text" else ()
    return Feature(text, kind, missing, values, kind == "text" and rng.random() < 0.25)


def _target(rng: random.Random, metric: str) -> tuple[str, tuple[str, ...]]:
    if WANTS[metric] == "number":
        return rng.choice(("int", "float")), ()
    if metric == "auc":
        return "int", ("0", "1")
    n = 2 if metric == "f1" and rng.random() < 0.6 else rng.randint(3, 6)
    if metric == "qwk" or rng.random() < 0.3:
        return "int", tuple(str(value) for value in range(n))
    return "text", labels(rng, n)


def tables(schema: Schema) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """train, test, sample submission and answers of a random task: 60–110 and 30–50 rows."""
    import pandas as pd

    rng = np.random.default_rng(schema.seed)
    n_train, n_test = int(rng.integers(60, 111)), int(rng.integers(30, 51))
    n = n_train + n_test
    data: dict[str, object] = {schema.id_column: rng.permutation(n) + int(rng.integers(1, 1000))}
    signal = rng.normal(0, 0.5, n)
    for feature in schema.features:
        values, part = _values(feature, rng, n, n_train)
        data[feature.name] = values
        signal = signal + part * rng.normal()
    data[schema.target] = _answers(schema, rng, signal)
    frame = pd.DataFrame(data)
    train = frame[:n_train].reset_index(drop=True)
    test = frame[n_train:].drop(columns=[schema.target]).reset_index(drop=True)
    answers = frame[n_train:][[schema.id_column, schema.target]].reset_index(drop=True)
    return train, test, _sample(schema, test), answers


def _values(feature: Feature, rng: np.random.Generator, n: int, n_train: int) -> tuple[object, np.ndarray]:
    raw = rng.normal(size=n)
    holes = rng.random(n) < feature.missing
    if feature.kind != "text":
        values = raw * 10 ** rng.integers(0, 3) + rng.integers(0, 30)
        values = np.rint(values) if feature.kind == "int" else np.round(values, 3)
        if feature.kind == "int" and not holes.any():
            return values.astype(int), raw
        return np.where(holes, np.nan, values), raw
    codes = rng.integers(0, len(feature.values), n)
    effect = rng.normal(size=len(feature.values))
    texts = np.array(feature.values, dtype=object)[codes]
    if feature.rare:
        last = feature.values[-1]
        texts[:n_train][texts[:n_train] == last] = feature.values[0]
        texts[n_train] = last
    texts[holes] = None
    return texts, effect[codes]


def _answers(schema: Schema, rng: np.random.Generator, signal: np.ndarray) -> np.ndarray:
    if schema.classes:
        edges = np.quantile(signal, np.linspace(0, 1, len(schema.classes) + 1)[1:-1])
        codes = np.digitize(signal, edges)
        if schema.target_kind == "int":
            return codes
        return np.array(schema.classes, dtype=object)[codes]
    scaled = (signal - signal.mean()) / (signal.std() + 1e-9)
    if schema.metric == "rmsle":
        values = np.exp(scaled * 0.6 + rng.uniform(2, 6))
    else:
        values = scaled * 10 ** rng.integers(0, 3) + rng.integers(0, 100)
    return np.rint(values).astype(int) if schema.target_kind == "int" else np.round(values, 3)


def _sample(schema: Schema, test: pd.DataFrame) -> pd.DataFrame:
    import pandas as pd

    columns = schema.submission[1:]
    if schema.wants in ("probability", "probabilities"):
        fill: object = 1 / len(columns) if len(columns) > 1 else 0.5
    elif schema.classes:
        fill = int(schema.classes[0]) if schema.target_kind == "int" else schema.classes[0]
    else:
        fill = 0
    return pd.DataFrame({schema.id_column: test[schema.id_column], **dict.fromkeys(columns, fill)})


def quick_card(schema: Schema) -> Card:
    """The card of a task with some hundred rows whose tables are never made."""
    rng = random.Random(f"card {schema.seed}")
    rows, test_rows = rng.randint(300, 1200), rng.randint(300, 1500)
    columns = tuple(
        Column(
            feature.name,
            "float" if feature.kind == "int" and feature.missing else feature.kind,
            round(feature.missing * rows * rng.uniform(0.8, 1.2)),
            len(feature.values) or rng.randint(10, rows),
            (rng.choice(feature.values),) if feature.values else (),
        )
        for feature in schema.features
    )
    target = Column(
        schema.target, schema.target_kind, 0, len(schema.classes) or rng.randint(50, rows), schema.classes[:1]
    )
    return Card(
        schema.metric,
        schema.metric in HIGHER,
        schema.wants,
        schema.id_column,
        target,
        schema.submission,
        rows,
        test_rows,
        columns,
    )


def table_card(schema: Schema, train: pd.DataFrame, test: pd.DataFrame, sample: pd.DataFrame) -> Card:
    """The card of a task whose tables were made."""
    from dataclasses import replace

    facts = card_from_frames(train, test, sample, schema.id_column, schema.target)
    return replace(facts, metric=schema.metric, higher_is_better=schema.metric in HIGHER, wants=schema.wants)
