import hypothesis
import pytest
from threadpoolctl import threadpool_limits

# Deadlines measure the machine, and the first call of a compiled function also compiles it.
hypothesis.settings.register_profile("kernelmesh", deadline=None, max_examples=150, derandomize=True)
# `pytest --hypothesis-profile=thorough` looks further, elsewhere every time
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=4000)
hypothesis.settings.load_profile("kernelmesh")


@pytest.fixture(autouse=True, scope="session")
def one_blas_thread():
    """Tests run on all cores; threads of BLAS on each would wait for one another most of the time."""
    with threadpool_limits(1):
        yield
