"""The laws of synthetic tasks: what they call best is best, and their scores are what the noise allows."""

from __future__ import annotations

from math import exp, factorial, log
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from workbench.tasks import catalog
from workbench.tasks.check import PROOFS, check_task
from workbench.tasks.gates import weak_board
from workbench.tasks.generators import LAWS, best_count, best_flags, make_task, synthetic_folder, world
from workbench.tasks.metrics import METRICS
from workbench.tasks.mle import FILES, load_task
from workbench.types import WorkbenchError

MANY = 40_000


def truth(kind: str, target: pd.Series) -> np.ndarray:
    classes = LAWS[kind].classes
    if METRICS[LAWS[kind].metric].wants == "label":
        return np.array([[classes.index(value)] for value in target], dtype=float)
    if classes:
        return np.eye(len(classes))[[classes.index(value) for value in target]]
    return target.to_numpy(dtype=float)[:, None]


@pytest.mark.parametrize("kind", LAWS)
@pytest.mark.parametrize("seed", [0, 7])
def test_no_change_of_the_best_predictions_scores_better(kind: str, seed: int) -> None:
    """Pulled to their mean, pushed from it, shifted or blurred: each is worse by more than the sampling error."""
    drawn = world(kind, seed, rows=MANY)
    metric = METRICS[LAWS[kind].metric]
    target, best = truth(kind, drawn.table["y"]), drawn.best
    sign = 1 if metric.higher_is_better else -1
    blur = np.random.default_rng(1).normal(size=best.shape) * 0.3 * best.std()
    others = [best + blur]
    if metric.name not in ("auc", "average_precision"):  # these see the order only
        mean = best.mean(axis=0)
        others += [mean + 0.8 * (best - mean), mean + 1.2 * (best - mean), best + 0.15 * best.std()]
    if metric.wants == "label":  # one in ten gets another label
        others = [
            np.where(np.random.default_rng(1).random(best.shape) < 0.1, (best + 1) % len(LAWS[kind].classes), best)
        ]
    if metric.minimum == 0:
        others = [np.clip(other, 1e-6, metric.maximum) for other in others]
    score = metric.score(target, best)
    for other in others:
        assert sign * score > sign * metric.score(target, other)


def test_the_score_of_the_best_is_what_the_noise_allows() -> None:
    """Within five standard errors: the noise's deviation, the mean entropy, and the chance of a right order."""
    drawn = world("regression", 3, rows=MANY)
    noise = drawn.table["y"].to_numpy() - drawn.best[:, 0]
    sigma = METRICS["rmse"].score(truth("regression", drawn.table["y"]), drawn.best)
    assert abs(noise.mean()) < 5 * sigma / np.sqrt(MANY)
    assert np.mean(np.abs(noise) < sigma) == pytest.approx(0.6827, abs=5 * 0.0024)  # normal
    assert abs(np.corrcoef(noise, drawn.best[:, 0])[0, 1]) < 5 / np.sqrt(MANY)

    drawn = world("multiclass", 3, rows=MANY)
    chances = drawn.best
    surprise = -np.log(chances)
    entropy = (chances * surprise).sum(axis=1)
    error = np.sqrt(((chances * surprise**2).sum(axis=1) - entropy**2).mean() / MANY)
    score = METRICS["logloss"].score(truth("multiclass", drawn.table["y"]), chances)
    assert score == pytest.approx(entropy.mean(), abs=5 * error)

    drawn = world("binary", 3, rows=MANY)
    chance = np.sort(drawn.best[:, 0])
    # P(a positive row stands above a negative one) = Σ_i p_i Σ_{j<i} (1 - p_j) / (Σ p · Σ (1 - p)), rows sorted by p
    below = np.concatenate([[0.0], np.cumsum(1 - chance)[:-1]])
    expected = (chance * below).sum() / (chance.sum() * (1 - chance).sum())
    score = METRICS["auc"].score(truth("binary", drawn.table["y"]), drawn.best)
    assert score == pytest.approx(expected, abs=5 * 0.5 / np.sqrt(MANY / 2))


