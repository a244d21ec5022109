"""Timing side by side: what runs in turns shares whatever else the machine does."""

import statistics
import time


def interleave(contestants, rounds):
    """Run every contestant once a round, and time it.

    Args:
        contestants: Dictionary from names to functions without arguments.
        rounds: How many times each is run, after one run that is not counted.

    Returns:
        Dictionary from names to lists of seconds, one for each round.
    """
    for run in contestants.values():
        run()
    times = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, run in contestants.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    return times


def compare(times, baseline):
    """The ratio of every contestant to the baseline: median over the rounds, and quartiles."""
    rows = []
    for name, seconds in times.items():
        ratios = [mine / base for mine, base in zip(seconds, times[baseline])]
        low, median, high = statistics.quantiles(ratios, n=4)
        rows.append(
            {
                "contestant": name,
                "ratio": round(median, 3),
                "quartiles": [round(low, 3), round(high, 3)],
                "milliseconds": round(1000 * statistics.median(seconds), 2),
                "rounds": len(seconds),
            }
        )
    return rows


def as_markdown(rows):
    """The rows as a table."""
    lines = ["| contestant | ratio | quartiles | ms |", "|---|---|---|---|"]
    for row in rows:
        low, high = row["quartiles"]
        ratio, time_ms = f"{row['ratio']:.2f}", f"{row['milliseconds']:.1f}"
        lines.append(f"| {row['contestant']} | {ratio} | {low:.2f} to {high:.2f} | {time_ms} |")
    return "\n".join(lines)
