"""A sweep file: which runs a batch makes, in which order, under which names; all of it checked before the first starts.

    notebook: 04_training    or `trainer: true`, the trainer without a notebook; default: notebook 04_training
    parameters: {…}          settings of every run
    grid: {loss: [a, b]}     every combination of the values
    arms: [{name: full}, {name: roots, buffer: false}]        named sets of settings, to be held against the first
    seeds: [0..9]            numbers and ranges
    parallel: 2              runs side by side, then with one thread each unless `threads` is set
    limit_s: 600             wall seconds of one start of a run after which it is stopped and counts as failed
    copy_to: FILE.csv        where the table is copied to when it is written

Order: all arms with the first seed, then all with the second, so that a part of a sweep is balanced.
"""

from __future__ import annotations

import ast
import hashlib
import itertools
import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.cli.common import read_yaml
from workbench.config import Config, make_config
from workbench.types import WorkbenchError
from workbench.views.parameters import MARK, parse, unknown, with_settings

NOTEBOOK = "04_training"
KEYS = ("notebook", "trainer", "parameters", "grid", "arms", "seeds", "parallel", "limit_s", "copy_to")
OURS = ("run_dir", "interactive", "settings")
"""Parameters of notebooks that a batch sets itself."""
MOST = 10_000
"""Runs of a sweep: more would take years, and their table would not fit on a page."""
NAME = 48
"""Longest part of a run's name that comes from its settings."""


@dataclass(frozen=True, slots=True)
class Job:
    """One run of a sweep."""

    name: str
    """Of its folder: what is varied, the seed, and a hash of all its settings; equal settings, equal name."""
    arm: str
    """What it is compared by: the arm's name and the point of the grid."""
    seed: int | None
    varied: Mapping[str, Any]
    settings: Mapping[str, Any]
    """All that is not left at its default, `seed` too."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep file that was checked."""

    file: Path
    notebook: Path | None
    """None: the trainer without a notebook."""
    declared: Mapping[str, str]
    """Name → type of the notebook's parameters."""
    jobs: tuple[Job, ...]
    parallel: int
    limit_s: float
    copy_to: Path | None


def read_sweep(file: Path) -> Sweep:
    """Read and check a sweep file. Raises WorkbenchError, in one sentence, for whatever is wrong in it."""
    content = read_yaml(file, "batch takes a YAML file, as those in notebooks/sweeps", "a sweep")
    try:
        return _sweep(file, content)
    except WorkbenchError as error:
        raise WorkbenchError(f"{file.name}: {error}") from None


def _sweep(file: Path, content: Mapping[Any, Any]) -> Sweep:
    for key in content:
        if key not in KEYS:
            raise WorkbenchError(unknown(str(key), KEYS, "key of a sweep"))
    notebook, declared = _kind(content)
    parallel = content.get("parallel", 1)
    if not isinstance(parallel, int) or isinstance(parallel, bool) or not 1 <= parallel <= 256:
        raise WorkbenchError(f"parallel={parallel!r} is not accepted: expected a whole number from 1 to 256.")
    limit_s = content.get("limit_s", math.inf)
    if (
        not isinstance(limit_s, int | float)
        or isinstance(limit_s, bool)
        or not (limit_s == math.inf or 0 < limit_s < 1e15)
    ):
        raise WorkbenchError(f"limit_s={limit_s!r} is not accepted: expected seconds above 0.")
    copy_to = content.get("copy_to")
    if copy_to is not None and not isinstance(copy_to, str):
        raise WorkbenchError(f"copy_to={copy_to!r} is not accepted: expected the path of a CSV file.")
    fixed = _settings(content.get("parameters", {}), "parameters")
    shared = parallel > 1 and (notebook is None or {"settings", "threads"} & declared.keys())
    unless = {"threads": 1} if shared else {}
    kind = "trainer" if notebook is None else notebook.stem
    jobs = tuple(_jobs(content, fixed, unless, kind, "seed" in declared))
    defaults = {} if notebook is None else default_values(notebook)
    checked = [_check_job(job, declared, notebook, defaults) for job in jobs]
    _refuse_equal(jobs, [whole for whole, _ in checked], parallel)
    _check_places(config for _, config in checked if config is not None)
    return Sweep(file, notebook, declared, jobs, parallel, float(limit_s), Path(copy_to) if copy_to else None)