@pytest.mark.parametrize("kind", ["binary", "rare"])
def test_said_chances_come_true(kind: str) -> None:
    drawn = world(kind, 5, rows=MANY)
    for part in np.array_split(np.argsort(drawn.best[:, 0]), 10):
        chance, share = drawn.best[part, 0].mean(), drawn.table["y"].to_numpy()[part].mean()
        assert share == pytest.approx(chance, abs=5 * np.sqrt(chance * (1 - chance) / len(part)) + 1e-3)
    if kind == "rare":
        assert 0.07 < drawn.table["y"].mean() < 0.15


def test_no_other_number_of_flags_has_a_higher_f1_on_average() -> None:
    """Against many draws of what the chances say: F1 of every number of flagged rows, the likeliest first."""
    rng = np.random.default_rng(2)
    chance = np.sort(rng.beta(0.5, 1.5, size=400))[::-1]
    truths = rng.random((3000, 400)) < chance
    hits, flagged = truths.cumsum(axis=1), np.arange(1, 401)
    f1 = (2 * hits / (flagged + truths.sum(axis=1, keepdims=True))).mean(axis=0)
    found = best_flags(chance)
    assert found[: int(found.sum())].all(), "the likeliest rows"
    assert f1[int(found.sum()) - 1] == pytest.approx(f1.max(), abs=2e-3)
    assert 0.3 < f1.max() < 0.9


def test_the_best_count_follows_the_mean_of_the_logarithm() -> None:
    """For one rate by hand: Poisson of 1 puts e⁻¹/k! on k, and E ln(1 + y) = Σ e⁻¹ ln(1 + k)/k!."""
    expected = sum(exp(-1) * log(1 + k) / factorial(k) for k in range(20))

    assert best_count(np.ones(10)) == pytest.approx(np.expm1(expected))


@pytest.mark.parametrize("kind", LAWS)
def test_only_columns_that_say_nothing_have_gaps(kind: str) -> None:
    table = world(kind, 1).table
    assert 0 < table.isna().any().sum() <= 4
    assert table.equals(world(kind, 1).table)
    assert not table.equals(world(kind, 2).table)


def test_a_synthetic_task_is_made_once_and_proves_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = synthetic_folder("regression-4", tmp_path)
    task = load_task(folder)
    assert (task.id, len(task.scores), folder.name) == ("synthetic-regression-4", 60, "synthetic-regression-4")
    assert check_task(task) == dict.fromkeys(PROOFS)
    assert weak_board(task) is None
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]
    ceiling = yaml.safe_load((folder / "config.yaml").read_text())["ceiling"]
    assert ceiling["final"] < task.thresholds.gold < task.dummy_score["final"]
    stamp = (folder / "config.yaml").stat().st_mtime_ns
    monkeypatch.setattr(synthetic_folder, "__defaults__", (tmp_path,))
    assert [found.id for found in catalog.load_tasks("synthetic:regression-4,diamonds")] == [task.id, "diamonds"]
    assert (folder / "config.yaml").stat().st_mtime_ns == stamp


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", LAWS)
def test_every_kind_makes_sound_tasks_byte_by_byte(kind: str, tmp_path: Path) -> None:
    for seed in (0, 11):
        first, second = (make_task(kind, seed, tmp_path / name / f"{kind}-{seed}") for name in ("a", "b"))
        assert check_task(first) == dict.fromkeys(PROOFS)
        for name in FILES:
            assert (first.folder / name).read_bytes() == (second.folder / name).read_bytes()


@pytest.mark.parametrize("name", ["binary", "binary-x", "binary-07", "ordinal-3", "binary-7/..", ""])
def test_a_name_that_is_none_is_one_sentence(name: str) -> None:
    with pytest.raises(WorkbenchError, match="is no synthetic task: expected synthetic:KIND-SEED, KIND one of "):
        catalog.task_folders(f"synthetic:{name}")


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "full").write_text("a file")
    with pytest.raises(WorkbenchError, match=r"cannot be written \(.*\): make room there"):
        synthetic_folder("count-1", tmp_path / "full")
