"""Data that are made here: sums, expressions and products, and two sets whose answers can only be estimated."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from ...errors import InputError
from .pairs import Pair, Splits

Limits = dict[str, int | None]
"""Sizes of train, validation and test; None takes the set's own."""
Make = Callable[[int], list[Pair]]
"""Makes so many pairs."""
SIZES_BY_DEFAULT = {"train": 4000, "validation": 200, "test": 200}


SUMS = ("{a} + {b}", "What is {a} + {b}?", "Calculate {a} + {b}.", "Add {a} and {b}.", "Sum {a} and {b}.")
DIFFERENCES = ("{a} - {b}", "What is {a} - {b}?", "Calculate {a} - {b}.", "Subtract {b} from {a}.", "{a} minus {b}")


def sums(count: int, digits: int, seed: int) -> list[Pair]:
    """Distinct sums and differences of numbers of up to ``digits`` digits."""
    rng = random.Random(seed)
    limit = 10**digits
    if count > limit * limit:
        raise InputError(f"there are fewer than {count} distinct questions on numbers of {digits} digits")
    pairs: dict[str, Pair] = {}
    while len(pairs) < count:
        a, b = rng.randrange(limit), rng.randrange(limit)
        templates, answer = rng.choice([(SUMS, a + b), (DIFFERENCES, a - b)])
        question = rng.choice(templates).format(a=a, b=b)
        pairs.setdefault(question, Pair(question, str(answer)))
    return list(pairs.values())


def split(limits: Limits, made: Make, longer: Make | None = None) -> Splits:
    """The splits of pairs that ``made`` makes; ``longer`` makes a second test, on longer questions."""
    train, validation, test = (limits[name] or size for name, size in SIZES_BY_DEFAULT.items())
    pairs = made(train + validation + test)
    rest = pairs[train + validation :]
    tests = {"test": rest} if longer is None else {"interpolate": rest, "extrapolate": longer(test)}
    return Splits(pairs[:train], pairs[train : train + validation], tests)


def readings(count: int, seed: int) -> list[Pair]:
    """Three readings of an integer below 1,000, with Gaussian errors of standard deviation 20, and the integer.

    The error of their mean has standard deviation 11.5, hence MAE 9.2: no answer is right more than by luck, and near
    ones are what can be learned.
    """
    rng = random.Random(seed)
    pairs = []
    for _ in range(count):
        truth = rng.randrange(1000)
        seen = ", ".join(str(round(rng.gauss(truth, 20.0))) for _ in range(3))
        pairs.append(Pair(f"The readings are {seen}. Estimate the value.", str(truth)))
    return pairs


OPERANDS, OPERAND_SHARES = (1, 2, 3, 4), (0.03, 0.47, 0.3, 0.2)
LARGEST, NEGATIVE_SHARE = (10, 10, 30, 100), 0.3
TEMPLATES = ("{}", "Calculate {}.", "Evaluate {}.", "What is {}?", "What is the value of {}?")


def expressions(count: int, operands: Sequence[int], shares: Sequence[float], rng: random.Random) -> list[Pair]:
    """Distinct nested sums and differences in the style of DeepMind's ``add_sub_multiple``, and their values."""
    pairs: dict[str, str] = {}
    while len(pairs) < count:
        text, value = expression(rng.choices(operands, shares)[0], rng)
        pairs[rng.choice(TEMPLATES).format(text)] = str(value)
    shuffled = [Pair(question, answer) for question, answer in pairs.items()]
    rng.shuffle(shuffled)
    return shuffled


def expression(operands: int, rng: random.Random) -> tuple[str, int]:
    """A random expression and its value; a left part that is one itself stands in brackets every other time."""
    if operands == 1:
        value = rng.randrange(rng.choice(LARGEST)) * (-1 if rng.random() < NEGATIVE_SHARE else 1)
        return str(value), value
    split = rng.randrange(1, operands)
    (left, first), (right, second) = expression(split, rng), expression(operands - split, rng)
    if split > 1 and rng.random() < 0.5:
        left = f"({left})"
    if operands - split > 1:
        right = f"({right})"
    sign = rng.choice("+-")
    return f"{left} {sign} {right}", first + second if sign == "+" else first - second


