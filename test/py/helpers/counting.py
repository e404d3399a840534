"""How much work a function does, without a clock: the lines of Python that it executes."""

import sys


def lines_of(fn) -> int:
    """The lines of Python that a call of ``fn`` executes, in all functions that it calls. Linear work counts linearly
    whatever else the machine does; what is quadratic inside one call into C is not seen."""
    count = 0

    def trace(frame, event, arg):
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        fn()
    finally:
        sys.settrace(before)
    return count
