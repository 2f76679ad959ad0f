"""Every setting of a run with its default, range and meaning: the one table of defaults.

A field marked `live=True` is a knob: it may be changed while a run goes on (control.py), at a step boundary.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from workbench.types import WorkbenchError

ROOT = Path(__file__).resolve().parent.parent
"""The checkout: `data/`, `notebooks/` and `runs/` lie here, whatever the working directory is."""

Loss = Literal["grpo", "dr_grpo", "dapo", "gspo", "cispo"]
Strategy = Literal["acegrpo", "uniform", "learnability", "variance", "regret", "dapo"]
Component = Literal["ladder", "rank", "gain", "medal", "format", "own_score"]


def _knob(default: Any, description: str, *, unit: str = "", group: str, **bounds: Any) -> Any:
    extra: dict[str, Any] = {"live": True, "unit": unit, "group": group}
    return Field(default, description=description, json_schema_extra=extra, **bounds)


def _fixed(default: Any, description: str, *, group: str, **bounds: Any) -> Any:
    return Field(default, description=description, json_schema_extra={"live": False, "group": group}, **bounds)


class Config(BaseModel):
    """Settings of one training run. Unknown names and values out of range are refused at construction."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    # What is trained, on what
    policy: str = _fixed("tiny", "'tiny' (embedded), a Hugging Face id, a folder, or a GGUF file.", group="run")
    tasks: str = _fixed(
        "core",
        "Task ids, globs or synthetic:KIND-SEED, comma-separated; 'train' names all 16 embedded training tasks, "
        "'core' six quick ones of them.",
        group="run",
    )
    eval_tasks: str = _fixed(
        "core-heldout",
        "Tasks measured before and after; they must not be among `tasks`. 'heldout' names all six that are kept out, "
        "'core-heldout' two of them.",
        group="run",
    )
    mlebench_repo: str | None = _fixed(
        None, "Checkout of mle-bench, for its tasks; None: what WORKBENCH_MLEBENCH says.", group="run"
    )
    eval_drafts: int = _fixed(
        128, "Single drafts per task for valid_before/after; 0 skips the measurement.", group="run", ge=0, le=4096
    )
    eval_every: int = _fixed(
        0,
        "Steps between measurements of kept-out drafts along training, which are no executions; 0: none.",
        group="run",
        ge=0,
        le=1_000_000,
    )
    eval_every_drafts: int = _fixed(16, "Single drafts per task in each of these.", group="run", ge=1, le=4096)
    seed: int = _fixed(
        0, "Sets policy sampling, state sampler and task order; the weights stay the same.", group="run", ge=0, lt=2**31
    )
    steps: int = _knob(40, "Optimizer steps of the run.", group="run", ge=1, le=1_000_000)

    # Acting
    groups: int = _knob(4, "Groups (states) per step.", group="rollout", ge=1, le=1024)
    group_size: int = _knob(8, "Actions per group; below 2 no advantage exists.", group="rollout", ge=2, le=256)
    episode_turns: int = _fixed(
        1,
        "Turns of an episode; from 2 on each action is gone on from at once, and all turns are credited with the "
        "episode's outcome (needs buffer=false).",
        group="rollout",
        ge=1,
        le=64,
    )
    temperature: float = _knob(1.0, "Sampling temperature; the trainer uses the same.", group="rollout", ge=0.1, le=5.0)
    max_prompt_tokens: int = _fixed(
        384, "Prompt budget; sections are trimmed by priority to fit.", group="rollout", ge=64, le=131_072
    )
    max_completion_tokens: int = _fixed(256, "Longest action.", group="rollout", ge=1, le=131_072)

    # Learning
    reward: str = _fixed(
        "default",
        "default: the ladder from no code to gold; else components with weights, `ladder:0.8,gain:0.2` or a mapping, "
        "of ladder, rank, gain, medal, format, own_score; weights are divided by their sum.",
        group="learning",
    )
    flat_groups: Literal["auto", "keep", "drop", "redraw"] = _fixed(
        "auto",
        "Groups of equal rewards: keep (only a KL term acts on them), drop (nothing does), redraw (drop, and act in "
        "other states in their place); auto: redraw for strategy=dapo, else keep.",
        group="learning",
    )
    redraw_limit: int = _knob(
        12,
        "Most groups that flat_groups=redraw adds to a step; what is flat after them stays missing.",
        unit="groups",
        group="rollout",
        ge=0,
        le=100_000,
    )
    loss: Loss = _fixed("dapo", "Per-token loss and its aggregation.", group="learning")
    learning_rate: float | None = _knob(
        None, "AdamW step size; None chooses by policy size.", group="learning", gt=0, le=1.0
    )
    learning_rate_decay: float = _knob(
        0.5,
        "Share of the steps, the last ones, over which the learning rate falls linearly to a tenth.",
        group="learning",
        ge=0,
        le=1,
    )
    clip_low: float = _knob(
        0.2, "Lower clip range of the importance ratio: 1 - clip_low.", group="learning", ge=0, lt=1
    )
    clip_high: float = _knob(
        0.28, "Upper clip range of the importance ratio: 1 + clip_high.", group="learning", ge=0, le=10
    )
    ratio_cap: float = _knob(
        5.0, "CISPO: largest importance ratio that weights a token.", group="learning", gt=0, le=100
    )
    kl_coef: float = _knob(
        0.0, "Weight of the KL to the policy at start; 0 loads no reference.", group="learning", ge=0, le=10
    )
    kl_estimator: Literal["k1", "k2", "k3"] = _fixed("k3", "KL estimator (Schulman 2020).", group="learning")
    advantage_scale: Literal["group", "batch", "none"] = _fixed(
        "group", "Divide centred rewards by this standard deviation (ddof 0, floor 1e-6).", group="learning"
    )
    ratio: Literal["recorded", "decoupled"] = _fixed(
        "recorded", "Old log-probabilities: as recorded at sampling, or recomputed before the update.", group="learning"
    )
    mismatch: Literal["none", "truncate", "mask"] = _fixed(
        "none", "Weight old/sampler: none, min(w, cap), or w·1[w ≤ cap]; needs ratio=decoupled.", group="learning"
    )
    mismatch_cap: float = _knob(2.0, "Cap of the mismatch weight.", group="learning", gt=0, le=100)
    iterations: int = _knob(1, "Optimizer passes over the same batch.", group="learning", ge=1, le=64)
    max_grad_norm: float = _knob(1.0, "Gradient clipping, L2.", group="learning", gt=0, le=1e6)
    max_staleness: int = _knob(
        8,
        "Versions after which an action is dropped; acts only when generation runs ahead of updates.",
        unit="versions",
        group="learning",
        ge=0,
        le=10_000,
    )
    micro_batch_tokens: int = _fixed(
        8192, "Padded tokens per forward; the result does not depend on it.", group="learning", ge=64
    )
    adapter: Literal["auto", "lora", "full"] = _fixed(
        "auto", "auto: full below 100 M parameters, LoRA from there.", group="learning"
    )
    lora_rank: int = _fixed(16, "Rank of LoRA, on all linear layers; alpha = 2·rank.", group="learning", ge=1, le=1024)

    # Curriculum (AceGRPO)
    buffer: bool = _fixed(True, "False: draft roots only.", group="curriculum")
    strategy: Strategy = _fixed("acegrpo", "How states are chosen.", group="curriculum")
    rho_end: float = _knob(1.0, "Focus ρ after its ramp; 0 is uniform over ranks.", group="curriculum", ge=0, le=10)
    rho_ramp: float = _knob(0.6, "Share of the steps over which ρ rises from 0.", group="curriculum", ge=0, le=1)
    tau: int = _knob(5, "Cooling: steps a chosen state rests.", unit="steps", group="curriculum", ge=0, le=10_000)
    epsilon: float = _knob(0.05, "Uniform share of the choice.", group="curriculum", ge=0, le=1)
    root_share: float = _knob(
        0.25, "Share of a step's states kept for rested roots (drafts).", group="curriculum", ge=0, le=1
    )
    std_exponent: float = _knob(1.0, "a in P = (2·std)^a · (R_max - mean)^b.", group="curriculum", ge=0, le=8)
    headroom_exponent: float = _knob(1.0, "b in P = (2·std)^a · (R_max - mean)^b.", group="curriculum", ge=0, le=8)
    potential_ema: float = _fixed(
        0.5, "Weight of the newest visit in P's moving average.", group="curriculum", gt=0, le=1
    )
    capacity: int = _fixed(
        4096, "States kept; beyond it the lowest P is evicted (roots stay).", group="curriculum", ge=1, le=10_000_000
    )
    children_cap: int = _fixed(256, "Most states per (task, kind) made by Φ.", group="curriculum", ge=1)

    # Executor
    cpu_s: float = _fixed(3.0, "CPU seconds per script.", group="executor", gt=0, le=86_400)
    wall_s: float = _fixed(15.0, "Wall seconds per script.", group="executor", gt=0, le=86_400)
    memory_mb: int = _fixed(1024, "Memory per script, MB.", group="executor", ge=64, le=4_194_304)
    workers: int = _fixed(2, "Scripts run at once.", group="executor", ge=1, le=256)
    min_level: Literal["B", "C", "D", "E"] = _fixed(
        "D", "Weakest isolation level accepted; E also needs unsafe_executor.", group="executor"
    )
    unsafe_executor: bool = _fixed(False, "Allow level E: no file, network or signal isolation.", group="executor")

    # Machine and run
    device: str = _fixed("auto", "auto, cpu, cuda, cuda:N or mps.", group="machine")
    dtype: Literal["auto", "float32", "bfloat16"] = _fixed(
        "auto", "auto: bf16 where a probe finds it faster; the tiny policy runs in fp32.", group="machine"
    )
    threads: int = _fixed(2, "CPU threads of the trainer.", group="machine", ge=1, le=1024)
    checkpoint_every_s: float | None = _fixed(
        None,
        "Least seconds between checkpoints, 0: after every step; None: 0 below 100 M parameters, 60 from there.",
        group="machine",
        ge=0,
    )

    @field_validator("*", mode="before")
    @classmethod
    def _no_number(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, bool) and cls.model_fields[str(info.field_name)].annotation is not bool:
            raise AssertionError("true and false are no numbers, although Python counts with them")
        return value

    @field_validator("reward", mode="before")
    @classmethod
    def _reward(cls, value: Any) -> Any:
        """A mapping becomes text, so that a setting is one thing in YAML, in --set, in papermill and in the run."""
        if isinstance(value, Mapping):
            value = ",".join(f"{name}:{weight}" for name, weight in value.items())
        if isinstance(value, str):
            reward_weights(value)
        return value

    @model_validator(mode="after")
    def _compatible(self) -> Config:
        if self.strategy == "dapo" and self.flat_groups in ("keep", "drop"):
            raise ValueError(
                f"flat_groups={self.flat_groups} contradicts strategy=dapo, which draws again: leave it out, or choose "
                "strategy=uniform"
            )
        if self.episode_turns > 1 and self.buffer:
            raise ValueError(
                f"episode_turns={self.episode_turns} goes on from each action at once, which a buffer would do later: "
                "set buffer=false or episode_turns=1"
            )
        if self.episode_turns > 1 and "gain" in self.reward:
            raise ValueError(
                f"episode_turns={self.episode_turns} compares outcomes, and gain over a parent would favour episodes "
                "that begin badly: leave gain out of reward, or set episode_turns=1"
            )
        if self.mismatch != "none" and self.ratio != "decoupled":
            raise ValueError(
                f"mismatch={self.mismatch} needs ratio=decoupled: with recorded ratios the mismatch weight is 1; "
                "set ratio=decoupled or mismatch=none"
            )
        return self


