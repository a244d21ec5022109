"""Timing side by side: what runs in turns shares whatever else the machine does.

Contestants are compared by the time of the processors, of all threads together. Time by the clock
doubles, for anyone and at any moment, when a virtual machine lets two threads share a processor;
it is reported beside it.
"""

import collections
import random
import statistics
import time

Seconds = collections.namedtuple("Seconds", ["processors", "clock"])


def interleave(contestants, rounds):
    """Run every contestant once a round, in an order that is drawn anew each time, and time it.

    Args:
        contestants: Dictionary from names to functions without arguments. One that runs elsewhere
            returns its own `Seconds`.
        rounds: How many times each is run, after one run that is not counted.

    Returns:
        Dictionary from names to lists of `Seconds`, one for each round.
    """
    for run in contestants.values():
        run()
    times = {name: [] for name in contestants}
    shuffler = random.Random(0)
    for _ in range(rounds):
        # Nobody always follows the same one, which may leave work behind.
        for name in shuffler.sample(list(contestants), len(contestants)):
            start = time.process_time(), time.perf_counter()
            told = contestants[name]()
            end = time.process_time(), time.perf_counter()
            here = Seconds(end[0] - start[0], end[1] - start[1])
            times[name].append(told if isinstance(told, Seconds) else here)
    return times


def ratios(times, baseline):
    """A row for every contestant: its ratio to the baseline, median and quartiles over rounds."""
    rows = []
    for name, seconds in times.items():
        each = [
            Seconds(mine.processors / base.processors, mine.clock / base.clock)
            for mine, base in zip(seconds, times[baseline])
        ]
        low, median, high = statistics.quantiles([ratio.processors for ratio in each], n=4)
        rows.append(
            {
                "contestant": name,
                "ratio": round(median, 3),
                "quartiles": f"{low:.2f} to {high:.2f}",
                "by the clock": round(statistics.median(ratio.clock for ratio in each), 3),
                "ms": round(1000 * statistics.median(mine.clock for mine in seconds), 2),
            }
        )
    return rows


def as_markdown(rows):
    """Rows, which are dictionaries with the same keys, as a table."""
    heading = list(rows[0])
    lines = [heading, ["---"] * len(heading)]
    lines += [[str(row[key]) for key in heading] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
