# The mean of a linear model, a forest and gradient boosting; numbers on a log scale.
from sklearn.ensemble import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    VotingClassifier,
    VotingRegressor,
)
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

rounds = 60 if CLASSES <= 2 or FORM == "number" else max(5, 120 // CLASSES)
shape = {"learning_rate": 0.1, "max_leaf_nodes": 8, "early_stopping": False, "random_state": 0}
write(
    answer(
        VotingClassifier(
            [
                ("linear", make_pipeline(StandardScaler(), LogisticRegression(max_iter=100))),
                ("trees", ExtraTreesClassifier(60, min_samples_leaf=2, random_state=0)),
                ("boosting", HistGradientBoostingClassifier(max_iter=rounds, **shape)),
            ],
            voting="soft",
        ),
        VotingRegressor(
            [
                ("linear", make_pipeline(StandardScaler(), Ridge(1.0))),
                ("trees", ExtraTreesRegressor(30, min_samples_leaf=2, random_state=0)),
                ("boosting", HistGradientBoostingRegressor(max_iter=60, **shape)),
            ]
        ),
        log=True,
    )
)
