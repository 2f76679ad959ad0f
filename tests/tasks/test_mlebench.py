"""Competitions in mle-bench's layout, miniatures of each irregularity: loaded, checked, graded, shown."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from miniature import Bench, add, make_bench, sample_of, truth_of, write_board, zip_in_place

from workbench.agent.cards import card
from workbench.agent.environment import Environment
from workbench.agent.prompts import ASK, PREVIEW_LINES, render
from workbench.sandbox.executor import Executor, Limits
from workbench.tasks.catalog import load_tasks, task_folders
from workbench.tasks.grader import Grader, GradingLost, shared
from workbench.tasks.leaderboard import thresholds
from workbench.tasks.mlebench import BenchTask, load_bench
from workbench.tasks.mlebench_check import check_bench
from workbench.tasks.mlebench_grading import draw_rows
from workbench.tasks.mlebench_metrics import LITE, METRICS, Refused, own_score
from workbench.tasks.task import Grade, position, report
from workbench.types import Action, Kind, State, StopReason, Verdict, WorkbenchError

INSULTS = "detecting-insults-in-social-commentary"
ENGLISH = "text-normalization-challenge-english-language"
NOMAD = "nomad2018-predict-transparent-conductors"
RANZCR = "ranzcr-clip-catheter-line-classification"
WHALE = "the-icml-2013-whale-challenge-right-whale-redux"
PIZZA = "random-acts-of-pizza"
CACTUS = "aerial-cactus-identification"
DENOISE = "denoising-dirty-documents"
TPS = "tabular-playground-series-may-2022"

Load = Callable[[Bench, str], BenchTask]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    made = make_bench(tmp_path)
    monkeypatch.setenv("WORKBENCH_MLEBENCH", str(made.repo))
    return made


def load(bench: Bench, name: str) -> BenchTask:
    return load_bench(bench.root / name)


def text(frame: pd.DataFrame) -> bytes:
    return frame.to_csv(index=False).encode()


def holds(task: BenchTask) -> None:
    assert {name: reason for name, reason in check_bench(task).items() if reason} == {}


# One test per irregularity


def test_answers_and_samples_of_any_name(bench: Bench) -> None:
    """denoising: private/answers.csv and sampleSubmission.csv; answers are gold where no other file is named."""
    add(bench, DENOISE, answers="private/answers.csv", sample="public/sampleSubmission.csv")
    task = load(bench, DENOISE)
    assert (task.answers.name, task.sample.name, task.gold) == ("answers.csv", "sampleSubmission.csv", task.answers)
    assert task.higher_is_better is False
    holds(task)


def test_gold_is_what_the_config_names(bench: Bench) -> None:
    """insults: answers with columns besides, rows known by their text, gold and sample under other names."""
    add(bench, INSULTS, sample="public/sample_submission_null.csv", gold="private/gold_submission.csv")
    place = bench.prepared(INSULTS) / "private" / "test.csv"
    frame = pd.read_csv(place).assign(Date="20120618", Usage="PrivateTest")
    frame[["Insult", "Date", "Comment", "Usage"]].to_csv(place, index=False)
    task = load(bench, INSULTS)
    assert task.gold.name == "gold_submission.csv"
    holds(task)


def test_json_inputs(bench: Bench) -> None:
    """pizza: train.json and test.json, columns that nest; the prompt names their columns."""
    add(bench, PIZZA, sample="public/sampleSubmission.csv")
    public = bench.prepared(PIZZA) / "public"
    frame = pd.DataFrame({"request_id": ["t3_a", "t3_b"], "request_text": ["please", "hungry"]})
    frame["requester_subreddits_at_request"] = [["a", "b"], []]
    frame.assign(requester_received_pizza=[True, False]).to_json(public / "train.json", orient="records")
    frame.to_json(public / "test.json", orient="records")
    task = load(bench, PIZZA)
    holds(task)
    facts = card(task)
    assert facts.table == "train.json"
    assert [column.name for column in facts.columns][:2] == ["request_id", "request_text"]
    assert facts.columns[2].examples[0].startswith(("[]", '["a"'))


def test_zips_in_public_and_the_sample_in_private(bench: Bench) -> None:
    """text normalization; and what pandas takes for missing ("NA", "null") is right where the answer is such a word."""
    add(bench, ENGLISH, answers="private/answers.csv", sample="private/sample_submission.csv")
    public = bench.prepared(ENGLISH) / "public"
    words = pd.DataFrame({"sentence_id": [0, 0], "token_id": [0, 1], "before": ["1995", "NA"], "after": ["x", "NA"]})
    words.to_csv(public / "en_train.csv", index=False)
    zip_in_place(public / "en_train.csv")
    task = load(bench, ENGLISH)
    holds(task)
    facts = card(task)
    assert (facts.table, facts.submission) == ("en_train.csv.zip", ("id", "after"))
    assert [column.name for column in facts.columns] == ["sentence_id", "token_id", "before", "after"]
    truth = truth_of(ENGLISH)
    other = truth.replace({"after": {"null": "n/a"}})  # another word for a missing value
    assert (truth["after"] == "NA").sum() == 4
    for said in (truth, other):
        assert task.grade(text(said), "final").score == 1.0
    wrong = truth.assign(after=truth["after"].where(truth["after"] != "NA", "a word"))
    assert task.grade(text(wrong), "final").score == 0.8  # 4 of 20 wrong


def test_a_board_that_is_a_pointer(bench: Bench) -> None:
    add(bench, WHALE)
    board = bench.place(WHALE) / "leaderboard.csv"
    board.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    with pytest.raises(WorkbenchError, match=r"leaderboard\.csv' is a Git LFS pointer.*`git lfs pull`"):
        load(bench, WHALE)


def test_rows_that_are_graded_by_their_place(bench: Bench) -> None:
    """nomad: the ids say nothing; `reward` reads places of the file, and a shuffled gold is not perfect."""
    add(bench, NOMAD)
    task, truth = load(bench, NOMAD), truth_of(NOMAD)
    holds(task)
    swapped = text(truth.iloc[::-1])
    final = task.grade(swapped, "final").score
    assert final is not None
    assert final > 0.1
    rows = draw_rows(NOMAD, len(truth))
    assert len(rows) == 8
    names = list(LITE[NOMAD].targets)
    logs = np.log1p(truth[names].to_numpy())
    expected = np.sqrt(((logs[::-1][rows] - logs[rows]) ** 2).mean(axis=0)).mean()
    assert task.grade(swapped, "reward").score == round(expected, 5)
    assert task.grade(text(truth[names]), "final").score == 0.0  # not even an id is needed


def test_a_board_of_ties(bench: Bench) -> None:
    """cactus: every medal needs exactly 1.0, and 1.0 is above a median below it."""
    add(bench, CACTUS, board=[1.0] * 12 + [0.9991] * 16 + [0.5] * 2)
    task = load(bench, CACTUS)
    board = task.thresholds
    assert (board.gold, board.silver, board.bronze, board.median) == (1.0, 1.0, 1.0, 0.9991)
    holds(task)
    truth = truth_of(CACTUS)
    assert report(task, text(truth))["gold_medal"] is True
    near = truth.assign(has_cactus=truth["has_cactus"] * 0.5)
    near.loc[near["has_cactus"].idxmin(), "has_cactus"] = 0.9  # one row without a cactus stands above all others
    found = report(task, text(near))
    assert found["valid_submission"] is True
    assert (found["score"] < 1.0, found["any_medal"]) == (True, False)


def test_a_sample_that_lacks_columns(bench: Bench) -> None:
    """ranzcr: the sample is invalid, so the best constant stands at the floor."""
    add(bench, RANZCR)
    sample = bench.prepared(RANZCR) / "public" / "sample_submission.csv"
    pd.read_csv(sample).drop(columns=["ETT - Abnormal", "CVC - Normal"]).to_csv(sample, index=False)
    task = load(bench, RANZCR)
    assert task.grade(sample.read_bytes(), "final").reason == "Column ETT - Abnormal is not there."
    assert dict(task.dummy_score) == {"reward": 0.5, "final": 0.5}
    assert (position(task, 0.5, "reward"), position(task, 1.0, "reward")) == (0.0, 1.0)
    holds(task)


def test_a_dummy_whose_grading_was_lost_leaves_no_other_floor(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a floor, or another one, would stay for the whole process and be another scale of rewards."""
    add(bench, TPS)
    task, real, asked = load(bench, TPS), Grader.grade, []

    def once(self: Grader, *given: Any) -> Grade:
        asked.append(given)
        if len(asked) == 2:
            raise GradingLost("it took too long.")
        return real(self, *given)

    monkeypatch.setattr(Grader, "grade", once)
    with pytest.raises(WorkbenchError, match=r"could not be graded \(it took too long\): try again"):
        _ = task.dummy_score
    assert set(task.dummy_score) == {"reward", "final"}