def _kind(content: Mapping[Any, Any]) -> tuple[Path | None, dict[str, str]]:
    """(notebook, its parameters by name), or (None, the settings of a run) for the trainer."""
    trainer = content.get("trainer", False)
    if not isinstance(trainer, bool):
        raise WorkbenchError(f"trainer={trainer!r} is not accepted: expected true or false.")
    if trainer and "notebook" in content:
        raise WorkbenchError("notebook and trainer exclude each other: leave one of them out.")
    if trainer:
        return None, dict.fromkeys(Config.model_fields, "")
    from workbench.cli.notebook import declared_parameters, find

    notebook = find(str(content.get("notebook", NOTEBOOK)))
    return notebook, declared_parameters(notebook)


# --- from the keys to the runs


def _jobs(
    content: Mapping[Any, Any], fixed: Mapping[str, Any], unless: Mapping[str, Any], kind: str, seeded: bool
) -> Iterable[Job]:
    """The runs, by seed first. `unless`: what holds where the sweep says nothing else."""
    arms, grid = _arms(content), _grid(content)
    spans = _seeds(content["seeds"]) if "seeds" in content else [range(1)]
    count = len(arms) * math.prod(map(len, grid.values())) * sum(map(len, spans))
    if count > MOST:
        raise WorkbenchError(f"the sweep has {count} runs: expected at most {MOST}, take fewer seeds or values.")
    given = _once(spans) if "seeds" in content or seeded else (None,)
    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    for where, names in (("parameters", fixed), ("grid", points[0]), *((f"arm '{arm}'", s) for arm, s in arms.items())):
        if "seed" in names:
            raise WorkbenchError(f"{where} sets seed: write `seeds: [{names['seed']}]` instead.")
    for name in points[0]:
        if twice := [where for where, others in (("parameters", fixed), *arms.items()) if name in others]:
            raise WorkbenchError(f"'{name}' is set by grid and by {twice[0]}: leave one of them out.")
    for arm, settings in arms.items():
        if shared := sorted(settings.keys() & fixed.keys()):
            raise WorkbenchError(f"'{shared[0]}' is set by parameters and by arm '{arm}': leave one of them out.")
    columns = list(dict.fromkeys([*itertools.chain(*arms.values()), *points[0]]))
    for seed in given:
        for (arm, settings), point in itertools.product(arms.items(), points):
            varied = {**settings, **point}
            whole = {**unless, **fixed, **varied, **({} if seed is None else {"seed": seed})}
            label = " ".join([*([arm] if arm else []), *(f"{name}={_text(value)}" for name, value in point.items())])
            yield Job(_name(kind, label, seed, whole), label or "all", seed, {n: varied.get(n) for n in columns}, whole)


def _name(kind: str, label: str, seed: int | None, settings: Mapping[str, Any]) -> str:
    text = json.dumps([kind, label, sorted(settings.items())], default=str)
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    stem = re.sub(r"[^A-Za-z0-9._=-]+", "-", label)[:NAME].strip("-.") or "run"
    return f"{stem}{'' if seed is None else f'-s{seed}'}-{digest}"


def _arms(content: Mapping[Any, Any]) -> dict[str, dict[str, Any]]:
    """Name → settings; one unnamed arm without settings where there are none."""
    if "arms" not in content:
        return {"": {}}
    arms = content["arms"]
    if not isinstance(arms, list) or not arms:
        raise WorkbenchError(f"arms={arms!r} is not accepted: expected a list such as [{{name: full}}].")
    found: dict[str, dict[str, Any]] = {}
    for arm in arms:
        name = arm.get("name") if isinstance(arm, dict) else None
        if not isinstance(name, str) or not name.strip():
            raise WorkbenchError(f"the arm {arm!r} has no name: write it as {{name: roots, buffer: false}}.")
        if name in found:
            raise WorkbenchError(f"two arms have the name '{name}': give each its own.")
        settings = _settings({key: value for key, value in arm.items() if key != "name"}, f"arm '{name}'")
        found[name] = settings
    return found


def _grid(content: Mapping[Any, Any]) -> dict[str, list[Any]]:
    """Name → values; empty where there is no grid."""
    if "grid" not in content:
        return {}
    grid = content["grid"]
    if not isinstance(grid, dict) or not grid:
        raise WorkbenchError(f"grid={grid!r} is not accepted: expected names with lists, such as {{tau: [0, 5]}}.")
    for name, values in grid.items():
        if not isinstance(values, list) or not values:
            raise WorkbenchError(f"grid: {name}={values!r} is not accepted: expected a list of at least one value.")
        seen = set()
        for value in values:
            _settings({name: value}, "grid")
            if _text(value) in seen:
                raise WorkbenchError(f"grid: {name} has {value!r} twice: leave one of them out.")
            seen.add(_text(value))
    return {str(name): values for name, values in grid.items()}


