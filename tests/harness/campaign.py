"""How much of a campaign runs: a few seeded cases by default, all of them with OOM_FAULTS=all.

OOM_FAULTS_SEED=N repeats a selection; without it each run has a seed of its own, which is printed.
"""

import os
import random

import pytest

WHOLE = os.environ.get("OOM_FAULTS") == "all"


@pytest.fixture
def dice():
    """A random generator whose seed is in the output of a test that fails."""
    seed = int(os.environ.get("OOM_FAULTS_SEED", random.SystemRandom().randrange(1 << 31)))
    print(f"OOM_FAULTS_SEED={seed}")
    return random.Random(seed)


def selection(cases, quick: int, dice: random.Random) -> list:
    """All cases, or `quick` of them."""
    cases = list(cases)
    return cases if WHOLE or len(cases) <= quick else dice.sample(cases, quick)
