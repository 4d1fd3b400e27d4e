"""Whether a draft pays (`draft="auto"`), and how long it is to be: costs of rows, and odds of drafts.

Costs are measured by the passes of the model, of all requests together; odds are those of one request.
Nothing here changes a text: it decides only how many tokens of it a pass computes.
"""

from __future__ import annotations

MEMORY = 0.98  # what an older pass counts beside the one after it
SHARE = 0.15  # of a pass of one row that a further row is taken to cost, until that is measured
SHARE_WEIGHT = 0.05  # how much of the variance of rows it takes to learn otherwise
LEVEL = 0.2  # how much of a deviation all earlier passes are taken to share
MOST_DEVIATION = 1.5  # of what a pass is taken to cost: one that was interrupted says little


class RowCosts:
    """Seconds of a pass by its rows, fixed + each × rows, fitted to the latest passes.

    >>> costs = RowCosts()
    >>> for rows in (1, 1, 3, 1, 2, 1):
    ...     costs.note(rows, 1.0 + 0.5 * rows)
    >>> costs.seconds(5) > costs.seconds(1) > 1
    True
    """

    def __init__(self) -> None:
        self._n = self._rows = self._seconds = self._square = self._product = 0.0  # weighted sums

    def note(self, rows: int, seconds: float) -> None:
        """Learn from a pass."""
        if self._n and (usual := self.seconds(rows)):
            seconds = min(max(seconds, usual / MOST_DEVIATION), usual * MOST_DEVIATION)
            level = (seconds / usual) ** LEVEL  # a machine that is busy is slower at passes of any rows
            self._seconds, self._product = level * self._seconds, level * self._product
        sums = self._n, self._rows, self._seconds, self._square, self._product
        added = 1.0, rows, seconds, rows * rows, rows * seconds
        self._n, self._rows, self._seconds, self._square, self._product = (
            MEMORY * old + new for old, new in zip(sums, added, strict=True)
        )

    def seconds(self, rows: int) -> float:
        """What a pass of so many rows takes; 0 if there was none."""
        if not self._n:
            return 0.0
        mean_rows, mean = self._rows / self._n, self._seconds / self._n
        variance = self._square / self._n - mean_rows**2
        covariance = self._product / self._n - mean_rows * mean
        usual = SHARE * mean / (1 + SHARE * (mean_rows - 1))
        each = (covariance + SHARE_WEIGHT * usual) / (variance + SHARE_WEIGHT)
        each = min(max(each, 0.0), mean / mean_rows)  # a row costs something, and no more than a pass alone
        return mean + each * (rows - mean_rows)


class Odds:
    """The probability that a drafted token is right if those before it were, learned from one request.

    >>> odds = Odds()
    >>> odds.learn(4, 4)
    >>> round(odds.probability, 2)
    0.87
    """

    FIRST_PROBABILITY, FIRST_COUNT = 0.6, 2.0
    MEMORY, FADING = 0.9, 0.9

    def __init__(self) -> None:
        self._right = self._tried = 0.0

    @property
    def probability(self) -> float:
        """Of the next drafted token."""
        right = self._right + self.FIRST_PROBABILITY * self.FIRST_COUNT
        return right / (self._tried + self.FIRST_COUNT)

    def learn(self, n_draft: int, n_accepted: int) -> None:
        """Learn from a draft."""
        self._right = self.MEMORY * self._right + n_accepted
        self._tried = self.MEMORY * self._tried + min(n_draft, n_accepted + 1)

    def fade(self) -> None:
        """Forget a little, while nothing is drafted: texts change."""
        self._right, self._tried = self.FADING * self._right, self.FADING * self._tried


CAUTION = 1.25  # times as long as estimated is what a draft may take: estimates are rough
MARGIN = 0.03  # of a token that a draft has to gain


def best_length(
    costs: RowCosts, probability: float, most: int, n_running: int, token_seconds: float = 0.0
) -> tuple[int, float]:
    """How many tokens to draft for one of so many requests, and how much faster all of them get on then.

    All requests wait for the rows that one adds. `token_seconds` is what drafting a token takes.
    (0, 1.0) if it does not pay.
    """
    plain, best, accepted, chance = costs.seconds(n_running), 0, 0.0, 1.0
    if not plain:
        return min(most, 1), 1.0  # nothing is measured yet
    gain = 1 + MARGIN / n_running
    for n in range(1, most + 1):
        chance *= probability
        accepted += chance
        added = costs.seconds(n_running + n) - plain + n * token_seconds
        speed = (1 + accepted / n_running) / (1 + CAUTION * added / plain)
        if speed > gain:
            best, gain = n, speed
    return (best, gain) if best else (0, 1.0)