def _seeds(given: Any) -> list[range]:
    """`[0, 5..7]` → 0 and 5 to 7, not yet written out: a range may be longer than the memory."""
    spans = []
    for entry in given if isinstance(given, list) else [given]:
        bounds = re.fullmatch(r"(\d{1,9})\.\.(\d{1,9})", entry) if isinstance(entry, str) else None
        if bounds and int(bounds[1]) <= int(bounds[2]):
            spans.append(range(int(bounds[1]), int(bounds[2]) + 1))
        elif isinstance(entry, int) and not isinstance(entry, bool) and entry >= 0:
            spans.append(range(entry, entry + 1))
        else:
            raise WorkbenchError(f"seeds: {entry!r} is no seed: expected whole numbers from 0 on, or a range as 0..9.")
    if not spans:
        raise WorkbenchError(f"seeds={given!r} names no seed: expected whole numbers from 0 on, or a range as 0..9.")
    return spans


def _once(spans: Iterable[range]) -> tuple[int, ...]:
    """The seeds one by one, each of which may stand there once."""
    seeds: dict[int, None] = {}
    for seed in itertools.chain(*spans):
        if seed in seeds:
            raise WorkbenchError(f"seeds names {seed} twice: leave one of them out.")
        seeds[seed] = None
    return tuple(seeds)


def _settings(values: Any, where: str) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise WorkbenchError(f"{where}={values!r} is not accepted: expected names with values.")
    for name, value in values.items():
        if not isinstance(value, str | int | float | bool | None):
            raise WorkbenchError(
                f"{where}: {name}={value!r} is not accepted: expected a number, a text, true or false."
            )
    return {str(name): value for name, value in values.items()}


# --- from a run's settings to a command line


def _check_job(
    job: Job, declared: Mapping[str, str], notebook: Path | None, defaults: Mapping[str, Any]
) -> tuple[dict[str, Any], Config | None]:
    """(all settings of a run as it reads them, the same as a `Config` where it takes them as settings). `defaults`: of
    the notebook. Raises WorkbenchError for a name that is no setting, and for a value that is refused."""
    if notebook is None:
        config = make_config(dict(job.settings))
        return config.model_dump(), config
    own, more = split_settings(job.settings, declared)
    for name in own:
        if name in OURS:
            raise WorkbenchError(f"'{name}' is set by the batch itself: write settings as parameters of their own.")
    typed = {name: parse(name, _text(value), declared[name]) for name, value in own.items()}
    if more and "settings" not in declared:
        raise WorkbenchError(unknown(next(iter(more)), declared, f"parameter of {notebook.name}"))
    for name, value in more.items():
        if name not in Config.model_fields:
            names = [*declared, *Config.model_fields]
            raise WorkbenchError(unknown(name, names, f"parameter of {notebook.name} and no setting"))
        if with_settings({}, f"{name}={_text(value)}").keys() != {name}:
            raise WorkbenchError(
                f"{name}={value!r} has commas that {notebook.name} takes for further settings: use `trainer: true`."
            )
    if MARK in typed and typed[MARK] != defaults.get(MARK):
        defaults = {}  # another preset sets what is not set here
    whole = {**defaults, **typed}
    if "settings" not in declared:
        return whole, None
    known = {name: value for name, value in whole.items() if name in Config.model_fields}
    if known.get("learning_rate") == 0:
        del known["learning_rate"]  # the notebook's word for the trainer's own choice: papermill reads no type with |
    config = make_config({**known, **more})
    others = {name: value for name, value in config.model_dump().items() if name not in declared}
    return {**others, **whole}, config


def _refuse_equal(jobs: Sequence[Job], wholes: Sequence[Mapping[str, Any]], parallel: int) -> None:
    """Raise WorkbenchError for two runs that are written differently and come to the same."""
    found: dict[str, str] = {}
    for job, whole in zip(jobs, wholes, strict=True):
        if job.seed != jobs[0].seed:  # from here on all comes again
            return
        if parallel > 1 and "workers" not in job.settings:
            whole = {**whole, "workers": None}  # that of a run by itself, shared out
        text = repr(sorted(whole.items()))
        if text in found:
            raise WorkbenchError(
                f"the runs '{found[text]}' and '{job.arm}' have equal settings, defaults among them: leave one out."
            )
        found[text] = job.arm


