# Extremely randomised trees; numbers on a log scale.
from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor

write(
    answer(
        ExtraTreesClassifier(150, min_samples_leaf=2, random_state=0),
        ExtraTreesRegressor(80, min_samples_leaf=2, random_state=0),
        log=True,
    )
)
