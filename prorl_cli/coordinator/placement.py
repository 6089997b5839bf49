"""Which worker gets what: most free slots first, ties by name; split over workers only where no one has room."""

from __future__ import annotations


def place(members: tuple[int, ...], free: dict[str, int]) -> list[tuple[str, tuple[int, ...]]]:
    """Give `members` to workers with `free` slots, which are used up; what finds no slot is left out."""
    placed = []
    while members and any(slots > 0 for slots in free.values()):
        worker = max(sorted(free), key=lambda name: free[name])
        taken, members = members[: free[worker]], members[free[worker] :]
        free[worker] -= len(taken)
        placed.append((worker, taken))
    return placed
