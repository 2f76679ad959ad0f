"""What ordinary scripts do works inside."""

from __future__ import annotations

import pytest

from workbench.tasks.catalog import TASKS_DIR
from workbench.types import Verdict

SCRIPTS = {
    "subprocess": "import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', 'print(6 * 7)'], capture_output=True, text=True).stdout)",
    "pool": "import multiprocessing as m\ndef f(x): return x * x\nif __name__ == '__main__':\n    with m.Pool(2) as p: print(sum(p.map(f, range(7))) - 49)",
    "threads": "from concurrent.futures import ThreadPoolExecutor as T\nprint(sum(T(4).map(lambda x: x, [20, 22])))",
    "stack": "import threading\nthreading.stack_size(64 * 2**20)\nt = threading.Thread(target=lambda: print(42)); t.start(); t.join()",
    "tempfile": "import tempfile\nwith tempfile.NamedTemporaryFile('w+') as f:\n    f.write('42'); f.seek(0); print(f.read())",
    "joblib": "from joblib import Parallel, delayed\nprint(sum(Parallel(n_jobs=-1)(delayed(int)(x) for x in (20, 22))))",
    "search": "import numpy as np\nfrom sklearn.linear_model import Ridge\nfrom sklearn.model_selection import GridSearchCV\nX = np.arange(40.).reshape(-1, 1)\nGridSearchCV(Ridge(), {'alpha': [1, 2]}, n_jobs=-1).fit(X, X.ravel()); print(42)",
    "neighbours": "import numpy as np\nfrom sklearn.neighbors import KNeighborsClassifier\nX = np.random.default_rng(0).normal(size=(600, 30))\nKNeighborsClassifier().fit(X, X[:, 0] > 0).predict(X); print(42)",
    "clusters": "import numpy as np\nfrom sklearn.cluster import KMeans\nX = np.random.default_rng(0).normal(size=(600, 30))\nKMeans(3).fit(X); print(42)",
    "plot": "import matplotlib; matplotlib.use('Agg')\nimport matplotlib.pyplot as plt\nplt.plot([1, 2]); plt.savefig('x.png'); print(42)",
    "asyncio": "import asyncio\nasync def f(): await asyncio.sleep(0.01); return 42\nprint(asyncio.run(f()))",
    "sqlite": "import sqlite3\nprint(sqlite3.connect('x.db').execute('select 6 * 7').fetchone()[0])",
    "warnings": "import warnings\nwarnings.warn('x'); print(42)",
    "main": "if __name__ == '__main__':\n    import sys; assert sys.argv; print(42)",
    "module": "open('mine.py', 'w').write('x = 42')\nimport mine; print(mine.x)",
}


@pytest.mark.parametrize("name", list(SCRIPTS))
def test_works_inside(run, name: str) -> None:
    result = run(SCRIPTS[name], cpu_s=10.0, wall_s=20.0, memory_mb=1024)
    assert result.verdict is Verdict.OK, result
    assert result.stdout.strip() == "42", result


def test_a_script_reads_its_input_and_writes_a_submission(run) -> None:
    code = (
        "import pandas as pd\nfrom sklearn.ensemble import RandomForestRegressor\n"
        "train, test = pd.read_csv('./input/train.csv'), pd.read_csv('./input/test.csv')\n"
        "columns = test.select_dtypes('number').columns\n"
        "model = RandomForestRegressor(20, random_state=0).fit(train[columns], train['price'])\n"
        "pd.DataFrame({'car_id': test['car_id'], 'price': model.predict(test[columns])})"
        ".to_csv('submission.csv', index=False)\n"
    )
    first, again = (run(code, public=TASKS_DIR / "used-cars" / "public", cpu_s=5.0) for _ in range(2))
    assert first.verdict is Verdict.OK, first
    assert first.submission is not None
    assert first.submission.startswith(b"car_id,price\n")
    assert first.submission == again.submission
