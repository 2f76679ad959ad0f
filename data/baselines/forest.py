# A random forest.
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

write(
    answer(
        RandomForestClassifier(120, min_samples_leaf=2, random_state=0),
        RandomForestRegressor(50, min_samples_leaf=2, max_features=0.5, random_state=0),
    )
)
