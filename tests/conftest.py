import os
import signal

# before NumPy is imported: with more threads, products round differently, and tests that run on all cores wait for each other
os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"

import hypothesis

# a shell starts background jobs with Ctrl-C ignored, and the programs that tests start and interrupt would inherit that
signal.signal(signal.SIGINT, signal.default_int_handler)

# Deadlines measure the machine, and the first call of a compiled function also compiles it.
hypothesis.settings.register_profile("kernelmesh", deadline=None, max_examples=150, derandomize=True)
# `pytest --hypothesis-profile=thorough` looks further, elsewhere every time
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=4000)
hypothesis.settings.load_profile("kernelmesh")
