"""Competitions of openai/mle-bench as tasks, as they lie there: nothing is copied, nothing of theirs is kept here.

    <root>/<id>/prepared/public/    what `mlebench prepare` made for agents, shown to scripts as it lies, read-only
    <root>/<id>/prepared/private/   the answers, read by the grader's process alone
    <checkout>/mlebench/competitions/<id>/{config.yaml, leaderboard.csv, description.md, grade.py}

A task is named by `<root>` (all that are prepared there) or `<root>/<id>`, the checkout by `mlebench_repo` or
WORKBENCH_MLEBENCH. File names are the config's, never guessed. A submission is scored by the competition's own
`grade.py` in the grader's process (mlebench_grading.py), by ours (mlebench_metrics.py) where that cannot be imported.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from workbench.tasks.leaderboard import Thresholds, better, read_leaderboard, thresholds
from workbench.tasks.mlebench_metrics import LITE, METRICS, targets
from workbench.tasks.task import NOTHING, SPLITS, Grade, Split, file_sha, stamp
from workbench.types import WorkbenchError

VARIABLE = "WORKBENCH_MLEBENCH"
CLONE = "a clone of https://github.com/openai/mle-bench in which `git lfs pull` was run"
MB = 2**20
SIZE_FACTOR, MOST_BYTES = 20, 512 * MB
"""A submission may be this many times as large as the sample, always 1 MB, and beyond this only twice the sample."""


@dataclass(frozen=True, slots=True)
class BenchTask:
    """What the workbench knows of a competition. Answers are read when grading and never held here."""

    id: str
    folder: Path
    """<root>/<id>"""
    repo: Path
    """The checkout."""
    description: str
    metric_name: str
    grade_fn: str
    """`package.module:function`, importable with the checkout on the path."""
    answers: Path
    sample: Path
    gold: Path
    """The answers in the form of a submission."""
    higher_is_better: bool
    """As the board has it: whether its first score is at least its last."""
    thresholds: Thresholds
    scores: tuple[float, ...]
    """The board in the order of its file."""

    @property
    def public_dir(self) -> Path:
        """All that an agent's script may read."""
        return self.folder / "prepared" / "public"

    @property
    def max_bytes(self) -> int:
        """Size of the largest submission that is read."""
        size = self.sample.stat().st_size
        return max(1_000_000, min(SIZE_FACTOR * size, MOST_BYTES), 2 * size)

    @property
    def grading_s(self) -> float:
        """Its grader is imported, the answers are read, and up to four tables of their size are graded."""
        return 30.0 + 4.0 * self.answers.stat().st_size / MB

    @property
    def grading_mb(self) -> int:
        """Tables of words take ten times the room of their file, and several are held."""
        return 1024 + 40 * self.answers.stat().st_size // MB

    @property
    def dummy_score(self) -> Mapping[Split, float]:
        """The sample's score; where it has none, or one that is no worse than gold, that of the best constant we know
        (the answers' means), and else the board's median. Computed once per process, by the grader's."""
        return _dummies(self, stamp(self.sample), stamp(self.answers))

    def digest(self) -> str:
        """Equal for tasks that show a script the same files and grade what it writes in the same way. Data is known by
        names, sizes and times in the topmost folder, for there may be a hundred gigabytes of it."""
        shown = sorted((entry.name, *stamp(Path(entry.path))) for entry in os.scandir(self.public_dir))
        code = _grader_file(self)
        parts = (self.id, self.grade_fn, shown, stamp(self.answers), file_sha(code) if code.is_file() else "")
        return hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass")).hexdigest()

    def grade(self, submission: bytes | None, split: Split) -> Grade:
        """See `mlebench_grading.grade`; always in a process of its own. What takes too long, or ends that process, is
        invalid. Raises WorkbenchError as it does."""
        from workbench.tasks.grader import GradingLost, shared

        if submission is None:
            return Grade(None, NOTHING)
        if len(submission) > self.max_bytes:
            return Grade(None, f"the file is larger than {self.max_bytes} bytes.")
        try:
            return shared().grade(self, submission, split)
        except GradingLost as lost:
            return Grade(None, str(lost), "mle-bench")

    def grade_here(self, submission: bytes, split: Split) -> Grade:
        """The same in this process, which is the grader's."""
        from workbench.tasks.mlebench_grading import grade

        return grade(self, submission, split)


def load_bench(folder: Path | str, repo: Path | str | None = None) -> BenchTask:
    """A prepared competition, `<root>/<id>`.

    Raises WorkbenchError when it is not prepared, when the checkout is missing or does not know it, and for a board or
    config that is no such thing.
    """
    folder = Path(folder).resolve()
    name = folder.name
    checkout = find_repo(repo, folder)
    place = checkout / "mlebench" / "competitions" / name
    if not (place / "config.yaml").is_file():
        raise WorkbenchError(
            f"'{name}' is no competition of the checkout '{checkout}': '{place / 'config.yaml'}' is missing."
        )
    config = _config(place / "config.yaml")
    if config["id"] != name:
        raise WorkbenchError(
            f"'{place / 'config.yaml'}' has the id '{config['id']}': expected '{name}', as its folder."
        )
    data = config["dataset"]
    files = {key: folder.parent / str(data[key]) for key in ("answers", "sample_submission")}
    files["gold_submission"] = folder.parent / str(data.get("gold_submission", data["answers"]))
    _check_prepared(name, folder, files)
    scores = read_leaderboard(place / "leaderboard.csv")
    return BenchTask(
        id=name,
        folder=folder,
        repo=checkout,
        description=_description(folder, checkout / str(config.get("description", ""))),
        metric_name=str(config["grader"].get("name", "unnamed")),
        grade_fn=str(config["grader"]["grade_fn"]),
        answers=files["answers"],
        sample=files["sample_submission"],
        gold=files["gold_submission"],
        higher_is_better=not scores[0] < scores[-1],
        thresholds=thresholds(scores),
        scores=scores,
    )