def reward_weights(text: str) -> dict[str, float]:
    """Component → weight of the setting `reward`; a name alone has the weight 1.

    Raises ValueError for an unknown or doubled name, a weight that is not above 0 and up to `MAX_WEIGHT`, and `gain`
    alone.
    """
    if text.strip() == "default":
        return {"ladder": 1.0}
    weights: dict[str, float] = {}
    for part in text.split(","):
        name, _, given = (piece.strip() for piece in part.partition(":"))
        if name not in COMPONENTS:
            raise ValueError(f"'{name}' is no component, expected default or name:weight of {', '.join(COMPONENTS)}")
        if name in weights:
            raise ValueError(f"'{name}' stands there twice, leave one out")
        try:
            weight = float(given) if ":" in part else 1.0
        except ValueError:
            weight = math.nan
        if not 0 < weight <= MAX_WEIGHT:
            raise ValueError(
                f"the weight '{given}' of {name} is no number above 0 and up to {MAX_WEIGHT:g}, leave {name} out to "
                "ignore it"
            )
        weights[name] = weight
    if weights.keys() == {"gain"}:
        raise ValueError("a draft has no parent to gain over, add another component such as ladder")
    return weights


def knobs() -> dict[str, dict[str, Any]]:
    """Name → {description, unit, group, type, default, bounds} of every live field, in the order of the table."""
    schema = Config.model_json_schema()["properties"]
    return {name: schema[name] for name in Config.model_fields if schema[name].get("live")}