@pytest.mark.parametrize(("board", "up"), [([0.9, 0.5], True), ([0.1, 0.5], False), ([0.5, 0.5], True)])
def test_the_direction_is_that_of_the_board(bench: Bench, board: list[float], up: bool) -> None:
    add(bench, TPS, board=board)
    assert load(bench, TPS).higher_is_better is up


def test_answers_in_jsonl_of_a_competition_that_we_do_not_know(bench: Bench) -> None:
    """Its own grader gets a list of objects; `reward` reads all rows, and the dummy is the sample's score."""
    add(bench, TPS)
    name = "a-code-competition"
    shutil.move(bench.root / TPS, bench.root / name)
    shutil.move(bench.place(TPS), bench.place(name))
    place = bench.place(name)
    config = (place / "config.yaml").read_text().replace(TPS, name).replace("private/test.csv", "private/test.jsonl")
    (place / "config.yaml").write_text(config)
    (bench.prepared(name) / "private" / "test.jsonl").write_text('{"x": 1}\n{"x": 2}\n')
    (place / "grade.py").write_text(
        "def grade(submission, answers):\n    return sum(a['x'] for a in answers) / 10 + len(submission) / 1000\n"
    )
    task = load(bench, name)
    for split in ("reward", "final"):
        assert task.grade(b"id,target\n1,0\n", split).score == 0.301
    assert task.dummy_score["reward"] == 0.32  # 20 rows of the sample
    (place / "grade.py").write_text("import no_such_module\n")
    with pytest.raises(WorkbenchError, match=r"can be graded by its own grade.py alone"):
        fresh().grade(task, b"id,target\n1,0\n", "final")


