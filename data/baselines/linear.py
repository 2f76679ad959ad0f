# Logistic and ridge regression on scaled features.
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

write(
    answer(
        make_pipeline(StandardScaler(), LogisticRegression(max_iter=200)),
        make_pipeline(StandardScaler(), Ridge(1.0)),
    )
)
