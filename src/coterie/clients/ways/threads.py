"""Independent tasks in threads; each thread computes with one core."""

from __future__ import annotations

import functools
import queue
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch

Own = TypeVar("Own")
Result = TypeVar("Result")


def in_threads(
    task: Callable[[int, Own], Result], count: int, own: Sequence[Own]
) -> list[Result]:
    """The results of the tasks 0, 1, ..., in this order.

    There is a thread for each entry of `own`, and a task gets the entry of its thread.
    Operations of torch inside a task use one core. If a result does not depend on the
    entry, it does not depend on the number of threads either.
    """
    if len(own) == 1 or count == 1:
        return [task(number, own[0]) for number in range(count)]
    free: queue.SimpleQueue[Own] = queue.SimpleQueue()
    for each in own:
        free.put(each)

    def run_task(number: int) -> Any:
        mine = free.get()
        try:
            return task(number, mine)
        finally:
            free.put(mine)

    before = torch.get_num_threads()
    try:
        # The number of threads that operations use is a setting of each thread.
        one = functools.partial(torch.set_num_threads, 1)
        with ThreadPoolExecutor(len(own), initializer=one) as pool:
            return list(pool.map(run_task, range(count)))
    finally:
        torch.set_num_threads(before)  # threads that start later use the last setting
