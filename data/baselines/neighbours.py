# Fifteen nearest neighbours, weighted by distance, on scaled features. A tree finds them: the search by brute force asks
# the system for its threads, which a shut-in process may not.
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

shape = {"n_neighbors": 15, "weights": "distance", "algorithm": "kd_tree"}
write(
    answer(
        make_pipeline(StandardScaler(), KNeighborsClassifier(**shape)),
        make_pipeline(StandardScaler(), KNeighborsRegressor(**shape)),
    )
)