def make_config(values: dict[str, Any] | None = None, **more: Any) -> Config:
    """Build a `Config`; a bad name or value raises `WorkbenchError` with one sentence."""
    return _sentence(lambda: Config(**{**(values or {}), **more}))


def change(config: Config, **values: Any) -> Config:
    """A copy with some fields changed, validated as a whole."""
    return make_config({**config.model_dump(), **values})


def parse_settings(pairs: Iterable[str]) -> dict[str, Any]:
    """`["steps=2", "buffer=false"]` → values that `make_config` validates (numbers stay text until then)."""
    values: dict[str, Any] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator:
            raise WorkbenchError(f"'{pair}' is no setting: expected key=value, for example steps=20.")
        if name.strip() in values:
            raise WorkbenchError(f"'{name.strip()}' is set twice, last by '{pair}': leave one of them out.")
        values[name.strip()] = None if value.strip().lower() == "none" else value.strip()
    return values


def _sentence(build: Any) -> Config:
    try:
        return build()
    except ValidationError as error:
        text = "; ".join(_explain(item) for item in error.errors())
        raise WorkbenchError(text if text.endswith("?") else f"{text}.") from None


def _explain(item: Any) -> str:
    name = ".".join(str(part) for part in item["loc"])
    if item["type"] == "extra_forbidden":
        near = difflib.get_close_matches(name, Config.model_fields, n=1)
        hint = f"did you mean '{near[0]}'?" if near else "see `workbench train --help` for the settings"
        return f"'{name}' is no setting: {hint}"
    if not name:
        return str(item["msg"]).removeprefix("Value error, ")
    if item["type"] == "value_error":  # a sentence of our own
        return f"{name}={item['input']!r} is not accepted: {str(item['msg']).removeprefix('Value error, ')}"
    default = f"the default {name}={Config.model_fields[name].default}"
    return f"{name}={item['input']!r} is not accepted: expected {accepted(name)}; give one, such as {default}"