def find_repo(repo: Path | str | None, folder: Path) -> Path:
    """The checkout named by a setting or by the environment. Raises WorkbenchError."""
    named = str(repo or os.environ.get(VARIABLE, "")).strip()
    if not named:
        raise WorkbenchError(
            f"'{folder}' is a competition of mle-bench and its checkout is not known: set {VARIABLE} (or "
            f"mlebench_repo) to {CLONE}."
        )
    place = Path(named).expanduser().resolve()
    if not (place / "mlebench" / "competitions").is_dir():
        raise WorkbenchError(f"'{named}' is no checkout of mle-bench: set {VARIABLE} (or mlebench_repo) to {CLONE}.")
    return place


def is_bench(folder: Path) -> bool:
    """Whether a folder is a competition's, prepared or not."""
    return (folder / "prepared").is_dir() or ((folder / "raw").is_dir() and not (folder / "config.yaml").exists())


def bench_folders(root: Path) -> list[Path]:
    """The prepared competitions of a data root: the 22 lite ones in mle-bench's order, then the others by name."""
    lite = list(LITE)
    found = [
        folder
        for folder in root.iterdir()
        if all((folder / "prepared" / part).is_dir() for part in ("public", "private"))
        and any((folder / "prepared" / "private").iterdir())
    ]
    return sorted(found, key=lambda folder: (lite.index(folder.name) if folder.name in LITE else 99, folder.name))


def _config(path: Path) -> dict[str, Any]:
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError, RecursionError, OSError) as error:
        raise WorkbenchError(f"'{path}' is no YAML file: {' '.join(str(error).split())}.") from None
    for names in (("id",), ("dataset", "answers"), ("dataset", "sample_submission"), ("grader", "grade_fn")):
        value = config
        for name in names:
            value = value.get(name) if isinstance(value, dict) else None
        if not isinstance(value, str):
            raise WorkbenchError(f"'{'.'.join(names)}' is missing in '{path}': expected a config of mle-bench.")
    return config


def _check_prepared(name: str, folder: Path, files: Mapping[str, Path]) -> None:
    remedy = f"run `mlebench prepare -c {name} --data-dir {folder.parent}`"
    public = folder / "prepared" / "public"
    if not public.is_dir() or not any(public.iterdir()):
        raise WorkbenchError(f"'{public}' is missing or empty: {remedy}.")
    for what, path in files.items():
        if not path.is_file():
            raise WorkbenchError(f"'{path}', the {what.replace('_', ' ')} of '{name}', is missing: {remedy}.")


def _description(folder: Path, other: Path) -> str:
    for path in (folder / "prepared" / "public" / "description.md", other):
        if path.is_file():
            return path.read_text(encoding="utf-8-sig", errors="replace")
    return ""


def _grader_file(task: BenchTask) -> Path:
    return task.repo.joinpath(*task.grade_fn.partition(":")[0].split(".")).with_suffix(".py")


@lru_cache(maxsize=256)
def _dummies(task: BenchTask, *changed: tuple[int, int]) -> Mapping[Split, float]:
    """The first of sample, constant and median that is worse than gold on both splits."""
    for data in (lambda: task.sample.read_bytes(), lambda: constant_submission(task)):
        scores = _scores(task, data())
        gold = task.thresholds.gold
        if scores and all(better(gold, score, task.higher_is_better) for score in scores.values()):
            return scores
    return dict.fromkeys(SPLITS, task.thresholds.median)


def _scores(task: BenchTask, data: bytes | None) -> dict[Split, float]:
    """Scores on both splits; empty when one has none. Raises WorkbenchError when a grading was lost: another floor
    would be another scale of rewards."""
    from workbench.tasks.grader import GradingLost, shared

    if data is None:
        return {}
    try:
        found = {split: shared().grade(task, data, split).score for split in SPLITS}
    except GradingLost as lost:
        raise WorkbenchError(
            f"The dummy submission of task '{task.id}' could not be graded ({str(lost).rstrip('.')}): try again."
        ) from None
    scores = {split: score for split, score in found.items() if score is not None and math.isfinite(score)}
    return scores if len(scores) == len(SPLITS) else {}


def constant_submission(task: BenchTask) -> bytes | None:
    """What says the same of every row: the answers' mean, or their most frequent label. None for an unknown task."""
    from workbench.tasks.mlebench_grading import answers

    competition = LITE.get(task.id)
    truth = answers(task)
    if competition is None or competition.id_column not in truth:
        return None
    said = truth[[competition.id_column]].copy()
    for name in targets(competition, truth):
        label = METRICS[competition.metric].wants in ("label", "text")
        said[name] = truth[name].mode().iloc[0] if label else truth[name].astype(float).mean()
    return said.to_csv(index=False).encode()
