"""Greenlets that start each other and take turns, each at another depth.

They run for as many seconds of processor time as the argument says.
"""

import sys
import time

import greenlet

END = time.process_time() + float(sys.argv[1])


def work(depth):
    if depth:
        work(depth - 1)
        return
    while time.process_time() < END:
        sum(range(2000))
        greenlet.getcurrent().parent.switch()


def start(depth):
    if depth:
        return start(depth - 1)
    return greenlet.greenlet(work)


def main():
    workers = []
    for depth in (3, 30, 10):
        workers.append(start(depth))
        workers[-1].switch(depth)
    while time.process_time() < END:
        for worker in workers:
            worker.switch()


main()
