"""Features by hand for the expert pipelines of the embedded tasks: what a person who looked at the data adds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd


def _loan(frame: pd.DataFrame) -> pd.DataFrame:
    left = frame["income"] - frame["costs"]
    frame["spare"] = left
    frame["rate_share"] = frame["loan_amount"] / frame["months"] / left.clip(lower=20)
    frame["paid_in"] = 1 - frame["loan_amount"] / frame["item_price"].clip(lower=1)
    frame["worth"] = np.log1p(frame["savings"].clip(lower=0)) - np.log1p(frame["open_debt"].clip(lower=0))
    return frame


def _jobs(frame: pd.DataFrame) -> pd.DataFrame:
    for name in ("nRecords", "nFields", "nIterations", "queueLength"):
        frame["log_" + name] = np.log1p(frame[name].clip(lower=0))
    frame["log_work"] = frame["log_nRecords"] + frame["log_nFields"] + frame["log_nIterations"]
    frame["log_cells"] = frame["log_nRecords"] + frame["log_nFields"]
    return frame


def _delivery(frame: pd.DataFrame) -> pd.DataFrame:
    frame["weekend"] = (frame["weekday"] >= 5).astype(float)
    frame["rush"] = np.exp(-(((frame["order_hour"] - 18.5) / 1.5) ** 2))
    for day in range(1, 8):
        frame[f"hour_{day}"] = frame["order_hour"] * (frame["weekday"] == day)
    frame["rush_weekend"] = frame["rush"] * frame["weekend"]
    return frame


def _diamonds(frame: pd.DataFrame) -> pd.DataFrame:
    frame["log_weight"] = np.log(frame["weight_mg"])
    frame["log_volume"] = np.log(frame["length"] * frame["width"] * frame["height"])
    finish = {"fair": 0, "good": 1, "fine": 2, "superb": 3, "perfect": 4}
    purity = {"p0": 0, "p1a": 1, "p1b": 2, "p2a": 3, "p2b": 4, "p3a": 5, "p3b": 6, "p4": 7}
    frame["finish_rank"] = frame["finish"].map(finish).astype(float)
    frame["purity_rank"] = frame["purity"].map(purity).astype(float)
    frame["tint_rank"] = frame["tint"].str[1:].astype(float)
    frame["purity_weight"] = frame["purity_rank"] * frame["log_weight"]
    frame["tint_weight"] = frame["tint_rank"] * frame["log_weight"]
    return frame


def _flights(frame: pd.DataFrame) -> pd.DataFrame:
    frame["speed"] = frame["distanceKm"] / frame["minutesInAir"]
    frame["caught_up"] = frame["departureDelay"] - frame["arrivalDelay"]
    for airport in ("west", "east", "north"):
        frame["km_" + airport] = frame["distanceKm"] * (frame["airport"] == airport)
        frame["built_" + airport] = frame["planeBuilt"] * (frame["airport"] == airport)
    return frame


def _storms(frame: pd.DataFrame) -> pd.DataFrame:
    frame["north"] = (frame["latitude"] - 30).clip(lower=0)
    frame["fast"] = np.log1p(frame["speed_kmh"])
    frame["deep"] = (757 - frame["pressure"]).clip(lower=0)
    frame["log_deep"] = np.log1p(frame["deep"])
    frame["deep_north"] = frame["deep"] * frame["north"]
    frame["log_gale"] = np.log1p(frame["gale_width"])
    frame["young"] = np.exp(-frame["age_hours"].clip(lower=0) / 24)
    return frame


def _cars(frame: pd.DataFrame) -> pd.DataFrame:
    frame["log_km"] = np.log1p(frame["odometer_km"].clip(lower=0))
    frame["model"] = frame["brand"] + "/" + frame["body"]
    frame["engine"] = frame["brand"] + "/" + frame["cylinders"].astype(str)
    return frame


def _churn(frame: pd.DataFrame) -> pd.DataFrame:
    frame["bill"] = 0.17 * frame["day_minutes"] + 0.085 * frame["eve_minutes"] + 0.045 * frame["night_minutes"]
    frame["big_bill"] = (frame["bill"] > 71).astype(float) * (frame["mailbox"] == "no")
    frame["abroad"] = (frame["intl_plan"] == "yes") * frame["intl_minutes"]
    frame["few_abroad"] = ((frame["intl_plan"] == "yes") & (frame["intl_calls"] < 3)).astype(float)
    frame["angry"] = ((frame["service_calls"] > 3) & (frame["day_minutes"] < 175)).astype(float)
    return frame


EXPERT_FEATURES: dict[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
    "loan-missing": _loan,
    "job-time": _jobs,
    "delivery-time": _delivery,
    "diamonds": _diamonds,
    "flight-carrier": _flights,
    "storm-phase": _storms,
    "used-cars": _cars,
    "churn-lines": _churn,
}
"""Task id -> function that adds columns to the features of train or test. A user's task needs none."""