FACTOR_DIGITS, LONG_FACTOR_DIGITS = (1, 2, 3), 4


def products(count: int, first_digits: Sequence[int], rng: random.Random) -> list[Pair]:
    """Distinct products; the number of digits of a factor is drawn first, so that short ones are as common as long.

    The task of Zausinger et al., who ask for products to see how the error grows with the digits; their sizes differ.
    """
    pairs: dict[str, Pair] = {}
    while len(pairs) < count:
        a, b = (number_of_digits(rng.choice(choices), rng) for choices in (first_digits, FACTOR_DIGITS))
        question = f"What is {a} * {b}?"
        pairs[question] = Pair(question, str(a * b))
    return list(pairs.values())


def number_of_digits(digits: int, rng: random.Random) -> int:
    return rng.randrange(10 ** (digits - 1), 10**digits)


ROOMS = ("one", "two", "three", "four", "five")
SIZES = {"tiny": -150, "small": -70, "plain": 0, "large": 90, "huge": 210}
PLACES = {"by the station": -60, "on a main road": -40, "at the edge of town": 0, "near the park": 80, "downtown": 160}
STATES = {"in need of repair": -110, "as it stands": 0, "freshly painted": 50, "newly built": 140}
EXTRAS = {"": 0, " with a balcony": 40, " with a garden": 95, " with a garage": 60, " with a lift": 25}
RENT, RENT_PER_ROOM, RENT_DEVIATION = 400, 130, 40.0


def rents(count: int, seed: int) -> list[Pair]:
    """A flat in words, and its rent: a sum over what the words say, plus a Gaussian error of standard deviation 40.

    Whoever knows the sum errs by 31.9 on average.
    """
    rng = random.Random(seed)
    pairs = []
    for _ in range(count):
        rooms = rng.randrange(len(ROOMS))
        size, place, state, extra = (rng.choice(list(table)) for table in (SIZES, PLACES, STATES, EXTRAS))
        mean = RENT + RENT_PER_ROOM * rooms + SIZES[size] + PLACES[place] + STATES[state] + EXTRAS[extra]
        flat = f"A {size} flat of {ROOMS[rooms]} room{'s' if rooms else ''} {place}, {state}{extra}. What is the rent?"
        pairs.append(Pair(flat, str(max(0, round(rng.gauss(mean, RENT_DEVIATION))))))
    return pairs


def generated_sums(limits: Limits, seed: int) -> Splits:
    """Sums and differences of two-digit numbers, and a test on three-digit ones."""
    return split(limits, lambda count: sums(count, 2, seed), lambda count: sums(count, 3, seed))


def generated_expressions(limits: Limits, seed: int) -> Splits:
    """Sums and differences of up to four integers, and a test on those of five."""
    rng = random.Random(seed)
    return split(
        limits,
        lambda count: expressions(count, OPERANDS, OPERAND_SHARES, rng),
        lambda count: expressions(count, (5,), (1.0,), rng),
    )


def generated_multiplication(limits: Limits, seed: int) -> Splits:
    """Products of two factors of up to three digits, and a test where one of them has four."""
    rng = random.Random(seed)
    return split(
        limits,
        lambda count: products(count, FACTOR_DIGITS, rng),
        lambda count: products(count, (LONG_FACTOR_DIGITS,), rng),
    )


GENERATORS: dict[str, Callable[[Limits, int], Splits]] = {
    "generated": generated_sums,
    "expressions": generated_expressions,
    "multiplication": generated_multiplication,
    "readings": lambda limits, seed: split(limits, lambda count: readings(count, seed)),
    "rents": lambda limits, seed: split(limits, lambda count: rents(count, seed)),
}
