"""Who serves though Kubernetes no longer takes them for ready: all who were, for a while."""

import math
from collections.abc import Collection

UNREADY_S = 15.0
"""Who was ready leaves after so long of being not ready while others are. After an outage of its
own Kubernetes has heard of no node for a while, and takes some or all of their pods for not ready,
until each kubelet says otherwise, which it does every 10 s. Whether they answer is meanwhile for
their health to say.
"""


class Readiness:
    """Decides, by what was read just now, who serves."""

    def __init__(self, unready_s: float = UNREADY_S) -> None:
        self._unready_s = unready_s
        self._since_s: dict[str, float] = {}
        """Of those that serve and are not ready, while somebody is."""

    def serving(
        self, served: Collection[str], ready: Collection[str], there: Collection[str], now_s: float
    ) -> set[str]:
        """`served`: who did until now; `there`: ready or not."""
        unready = {each for each in served if each in there and each not in ready}
        if not ready:  # while nobody is, nobody's time runs
            self._since_s = {}
            return unready
        since_s = {each: self._since_s.get(each, now_s) for each in unready}
        self._since_s = {
            each: began_s for each, began_s in since_s.items() if now_s < began_s + self._unready_s
        }
        return {*ready, *self._since_s}

    @property
    def next_leaves_at_s(self) -> float:
        """When the next one leaves if it is still not ready; infinite if all are."""
        return min(self._since_s.values(), default=math.inf) + self._unready_s

    def begin_anew(self) -> None:
        """Whoever is not ready has all the time again: what was known is out of date."""
        self._since_s = {}
