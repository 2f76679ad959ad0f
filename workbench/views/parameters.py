"""The `parameters` cell of a notebook, checked: unknown names and wrong types stop it, also in plain papermill.

papermill only warns about an unknown name and then runs with the defaults. The cell after `parameters` therefore calls
`check_parameters(globals())`. It reads the sources of the cells run so far, which IPython keeps in `In`: names are
declared by annotated assignments (`steps: int = 50`), and given by the cell papermill injects (first line
`# Parameters`).
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


def check_parameters(
    namespace: MutableMapping[str, Any],
    *,
    presets: Mapping[str, Mapping[str, Any]] | None = None,
    choices: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, Any]:
    """Check the parameters in `namespace` (a notebook's `globals()`) and return them by name.

    `presets` maps the values of the parameter `preset` to values of other parameters; they are written into the
    namespace, but never over a parameter that was given explicitly. `choices` maps parameters to the values they may
    have. Raises WorkbenchError for an unknown parameter, preset or choice (naming the nearest known one), and for a
    value of another type than declared.
    """
    declared, given = declarations(namespace.get("In", ()))
    for name in sorted(given - declared.keys()):
        raise WorkbenchError(unknown(name, declared, "parameter of this notebook"))
    for name, annotation in declared.items():
        namespace[name] = _typed(name, namespace[name], annotation)
    for name, allowed in (choices or {}).items():
        if namespace[name] not in allowed:
            raise WorkbenchError(unknown(str(namespace[name]), allowed, f"value of {name}"))
    known = {"default": {}, **(presets or {})}
    chosen = str(namespace.get("preset", "default"))
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
    more = parse_settings(filter(None, (part.strip() for part in settings.split(","))))
    for name in own.keys() & more.keys():
        raise WorkbenchError(f"settings={settings!r} sets {name}, a parameter of this notebook: set it there instead.")
    return {**own, **more}


def declarations(sources: Iterable[str]) -> tuple[dict[str, str], set[str]]:
    """(name → annotation of every annotated assignment, names assigned in injected cells) in the given cell sources."""
    declared: dict[str, str] = {}
    given: set[str] = set()
    for source in sources:
        injected = source.lstrip().startswith(INJECTED)
        try:
            body = ast.parse(source).body
        except SyntaxError:  # a cell with magics declares nothing
            continue
        for statement in body:
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                annotation = ast.unparse(statement.annotation)
                if annotation.removesuffix(" | None") in TYPES:
                    declared[statement.target.id] = annotation
            elif injected and isinstance(statement, ast.Assign):
                given.update(target.id for target in statement.targets if isinstance(target, ast.Name))
    return declared, given


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
