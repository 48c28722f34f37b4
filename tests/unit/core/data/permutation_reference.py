"""The order of samples (core/src/data/permutation.h), written independently of the engine; prints the values that permutation_test.cpp expects."""

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(z):
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def element(index, count, seed, epoch):
    half = 4
    while 4**half < count:
        half += 1
    state = mix((mix((seed + GOLDEN) & MASK) + epoch * GOLDEN) & MASK)
    keys = []
    for _ in range(8):
        state = (state + GOLDEN) & MASK
        keys.append(mix(state))
    low = (1 << half) - 1
    while True:
        left, right = index >> half, index & low
        for key in keys:
            left, right = right, left ^ (mix(((right + GOLDEN) & MASK) ^ key) & low)
        index = left << half | right
        if index < count:
            return index


if __name__ == "__main__":
    print(*(element(i, 10, 1, 0) for i in range(10)), sep=", ")
    print(element(0, 1 << 40, 1234, 5))
    print(element((1 << 40) - 1, 1 << 40, 1234, 5))
