"""Greenlets that start each other and take turns, each at another depth, for some seconds."""

import sys
import time

import greenlet

END = time.monotonic() + float(sys.argv[1])


def work(depth):
    if depth:
        work(depth - 1)
        return
    while time.monotonic() < END:
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
    while time.monotonic() < END:
        for worker in workers:
            worker.switch()


main()
