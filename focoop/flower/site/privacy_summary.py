"""What a site's people see of its privacy: releases and their epsilon, and whose keys it knows."""

import math
from pathlib import Path
from typing import Any

DELTA = 1e-5


def privacy_facts(state: Path) -> dict[str, Any]:
    """What a state folder tells of releases and of the sites of secure sums.

    Args:
        state: the site's state folder.

    Returns:
        `released`: noised updates of all runs; `epsilon`: of all of them together at `delta`, None
        where some had no noise; `peers`: fingerprints of other sites' keys, by federation and
        client.
    """
    from focoop.flower.site.peers import known_peers
    from focoop.flower.site.releases import spent

    count, bound = spent(state, DELTA)
    epsilon = bound if math.isfinite(bound) else None
    return {"released": count, "epsilon": epsilon, "delta": DELTA, "peers": known_peers(state)}


def privacy_sentences(facts: dict[str, Any]) -> list[str]:
    """Describe a site's privacy in words.

    Args:
        facts: Facts by name.

    Returns:
        A line each; none where there is nothing to tell.

    >>> privacy_sentences({"released": 2, "epsilon": 3.25, "delta": 1e-05, "peers": {}})
    ['2 noised updates released in all runs: epsilon 3.25 at delta 1e-05']
    """
    lines = []
    if facts["released"]:
        bound = "no bound" if facts["epsilon"] is None else f"epsilon {facts['epsilon']:.4g}"
        lines.append(
            f"{facts['released']} noised updates released in all runs: {bound} at delta "
            f"{facts['delta']:g}"
        )
    for federation, sites in facts["peers"].items():
        known = ", ".join(f"client {client}: {mark}" for client, mark in sites.items())
        lines.append(
            f"keys known from secure sums of federation {federation} (compare them with the other "
            f"sites): {known}"
        )
    return lines
