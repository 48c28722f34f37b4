"""Token streams that the oracle trains on."""

import numpy as np

VOCABULARY = 160


def random_documents(seed: int, lengths):
    """Token 0 is left out: it is padding to some families, whose embedding is zero and is not trained."""
    generator = np.random.default_rng(seed)
    return [generator.integers(1, VOCABULARY, length).tolist() for length in lengths]


# 1 to 90 tokens: pieces of one token, pieces longer than a sample, edges at and across sample ends.
MIXED = random_documents(0, [1, 1, 40, 32, 33, 2, 90, 64, *np.random.default_rng(1).integers(1, 91, 40).tolist()])
CORPORA = {
    "mixed": MIXED,
    # Fewer samples than the steps ask for: the next epoch starts within a step.
    "short": random_documents(2, [300, 200, 145]),
    # In each 8 x 32 tokens one target lies in its input's document.
    "one_target": [document for step in range(4) for document in random_documents(3 + step, [1] * (17 + 50 * step) + [2] + [1] * (237 - 50 * step))]
                  + [[1]],
}