def fresh() -> Grader:
    """A process that has imported no grade.py yet."""
    shared().close()
    shared.cache_clear()
    return shared()


# Where things lie


def test_a_data_root_names_all_that_are_prepared_lite_first(bench: Bench) -> None:
    for name in (WHALE, CACTUS):
        add(bench, name)
    (bench.root / "another" / "prepared" / "private").mkdir(parents=True)
    (bench.root / "another" / "prepared" / "public").mkdir()
    (bench.root / INSULTS / "raw").mkdir(parents=True)
    assert [folder.name for folder in task_folders(str(bench.root))] == [CACTUS, WHALE]
    assert [task.id for task in load_tasks(f"{bench.root / WHALE}, used-cars")] == [WHALE, "used-cars"]
    with pytest.raises(WorkbenchError, match=f"`mlebench prepare -c {INSULTS} --data-dir"):
        add_config_only(bench, INSULTS)


def add_config_only(bench: Bench, name: str) -> None:
    shutil.copytree(bench.place(WHALE), bench.place(name))
    config = bench.place(name) / "config.yaml"
    config.write_text(config.read_text().replace(WHALE, name))
    load_tasks(str(bench.root / name))


def test_the_checkout_is_named_by_setting_or_environment(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    add(bench, WHALE)
    monkeypatch.delenv("WORKBENCH_MLEBENCH")
    (task,) = load_tasks(str(bench.root / WHALE), mlebench_repo=bench.repo)
    assert task.repo == bench.repo
    with pytest.raises(WorkbenchError, match="its checkout is not known: set WORKBENCH_MLEBENCH"):
        load_tasks(str(bench.root / WHALE))
    with pytest.raises(WorkbenchError, match="is no checkout of mle-bench"):
        load_tasks(str(bench.root / WHALE), mlebench_repo=bench.root)
    shutil.rmtree(bench.place(WHALE))
    with pytest.raises(WorkbenchError, match="is no competition of the checkout"):
        load_tasks(str(bench.root / WHALE), mlebench_repo=bench.repo)


def test_answers_in_the_public_folder_are_noticed(bench: Bench) -> None:
    add(bench, WHALE)
    task = load(bench, WHALE)
    (task.public_dir / "extra").mkdir()
    shutil.copy(task.answers, task.public_dir / "extra" / "test_labels.csv")
    assert "the answers lie in the public folder" in str(check_bench(task)["answers are hidden"])


# Graders of all kinds


def test_a_grader_that_cannot_be_imported_gives_way_and_says_so(bench: Bench) -> None:
    for number, broken in enumerate(("def grade(:\n", "import sys\nsys.exit(3)\n", "grade = 5\n", "import nowhere\n")):
        name = (WHALE, CACTUS, TPS, PIZZA)[number]
        add(bench, name, grader=broken)
        found = report(load(bench, name), text(truth_of(name)))
        assert (found["score"], found["grader"]) == (1.0, "workbench")
        assert "cannot be imported" in found["grader_note"]
        holds(load(bench, name))
    add(bench, INSULTS)
    assert report(load(bench, INSULTS), text(truth_of(INSULTS)))["grader"] == "mle-bench"


ODD = """
import os, sys, time

def grade(submission, answers):
    what = submission["what"].iloc[0]
    print("noise", flush=True)
    if what == "hang": time.sleep(600)
    if what == "exit": sys.exit(0)
    if what == "end": os._exit(1)
    if what == "number": return float("nan")
    if what == "text": return "good"
    if what == "raise": raise ZeroDivisionError("of\\nmine")
    return 0.123456789
"""


def test_whatever_a_grader_does_is_a_grade_or_a_loss(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    add(bench, WHALE, grader=ODD)
    task = load(bench, WHALE)
    reasons = {
        "exit": "SystemExit: 0.",
        "number": "the grader says nan, which is no score.",
        "text": "ValueError: could not convert string to float: 'good'.",
        "raise": "ZeroDivisionError: of mine.",
    }
    for what, reason in reasons.items():
        found = report(task, f"what\n{what}\n".encode())
        assert (found["score"], found["reason"], found["grader"]) == (None, reason, "mle-bench")
    assert task.grade(b"what\nfine\n", "final").score == 0.12346  # what it prints is no answer
    monkeypatch.setattr(BenchTask, "grading_s", property(lambda self: 0.0))
    grader = Grader(limit_s=3.0)
    assert grader.grade(task, b"what\nfine\n", "final").score == 0.12346
    for what in ("hang", "end"):
        with pytest.raises(GradingLost):
            grader.grade(task, f"what\n{what}\n".encode(), "final")
    assert grader.grade(task, b"what\nfine\n", "final").score == 0.12346
    grader.close()
    assert task.grade(b"what\nend\n", "final").reason == "the grader's process ended twice."


BAD: dict[str, Callable[[pd.DataFrame], bytes]] = {
    "missing ids": lambda frame: text(frame.iloc[2:]),
    "ids of others": lambda frame: text(frame.assign(clip="x")),
    "an id twice": lambda frame: text(frame.assign(clip=[*frame["clip"][:-1], frame["clip"][0]])),
    "a gap": lambda frame: text(frame.assign(probability=[np.nan, *frame["probability"][1:]])),
    "other columns": lambda frame: text(frame.rename(columns={"probability": "score"})),
    "words": lambda frame: text(frame.assign(probability="high")),
    "latin-1": lambda frame: text(frame).replace(b"row_00", b"r\xf6w_00"),
    "nothing": lambda frame: b"",
    "no CSV": lambda frame: b'a,b\n1,2,3\n"',
    "NUL": lambda frame: b"\0\0",
    "a million columns": lambda frame: b"," * 900_000 + b"\n1\n",
    "a thousand columns": lambda frame: b"," * 1001 + b"\n1\n",
    "one long word": lambda frame: b"x" * 900_000,
}


@pytest.mark.parametrize("whose", ["mle-bench", "workbench"])
def test_bad_submissions_have_a_reason(bench: Bench, whose: str) -> None:
    add(bench, WHALE, grader=None if whose == "mle-bench" else "import nowhere\n")
    fresh()
    task, truth = load(bench, WHALE), truth_of(WHALE)
    for name, spoil in BAD.items():
        for split in ("reward", "final"):
            found = task.grade(spoil(truth), split)
            assert (found.score, found.grader) == (None, whose), name
            assert found.reason is not None
            assert found.reason.endswith(".")
            assert "\n" not in found.reason
    assert task.grade(text(truth.iloc[::-1]), "reward").score == 1.0
    assert task.grade(None, "final").reason == "no submission.csv was written."


# Our graders


def sane(name: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    truth = truth_of(name, rows=60)
    return truth, sample_of(name, truth)


@pytest.mark.parametrize("name", LITE)
def test_our_grader_of_each_of_the_22(name: str) -> None:
    """Perfect for the answers in any order, worse for the sample; nothing else is an id, a column or a probability."""
    known = LITE[name]
    perfect = METRICS[known.metric].perfect
    truth, sample = sane(name)
    order = truth if known.align == "order" else truth.sample(frac=1, random_state=1)
    assert round(own_score(known, order, truth), 5) == perfect
    assert abs(own_score(known, sample, truth) - perfect) > 0.1
    with pytest.raises(Refused):
        own_score(known, truth.rename(columns={truth.columns[1]: "other"}), truth)
    with pytest.raises((Refused, ValueError)):
        own_score(known, truth.iloc[1:], truth)
    if known.align == "ids":
        with pytest.raises(Refused):
            own_score(known, truth.assign(**{known.id_column: "row"}), truth)
    if METRICS[known.metric].wants == "probability" and known.ranged:
        with pytest.raises(Refused, match="between 0 and 1"):
            own_score(known, truth.assign(**{truth.columns[1]: 1.5}), truth)
    if METRICS[known.metric].wants == "probabilities":
        with pytest.raises(Refused, match="sum to 1"):
            own_score(known, sample.assign(**{truth.columns[1]: 0.9}), truth)


def test_our_metrics_by_hand() -> None:
    truth = pd.DataFrame({"id": [1, 2, 3, 4], "diagnosis": [0, 1, 2, 3]}).rename(columns={"id": "id_code"})
    said = truth.assign(diagnosis=[0, 1, 2, 2])
    # weights (i-j)^2: observed 1; expected sum n_i m_j (i-j)^2 / 4 = (0 1 2 3) x (0 1 2 2) = 37/4
    expected = sum((i - j) ** 2 for i in range(4) for j in (0, 1, 2, 2)) / 4
    assert own_score(LITE["aptos2019-blindness-detection"], said, truth) == pytest.approx(1 - 1 / expected)
    toxic = pd.DataFrame(
        {
            "id": range(4),
            **{name: [0, 1, 1, -1] for name in LITE["jigsaw-toxic-comment-classification-challenge"].targets},
        }
    )
    guess = toxic.replace({-1: 0}).assign(
        toxic=[0.6, 0.5, 0.7, 0.0]
    )  # one of two pairs right; the last row is left out
    assert own_score(LITE["jigsaw-toxic-comment-classification-challenge"], guess, toxic) == pytest.approx(5.5 / 6)


def test_both_graders_agree(bench: Bench) -> None:
    """On the answers, the sample and something between, of each kind of metric that the miniature's grader knows."""
    for name in (WHALE, ENGLISH, NOMAD, DENOISE, RANZCR, "tabular-playground-series-dec-2021"):
        add(bench, name)
        task, truth = load(bench, name), truth_of(name)
        sample = sample_of(name, truth)
        mixed = pd.concat([truth.iloc[:12], sample.iloc[12:]])
        for said in (truth, sample, mixed):
            assert task.grade(text(said), "final").grader == "mle-bench"
            ours = own_score(LITE[name], pd.read_csv(io.BytesIO(text(said))), pd.read_csv(task.answers))
            assert task.grade(text(said), "final").score == pytest.approx(ours, abs=1e-5)


def test_reward_reads_two_fifths_and_final_all(bench: Bench) -> None:
    add(bench, DENOISE)
    task, truth = load(bench, DENOISE), truth_of(DENOISE)
    rows = draw_rows(DENOISE, len(truth))
    ranked = truth.sort_values("id").reset_index(drop=True)
    assert len(rows) == 8
    off = ranked.copy()
    off.loc[[place for place in range(20) if place not in rows], "value"] += 1.0
    assert task.grade(text(off), "reward").score == 0.0
    assert task.grade(text(off), "final").score == round(np.sqrt(12 / 20), 5)
    assert draw_rows(DENOISE, 20).tolist() == rows.tolist() != draw_rows(WHALE, 20).tolist()


def test_rows_that_cannot_be_split_are_all_read(bench: Bench) -> None:
    """One positive only: 40 % of the rows without it have no AUC."""
    add(bench, WHALE)
    task, truth = load(bench, WHALE), truth_of(WHALE).sort_values("clip").reset_index(drop=True)
    truth["probability"] = 0
    truth.loc[next(place for place in range(20) if place not in draw_rows(WHALE, 20)), "probability"] = 1
    truth.to_csv(task.answers, index=False)
    said = text(truth.assign(probability=np.linspace(0, 1, 20)))
    assert task.grade(said, "reward").score == task.grade(said, "final").score


@pytest.mark.parametrize(
    ("entries", "places"),
    [
        (5, (1, 1, 2)),
        (99, (9, 19, 39)),
        (100, (10, 20, 40)),
        (249, (10, 49, 99)),
        (250, (10, 50, 100)),
        (999, (11, 50, 100)),
        (1000, (12, 50, 100)),
        (1281, (12, 64, 128)),
    ],
)
def test_thresholds_of_boards_with_ties(entries: int, places: tuple[int, int, int]) -> None:
    """The score at the place is the threshold, whoever shares it."""
    scores = [float(np.floor((entries - place) / 3)) for place in range(entries)]
    board = thresholds(scores)
    assert (board.gold, board.silver, board.bronze) == tuple(scores[place - 1] for place in places)
    assert board.median == np.median(scores)


# What an agent sees


def test_the_prompt_of_a_large_competition_is_bounded(bench: Bench) -> None:
    add(bench, WHALE)
    task = load(bench, WHALE)
    public = task.public_dir
    wide = pd.DataFrame(np.zeros((700, 60)), columns=[f"feature_{place}" for place in range(60)])
    wide.to_csv(public / "train.csv", index=False)
    (public / "clips" / "deep").mkdir(parents=True)
    for number in range(30):
        (public / "clips" / "deep" / f"{number}.aif").write_bytes(b"0" * 100)
    for number in range(30):
        (public / f"part_{number:02}.bin").write_bytes(b"1")
    (public / "description.md").write_text("# Whales\n" + "They sing, and somebody listens. " * 2000)
    facts = card(load(bench, WHALE))
    assert (
        facts.files[0]
        == "train.csv: 169 kB, some 700 rows, columns "
        + ", ".join(f"feature_{place}" for place in range(8))
        + ", … 52 more"
    )
    assert "clips/: 30 files (.aif), 3 kB" in facts.files
    state = State(WHALE, Kind.DRAFT)
    texts = {
        budget: render(state, facts, budget=budget, count=lambda text: len(text) // 4) for budget in (384, 1024, 4096)
    }
    assert all(len(text) // 4 <= budget - 24 for budget, text in texts.items())
    assert "They sing" not in texts[384]
    assert "They sing" in texts[1024]
    assert "has the columns 'clip', 'probability'" in texts[384]
    assert "more entries" in texts[4096]
    assert "First rows of train.csv" in render(state, facts, budget=40_000, count=len)
    for budget in (1024, 4096):
        assert ASK[Kind.DRAFT] in texts[budget]
        assert "Predict ''" not in texts[budget]
        assert "has the columns 'clip', 'probability'" in texts[budget]
    assert not any(asked in texts[384] for asked in ASK.values())


def test_damaged_files_and_links_to_nothing_are_named_and_no_more(bench: Bench) -> None:
    add(bench, WHALE)
    public = load(bench, WHALE).public_dir
    (public / "more.csv").write_text("a,b\n" + "".join(f"{n},{n * 7919 % 1000}\n" for n in range(4000)))
    zip_in_place(public / "more.csv")
    whole = (public / "more.csv.zip").read_bytes()
    for cut in range(60, 120):  # within the compressed bytes
        (public / f"cut{cut}.csv.zip").write_bytes(whole[:cut] + b"\xff" * 40 + whole[cut + 40 :])
    (public / "gone.csv").symlink_to(public / "nowhere.csv")
    (public / "clips").mkdir(exist_ok=True)
    (public / "clips" / "gone.aif").symlink_to(public / "nowhere.aif")
    (public / "train.csv").write_text('text\n"' + "line\n" * 500 + '"\n')
    facts = card(load(bench, WHALE))
    assert "gone.csv: a link to nothing" in facts.files
    assert any(line.startswith("clips/: ") for line in facts.files)
    assert sum("cut" in line and "columns" not in line for line in facts.files) > 0
    state = State(WHALE, Kind.DRAFT)
    assert render(state, facts, budget=40_000, count=len).count("line\n") <= PREVIEW_LINES


@pytest.fixture
def environment(bench: Bench) -> Iterator[Environment]:
    add(bench, WHALE)
    task = load(bench, WHALE)
    truth = truth_of(WHALE)
    truth.drop(columns="probability").assign(loudness=truth["probability"] + 0.1).to_csv(
        task.public_dir / "test.csv", index=False
    )
    with (
        Executor(data_roots=[task.public_dir], workers=1) as executor,
        Environment({WHALE: task}, executor, Limits(cpu_s=10.0, wall_s=60.0)) as made,
    ):
        yield made


SOLVE = """```python
import pandas as pd
test = pd.read_csv("input/test.csv")
test["probability"] = test["loudness"].clip(0, 1)
test[["clip", "probability"]].to_csv("submission.csv", index=False)
print("Validation score: 0.75")
```"""
PEEK = """```python
import os
found = [os.path.join(place, name) for place, _, names in os.walk("/") for name in names
         if name in ("test.csv", "leaderboard.csv", "grade.py")]
print(sorted(os.listdir("input")), found)
for path in (PRIVATE, "input/../private/test.csv"):
    try:
        print("READ", open(path).read())
    except OSError as error:
        print(type(error).__name__)
```"""


def test_a_script_solves_a_competition_and_sees_no_answer(environment: Environment) -> None:
    task = environment.tasks[WHALE]
    peek = PEEK.replace("PRIVATE", repr(str(task.folder / "prepared" / "private" / "test.csv")))
    waits = [environment.submit(WHALE, Action(code, (5,), (-1.0,), 0, StopReason.EOS)) for code in (SOLVE, peek)]
    solved, peeked = (wait().feedback for wait in waits)
    assert (solved.verdict, solved.score, solved.own_score) == (Verdict.OK, 1.0, 0.75)
    assert position(task, solved.score, "reward") == 1.0
    assert peeked.verdict is Verdict.INVALID_SUBMISSION, peeked.stderr
    assert "READ" not in peeked.stdout
    assert "leaderboard.csv" not in peeked.stdout
    assert "private" not in peeked.stdout
    assert "['description.md', 'sample_submission.csv', 'test.csv']" in peeked.stdout
    before = task.digest()
    write_board(task.repo / "mlebench" / "competitions" / WHALE, [0.5, 0.4])
    assert task.digest() == before
    (task.public_dir / "more.csv").write_text("a\n")
    assert task.digest() != before
