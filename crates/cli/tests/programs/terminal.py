"""Runs a command on a terminal of 24 lines and 80 columns.

Usage: terminal.py KEYS COMMAND...

Waits until the command has drawn, then types KEYS one by one, each once the command has drawn after the key before:
`+` stands for a larger terminal. Prints a JSON array: what the command wrote before the first key, then after each.
The last element is its exit status."""

import fcntl
import json
import os
import pty
import select
import struct
import sys
import termios
import time

keys, command = sys.argv[1], sys.argv[2:]
pid, terminal = pty.fork()
if pid == 0:
    os.environ["TERM"] = "xterm"
    os.execvp(command[0], command)


def resize(lines, columns):
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))


def read(until):
    """What comes until `until` seconds after the last of it, and whether the command may write more."""
    text, end = b"", time.monotonic() + 30
    while time.monotonic() < end:
        wait = until if text else end - time.monotonic()
        if not select.select([terminal], [], [], max(0, wait))[0]:
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
text, is_open = read(0.3)
parts.append(text)
for key in keys:
    if key == "+":
        resize(40, 132)
    else:
        os.write(terminal, key.encode())
    text, is_open = read(0.3)
    parts.append(text)
while is_open:
    text, is_open = read(1)
    parts[-1] += text
status = os.waitpid(pid, 0)[1]
print(json.dumps([part.decode() for part in parts] + [os.waitstatus_to_exitcode(status)]))
