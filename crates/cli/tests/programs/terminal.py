"""Runs a command on a terminal of 24 lines and 80 columns.

Usage: terminal.py STEPS COMMAND...

STEPS is a JSON array of pairs: a key and what the command writes because of it. Before the first key there is an empty
one. A key is typed once the command has written that of the key before and is quiet; `+` stands for a larger terminal.
Prints a JSON array: what the command wrote after each key. The last element is its exit status."""

import fcntl
import json
import os
import pty
import select
import struct
import sys
import termios
import time

steps, command = json.loads(sys.argv[1]), sys.argv[2:]
pid, terminal = pty.fork()
if pid == 0:
    os.environ["TERM"] = "xterm"
    os.execvp(command[0], command)


def resize(lines, columns):
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))


def read(expected):
    """What comes until `expected` is in it and nothing comes for a while, and whether the command may write more."""
    text, end = b"", time.monotonic() + 60
    while (left := end - time.monotonic()) > 0:
        wait = 0.3 if expected.encode() in text else left
        if not select.select([terminal], [], [], wait)[0]:
            break
        try:
            more = os.read(terminal, 1 << 16)
        except OSError:
            more = b""
        if not more:
            return text, False
        text += more
    return text, True


resize(24, 80)
parts = []
for key, expected in steps:
    if key == "+":
        resize(40, 132)
    elif key:
        os.write(terminal, key.encode())
    text, is_open = read(expected)
    parts.append(text)
while is_open:
    text, is_open = read("")
    parts[-1] += text
status = os.waitpid(pid, 0)[1]
print(json.dumps([part.decode() for part in parts] + [os.waitstatus_to_exitcode(status)]))