_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def accepted(name: str) -> str:
    """What a setting takes, in words: `a whole number from 1 to 64`, or its choices."""
    field = Config.model_fields[name]
    kinds = [kind for kind in get_args(field.annotation) or (field.annotation,) if kind is not NoneType]
    if get_origin(field.annotation) is Literal:
        return f"{', '.join(kinds[:-1])} or {kinds[-1]}"
    bounds = {key: f"{getattr(each, key):.10g}" for each in field.metadata for key in _BOUNDS if hasattr(each, key)}
    words = [text.format(bounds[key]) for key, text in _BOUNDS.items() if key in bounds]
    if set(bounds) == {"ge", "le"}:
        words = [f"from {bounds['ge']} to {bounds['le']}"]
    none = " or None" if len(kinds) < len(get_args(field.annotation)) else ""
    return f"{_KINDS[kinds[0]]} {' and '.join(words)}".rstrip() + none


_BOUNDS = {"ge": "of at least {}", "gt": "above {}", "le": "at most {}", "lt": "below {}"}


STRATEGIES: tuple[str, ...] = get_args(Strategy)
LOSSES: tuple[str, ...] = get_args(Loss)
COMPONENTS: tuple[str, ...] = get_args(Component)

MAX_WEIGHT = 1e6
"""Of a component of the reward: weights are divided by their sum, so that larger ones say nothing more."""
