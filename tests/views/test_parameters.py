from __future__ import annotations

from typing import Any

import pytest

from workbench.types import WorkbenchError
from workbench.views.parameters import check_parameters, declarations, parse, with_settings

DECLARED = 'steps: int = 50\nrate: float | None = None\nname: str = "tiny"\nfast: bool = False\npreset: str = "default"'

CHECK = "check_parameters(globals())"


def notebook(injected: str = "", declared: str = DECLARED) -> dict[str, Any]:
    """Globals of a notebook after its parameters cell and, in batch, the injected one."""
    sources = ["", "import os\n%matplotlib inline", declared, *([f"# Parameters\n{injected}"] if injected else [])]
    namespace: dict[str, Any] = {"In": sources, "other": 3}
    exec("\n".join(source for source in sources[2:]), namespace)
    return namespace


def test_defaults_and_given_values_pass() -> None:
    assert check_parameters(notebook())["steps"] == 50
    found = check_parameters(notebook("steps = 5\nrate = 1"))
    assert found["steps"] == 5
    assert found["rate"] == 1.0
    assert isinstance(found["rate"], float)


@pytest.mark.parametrize(
    ("injected", "sentence"),
    [
        ("stepz = 5", "'stepz' is no parameter of this notebook: did you mean 'steps'"),
        ("zzz = 5", "expected one of fast, name, preset, rate, steps"),
        ("steps = '5'", "steps='5' is not accepted: expected a whole number, got str"),
        ("steps = 2.5", "expected a whole number, got float"),
        ("steps = True", "expected a whole number, got bool"),
        ("steps = None", "expected a whole number, got NoneType"),
        ("rate = 'fast'", "expected a number or None, got str"),
        ("name = 135", "expected text, got int"),
        ("fast = 1", "expected true or false, got int"),
        ("preset = 'smok'", "'smok' is no preset of this notebook: did you mean 'smoke'"),
    ],
)
def test_wrong_parameters_are_refused(injected: str, sentence: str) -> None:
    with pytest.raises(WorkbenchError, match=sentence):
        check_parameters(notebook(injected), presets={"smoke": {"steps": 1}})


def test_preset_yields_to_what_was_given() -> None:
    namespace = notebook("preset = 'smoke'\nname = 'mine'")
    check_parameters(namespace, presets={"smoke": {"steps": 1, "name": "small"}})
    assert (namespace["steps"], namespace["name"]) == (1, "mine")


def test_a_value_that_is_no_choice_is_refused() -> None:
    namespace = notebook("name = 'tinny'")
    with pytest.raises(WorkbenchError, match="'tinny' is no value of name: did you mean 'tiny'"):
        check_parameters(namespace, choices={"name": ("tiny", "large")})


def test_running_the_cells_again_uses_the_newest_declaration() -> None:
    namespace = notebook()
    namespace["In"].append(DECLARED.replace("50", "60"))
    namespace["steps"] = 60
    namespace["another_variable"] = "of the user"
    assert check_parameters(namespace)["steps"] == 60


def test_annotated_names_in_other_cells_are_no_parameters() -> None:
    namespace = notebook("steps = 5")
    namespace["In"] += ["threshold: float = 0.5", "steps: str = 'mine'", CHECK]
    namespace["threshold"] = "changed since"
    assert check_parameters(namespace).keys() == {"steps", "rate", "name", "fast", "preset"}
    before = notebook(injected="steps = 5")
    before["In"].insert(1, "threshold: float = 0.5")
    assert check_parameters(before)["steps"] == 5


def test_what_was_injected_counts_until_the_defaults_are_run_again() -> None:
    namespace = notebook("preset = 'smoke'\nsteps = 5")
    namespace["In"].append(CHECK)
    assert check_parameters(namespace, presets={"smoke": {"steps": 1}})["steps"] == 5
    namespace["In"] += [DECLARED, "preset = 'smoke'"]
    exec(f"{DECLARED}\npreset = 'smoke'", namespace)
    check_parameters(namespace, presets={"smoke": {"steps": 1}})
    assert namespace["steps"] == 1


def test_a_deleted_parameter_is_told() -> None:
    namespace = notebook()
    del namespace["steps"]
    with pytest.raises(WorkbenchError, match="'steps' has been deleted: run the cell that declares it again"):
        check_parameters(namespace)


def test_without_a_preset_the_first_declaring_cell_counts_in_its_newest_form() -> None:
    sources = ["x = 1", "a: int = 1\nb: str = ''", "# Parameters\na = 2", "c: int = 3", "a: float = 1.0", "d: int = 4"]
    assert declarations(sources[:4]) == ({"a": "int", "b": "str"}, {"a"})
    assert declarations(sources) == ({"a": "float"}, set())
    assert declarations(["x = 1", "# Parameters\na = 2"]) == ({}, {"a"})


def test_only_known_annotations_declare() -> None:
    declared, given = declarations(["a: int = 1\nb: list = []\nc = 2", "# Parameters\na = 2\nc = 3"])
    assert declared == {"a": "int"}
    assert given == {"a", "c"}


@pytest.mark.parametrize(
    ("text", "annotation", "value"),
    [
        ("5", "int", 5),
        ("1e-3", "float", 1e-3),
        ("none", "float | None", None),
        ("0.1", "float | None", 0.1),
        ("none", "str", "none"),
        ("True", "bool", True),
        ("no", "bool", False),
        ("007", "str", "007"),
        ("x", "None", "x"),
    ],
)
def test_parse(text: str, annotation: str, value: Any) -> None:
    assert parse("name", text, annotation) == value


def test_settings_are_added_and_never_overrule_a_parameter() -> None:
    assert with_settings({}, "reward=ladder:0.8,gain:0.2, tau=3") == {"reward": "ladder:0.8,gain:0.2", "tau": "3"}
    assert with_settings({"steps": 5}, " kl_coef=0.01,, clip_high=0.3 ") == {
        "steps": 5,
        "kl_coef": "0.01",
        "clip_high": "0.3",
    }
    with pytest.raises(WorkbenchError, match="sets steps, a parameter of this notebook"):
        with_settings({"steps": 5}, "steps=7")
    with pytest.raises(WorkbenchError, match="'tau' is set twice"):
        with_settings({"steps": 5}, "tau=7, tau=8")
