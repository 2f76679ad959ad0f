# Logistic regression with a strong penalty, and ridge regression of the logarithm.
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

write(
    answer(
        make_pipeline(StandardScaler(), LogisticRegression(C=0.05, max_iter=200)),
        make_pipeline(StandardScaler(), Ridge(10.0)),
        log=True,
    )
)
