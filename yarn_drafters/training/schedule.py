"""Learning-rate schedules over progress in [0, 1]."""

from __future__ import annotations

import math


def warmup_stable_decay(progress: float, warmup: float = 0.02, decay: float = 0.2) -> float:
    """Returns the factor on the peak rate: a linear rise, a plateau, a linear fall to 0.

    Source: WSD, arXiv 2404.06395.  progress, warmup and decay are shares of the run; progress is clamped.
    """
    progress = min(max(progress, 0.0), 1.0)
    if progress < warmup:
        return progress / warmup
    if decay > 0:
        return min(1.0, (1.0 - progress) / decay)
    return 1.0


def cosine(progress: float, warmup: float = 0.02, floor: float = 0.0) -> float:
    """Returns the factor on the peak rate: a linear rise, then half a cosine down to `floor`.

    Source: arXiv 1608.03983.
    """
    progress = min(max(progress, 0.0), 1.0)
    if 0 < warmup >= progress:  # >= : with a warmup of 1, the next line would divide by 0
        return progress / warmup
    travelled = (progress - warmup) / (1.0 - warmup)
    return floor + (1.0 - floor) * 0.5 * (1.0 + math.cos(math.pi * travelled))
