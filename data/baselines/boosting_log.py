# Gradient boosting in small steps; numbers on a log scale.
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

rounds = 100 if CLASSES <= 2 or FORM == "number" else max(5, 160 // CLASSES)
shape = {"learning_rate": 0.06, "max_leaf_nodes": 8, "early_stopping": False, "random_state": 0}
write(
    answer(
        HistGradientBoostingClassifier(max_iter=rounds, **shape),
        HistGradientBoostingRegressor(max_iter=100, **shape),
        log=True,
    )
)
