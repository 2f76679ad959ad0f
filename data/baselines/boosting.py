# Gradient boosting on histograms; fewer rounds where there are many classes, for each has a tree per round.
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

rounds = 80 if CLASSES <= 2 or FORM == "number" else max(5, 160 // CLASSES)
write(
    answer(
        HistGradientBoostingClassifier(max_iter=rounds, max_leaf_nodes=15, early_stopping=False, random_state=0),
        HistGradientBoostingRegressor(max_iter=80, max_leaf_nodes=15, early_stopping=False, random_state=0),
    )
)
