# Put before each script of this folder: reads the tables, finds out what is asked for, makes numbers of the features.
# Nothing here knows a task: ids, targets and the form of the answer are read off train.csv and sample_submission.csv.
import warnings

import numpy as np
import pandas as pd

warnings.simplefilter("ignore")

train = pd.read_csv("./input/train.csv")
test = pd.read_csv("./input/test.csv")
sample = pd.read_csv("./input/sample_submission.csv")

ID = sample.columns[0]
ASKED = list(sample.columns[1:])
LACKING = [name for name in train.columns if name not in test.columns]
TARGET = ASKED[0] if len(ASKED) == 1 and ASKED[0] in train.columns else LACKING[0]
train = train[train[TARGET].notna()]
y = train[TARGET]


def form():
    """probabilities (a column per class), probability (of the last class), label, or number."""
    if len(ASKED) > 1:
        return "probabilities"
    example = sample[ASKED[0]]
    text = not pd.api.types.is_numeric_dtype(y)
    fractions = pd.api.types.is_float_dtype(example) and example.between(0, 1).all()
    if y.nunique() == 2 and fractions and not set(example) <= set(y):
        return "probability"
    if text or y.dtype == bool:
        return "label"
    whole = pd.api.types.is_integer_dtype(y) and pd.api.types.is_integer_dtype(example)
    return "label" if whole and y.nunique() <= 20 and set(example) <= set(y) else "number"


FORM = form()


def words(one, other):
    """Counts of words, or of runs of one to three letters where texts are short."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    long = one.str.split().str.len().mean() > 2.5
    kind = {"analyzer": "word", "min_df": 3} if long else {"analyzer": "char_wb", "ngram_range": (1, 3), "min_df": 5}
    try:
        counter = TfidfVectorizer(max_features=300, sublinear_tf=True, **kind).fit(one)
    except ValueError:  # nothing is frequent enough
        return np.zeros((len(one), 0)), np.zeros((len(other), 0))
    return counter.transform(one).toarray(), counter.transform(other).toarray()


def dates(one, other):
    """Days, month and day of the year of a column of dates; None for another."""
    if not one.str.match(r"\d{4}-\d\d-\d\d").all():
        return None
    both = [pd.to_datetime(column, errors="coerce") for column in (one, other)]
    return [
        np.column_stack([c.astype("int64") / 8.64e13, c.dt.month, c.dt.dayofyear, c.dt.dayofweek]) for c in both
    ]


def features():
    """[rows, columns] of train and of test, floats without missing values."""
    blocks = []
    for name in train.columns:
        if name in (ID, TARGET) or name not in test.columns:
            continue
        one, other = train[name], test[name]
        if pd.api.types.is_numeric_dtype(one) and pd.api.types.is_numeric_dtype(other):
            one, other = one.astype(float), other.astype(float)
            middle = one.median() if one.notna().any() else 0.0
            blocks.append([c.fillna(middle).to_numpy()[:, None] for c in (one, other)])
            if one.isna().any():
                blocks.append([c.isna().to_numpy(dtype=float)[:, None] for c in (one, other)])
            continue
        one, other = one.fillna("missing").astype(str), other.fillna("missing").astype(str)
        common = one.value_counts()
        if len(common) <= 40:
            blocks.append([np.column_stack([(c == value) for value in common.index]).astype(float) for c in (one, other)])
        else:
            blocks.append(dates(one, other) or words(one, other))
    if not blocks:
        return np.zeros((len(train), 1)), np.zeros((len(test), 1))
    one, other = (np.nan_to_num(np.hstack([block[side] for block in blocks])) for side in (0, 1))
    return one, other


X, X_test = features()
CLASSES = int(y.nunique())


def answer(classifier=None, regressor=None, log=False):
    """Predictions in the form that is asked for; `log`: numbers of 0 or more are learnt on a log scale."""
    if FORM == "number":
        logged = log and y.min() >= 0
        regressor.fit(X, np.log1p(y) if logged else y)
        predicted = regressor.predict(X_test)
        if logged:
            predicted = np.expm1(np.clip(predicted, 0, np.log1p(y.max()) + 1))
        reach = y.max() - y.min()
        return np.clip(predicted, y.min() - (0.1 * reach if y.min() < 0 else 0), y.max() + 0.1 * reach)
    labels = y.astype(str)  # so that every kind of label is one kind
    classifier.fit(X, labels)
    if FORM == "label":
        return classifier.predict(X_test)
    shares = pd.DataFrame(classifier.predict_proba(X_test), columns=classifier.classes_)
    if FORM == "probability":
        return shares[str(sorted(y.unique())[-1])].to_numpy()
    shares = shares.reindex(columns=list(map(str, ASKED)), fill_value=0.0).clip(lower=1e-4)
    return shares.div(shares.sum(axis=1), axis=0).to_numpy()


def write(values):
    """submission.csv in the form of the sample, with the ids of test.csv."""
    values = np.asarray(values)
    columns = values if values.ndim == 2 else values[:, None]
    made = pd.DataFrame({name: columns[:, place] for place, name in enumerate(ASKED)})
    made.insert(0, ID, test[ID].to_numpy() if ID in test.columns else sample[ID].to_numpy())
    made.to_csv("submission.csv", index=False)


# ---- the script
