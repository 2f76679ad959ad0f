"""The `parameters` cell of a notebook, checked: unknown names and wrong types stop it, also in plain papermill.

papermill only warns about an unknown name and then runs with the defaults. The cell after `parameters` therefore calls
`check_parameters(globals())`. It reads the sources of the cells run so far, which IPython keeps in `In`: names are
declared by the annotated assignments (`steps: int = 50`) of one cell, and given by the cell that papermill injects
after it (first line `# Parameters`). What is annotated in other cells is no parameter.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import Any

from workbench.config import parse_settings
from workbench.types import WorkbenchError

TYPES: dict[str, type] = {"int": int, "float": float, "str": str, "bool": bool}
INJECTED = "# Parameters"
"""First line of the cell that papermill injects after the one tagged `parameters`."""
MARK = "preset"
"""The parameter that tells the parameters cell from others with annotated assignments: every notebook here has it."""


def check_parameters(
    namespace: MutableMapping[str, Any],
    *,
    presets: Mapping[str, Mapping[str, Any]] | None = None,
    choices: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, Any]:
    """Check the parameters in `namespace` (a notebook's `globals()`) and return them by name.

    `presets` maps the values of the parameter `preset` to values of other parameters; they are written into the
    namespace, but never over a parameter that was given explicitly. `choices` maps parameters to the values they may
    have. Raises WorkbenchError for an unknown parameter, preset or choice (naming the nearest known one), for a value
    of another type than declared, and for a parameter that was deleted.
    """
    declared, given = declarations(namespace.get("In", ()))
    for name in sorted(given - declared.keys()):
        raise WorkbenchError(unknown(name, declared, "parameter of this notebook"))
    for name, annotation in declared.items():
        if name not in namespace:
            raise WorkbenchError(f"The parameter '{name}' has been deleted: run the cell that declares it again.")
        namespace[name] = _typed(name, namespace[name], annotation)
    for name, allowed in (choices or {}).items():
        if namespace[name] not in allowed:
            raise WorkbenchError(unknown(str(namespace[name]), allowed, f"value of {name}"))
    known = {"default": {}, **(presets or {})}
    chosen = str(namespace.get(MARK, "default"))
    if chosen not in known:
        raise WorkbenchError(unknown(chosen, known, "preset of this notebook"))
    for name, value in known[chosen].items():
        if name not in given:
            namespace[name] = value
    return {name: namespace[name] for name in declared}


def with_settings(own: Mapping[str, Any], settings: str) -> dict[str, Any]:
    """`own` parameters and the pairs of the parameter `settings` ("kl_coef=0.01, clip_high=0.3").

    Raises WorkbenchError for a name that is a parameter of its own: two values for one setting have no order.
    """
    pairs: list[str] = []
    for part in filter(None, (part.strip() for part in settings.split(","))):
        if "=" in part or not pairs:
            pairs.append(part)
        else:  # a value may hold commas: "reward=ladder:0.8,gain:0.2, tau=3"
            pairs[-1] += f",{part}"
    more = parse_settings(pairs)
    for name in own.keys() & more.keys():
        raise WorkbenchError(f"settings={settings!r} sets {name}, a parameter of this notebook: set it there instead.")
    return {**own, **more}


def declarations(sources: Iterable[str]) -> tuple[dict[str, str], set[str]]:
    """(name → annotation in the parameters cell, names assigned in cells injected after it), from cells in run order.

    The parameters cell is the newest that declares `preset`. In a notebook without one: the first cell with annotated
    assignments, or the newest that declares its first name again.
    """
    cells = [(_declared(source), _injected(source)) for source in sources]
    first = next((declared for declared, _ in cells if declared), {})
    mark = MARK if any(MARK in declared for declared, _ in cells) else next(iter(first), None)
    found: dict[str, str] = {}
    given: set[str] = set()
    for declared, assigned in cells:
        if mark in declared:
            found, given = declared, set()
        given |= assigned
    return found, given


def _declared(source: str) -> dict[str, str]:
    """Name → annotation of the annotated assignments of a cell, as far as their types are known here."""
    annotated = {
        statement.target.id: ast.unparse(statement.annotation)
        for statement in _statements(source)
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    }
    return {name: text for name, text in annotated.items() if text.removesuffix(" | None") in TYPES}


def _injected(source: str) -> set[str]:
    """Names that a cell assigns if papermill has injected it, else none."""
    if not source.lstrip().startswith(INJECTED):
        return set()
    assigned = [statement for statement in _statements(source) if isinstance(statement, ast.Assign)]
    return {target.id for found in assigned for target in found.targets if isinstance(target, ast.Name)}


def _statements(source: str) -> list[ast.stmt]:
    try:
        return ast.parse(source).body
    except SyntaxError:  # a cell with magics declares nothing
        return []


def parse(name: str, text: str, annotation: str) -> Any:
    """Text from a command line as the declared type (`int`, `float`, `str`, `bool`, optionally ` | None`)."""
    kind = annotation.removesuffix(" | None")
    if annotation.endswith("| None") and text.strip().lower() == "none":
        return None
    try:
        if kind == "bool":
            return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}[text.lower()]
        return TYPES.get(kind, str)(text)
    except (ValueError, KeyError):
        raise WorkbenchError(f"{name}={text!r} is not accepted: expected {_expected(annotation)}.") from None


def unknown(name: str, known: Iterable[str], what: str) -> str:
    """One sentence about an unknown name, with the nearest known one or all of them."""
    near = difflib.get_close_matches(name, list(known), n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"expected one of {', '.join(sorted(known))}."
    return f"'{name}' is no {what}: {hint}"


def _typed(name: str, value: Any, annotation: str) -> Any:
    kind = TYPES[annotation.removesuffix(" | None")]
    if value is None and annotation.endswith("| None"):
        return None
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise WorkbenchError(
            f"{name}={value!r} is not accepted: expected {_expected(annotation)}, got {type(value).__name__}."
        )
    return value


def _expected(annotation: str) -> str:
    words = {"int": "a whole number", "float": "a number", "str": "text", "bool": "true or false"}
    kind = annotation.removesuffix(" | None")
    return words.get(kind, kind) + (" or None" if annotation.endswith("| None") else "")
