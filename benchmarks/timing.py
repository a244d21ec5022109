"""Timing side by side: what runs in turns shares whatever else the machine does."""

import random
import statistics
import time


def interleave(contestants, rounds):
    """Run every contestant once a round, in an order that is drawn anew each time, and time it.

    Args:
        contestants: Dictionary from names to functions without arguments.
        rounds: How many times each is run, after one run that is not counted.

    Returns:
        Dictionary from names to lists of seconds, one for each round.
    """
    for run in contestants.values():
        run()
    times = {name: [] for name in contestants}
    shuffler = random.Random(0)
    for _ in range(rounds):
        # Nobody always follows the same one, which may leave work behind.
        for name in shuffler.sample(list(contestants), len(contestants)):
            start = time.perf_counter()
            contestants[name]()
            times[name].append(time.perf_counter() - start)
    return times


def ratios(times, baseline):
    """A row for every contestant: its ratio to the baseline, median and quartiles over rounds."""
    rows = []
    for name, seconds in times.items():
        each = [mine / base for mine, base in zip(seconds, times[baseline])]
        low, median, high = statistics.quantiles(each, n=4)
        rows.append(
            {
                "contestant": name,
                "ratio": round(median, 3),
                "quartiles": f"{low:.2f} to {high:.2f}",
                "ms": round(1000 * statistics.median(seconds), 2),
            }
        )
    return rows


def as_markdown(rows):
    """Rows, which are dictionaries with the same keys, as a table."""
    heading = list(rows[0])
    lines = [heading, ["---"] * len(heading)]
    lines += [[str(row[key]) for key in heading] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