def _check_places(configs: Iterable[Config]) -> None:
    """Raise WorkbenchError for tasks and policies that are not there, as a run would when it is started; each once."""
    from workbench.learning.opening import keep_apart, measures

    seen: set[Any] = set()
    for config in configs:
        tasks = (config.tasks, config.eval_tasks if measures(config) else None, config.mlebench_repo)
        if tasks not in seen:
            held_out = [] if tasks[1] is None else _task_ids(tasks[1], config)
            keep_apart(_task_ids(config.tasks, config), held_out)
        if config.policy not in seen and config.policy != "tiny":  # which comes with the workbench
            from workbench.agent.loading import resolve  # some seconds, for torch

            resolve(config.policy)
        seen |= {tasks, config.policy}


def _task_ids(spec: str, config: Config) -> list[str]:
    """Ids of the tasks that `spec` names. Synthetic ones are not made for that, which takes some seconds each."""
    from workbench.tasks.catalog import SYNTHETIC, load_tasks

    parts = [spec] if os.path.isdir(os.path.expanduser(spec)) else [part.strip() for part in spec.split(",")]
    made = [part.removeprefix(SYNTHETIC) for part in parts if part.startswith(SYNTHETIC)]
    if made:
        from workbench.tasks.generators import LAWS

        for name in made:
            match = re.fullmatch(r"([a-z]+)-(0|[1-9]\d{0,8})", name)
            if match is None or match[1] not in LAWS:
                raise WorkbenchError(
                    f"'{SYNTHETIC}{name}' is no synthetic task: expected {SYNTHETIC}KIND-SEED, KIND one of "
                    f"{', '.join(LAWS)}."
                )
    rest = ",".join(part for part in parts if not part.startswith(SYNTHETIC))
    loaded = load_tasks(rest, mlebench_repo=config.mlebench_repo) if rest.strip(", ") or not made else []
    return [*(f"synthetic-{name}" for name in made), *(task.id for task in loaded)]


def default_values(notebook: Path) -> dict[str, Any]:
    """Name → default of the parameters of a notebook, where it is plainly written."""
    import nbformat

    found: dict[str, Any] = {}
    for cell in nbformat.read(notebook, as_version=4).cells:
        if "parameters" in cell.metadata.get("tags", []):
            with suppress(SyntaxError):  # a cell with magics
                for line in ast.parse(cell.source).body:
                    if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and line.value:
                        with suppress(ValueError):
                            found[line.target.id] = ast.literal_eval(line.value)
    return found


def split_settings(settings: Mapping[str, Any], declared: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(those that a notebook declares as parameters, the others, which go into its parameter `settings`)."""
    own = {name: value for name, value in settings.items() if name in declared}
    return own, {name: value for name, value in settings.items() if name not in declared}


def shared_workers(job: Job, sweep: Sweep) -> dict[str, int]:
    """The executor's workers of one run: those of a run by itself, shared out over the runs side by side."""
    if "workers" in job.settings or sweep.parallel == 1:
        return {}
    return {"workers": max(1, Config().workers // sweep.parallel)}


def train_words(settings: Mapping[str, Any]) -> list[str]:
    """The settings of a run as words of `workbench train`."""
    return [word for name, value in settings.items() for word in ("--set", f"{name}={_text(value)}")]


def notebook_words(settings: Mapping[str, Any], declared: Mapping[str, str], run: Path) -> list[str]:
    """The settings of a run as words of `workbench notebook`."""
    own, more = split_settings(settings, declared)
    if "run_dir" in declared:
        own["run_dir"] = str(run)
    if more:
        own["settings"] = ", ".join(f"{name}={_text(value)}" for name, value in more.items())
    return [word for name, value in own.items() for word in ("-p", f"{name}={_text(value)}")]


def _text(value: Any) -> str:
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def changes(before: Mapping[str, Any] | None, jobs: Sequence[Job]) -> str:
    """One sentence on how the runs differ from those of an earlier start in the same folder; "" where they do not.

    `before`: names of the runs then; None at the first start.
    """
    if before is None:
        return ""
    names = {job.name for job in jobs}
    new, gone = sorted(names - before.keys()), sorted(before.keys() - names)
    if not new and not gone:
        return ""
    parts = [
        f"{len(found)} runs {what}, {found[0]} the first"
        for found, what in ((new, "are new"), (gone, "are gone"))
        if found
    ]
    return f"the sweep is not the one that this folder was started with: {'; '.join(parts)} (what was run is kept)"
