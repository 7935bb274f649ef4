"""terminal.py PROGRAM ARGUMENT...: runs tapegrad chat on a terminal of its own, types, and checks what is printed.
An answer must take longer than Ctrl-C."""
import os
import pty
import select
import sys
import time


class Terminal:
    def __init__(self, arguments):
        self.found = b''
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execv(arguments[0], arguments)

    def sees(self, until, seconds):
        """Reads until the text appears. What follows it stays for the next call."""
        end = time.time() + seconds
        while until not in self.found:
            left = end - time.time()
            if left < 0 or not select.select([self.fd], [], [], left)[0]:
                return False
            self.found += os.read(self.fd, 4096)
        self.found = self.found.split(until, 1)[1]
        return True

    def read(self, until):
        if not self.sees(until, 60):
            sys.exit(f'expected {until!r}, found {self.found[-400:]!r}')

    def interrupt(self, until):
        """Presses Ctrl-C until the text appears: libedit prints its prompt before it takes keys."""
        for _ in range(60):
            self.type(b'\x03')
            if self.sees(until, 1):
                return
        self.read(until)

    def drain(self):
        """Reads to the end of the output. A terminal whose output nobody reads keeps the program from ending."""
        try:
            while os.read(self.fd, 4096):
                pass
        except OSError:
            pass  # how Linux reports that the program has closed its terminal

    def type(self, text):
        os.write(self.fd, text)


def main(arguments):
    t = Terminal(arguments)
    t.read(b'/help lists commands')
    t.read(b'> ')
    t.type(b'half a line')
    t.interrupt(b'(/exit or Ctrl-D ends the program)')
    t.read(b'> ')
    t.type('h\u00e9llo \u4e16\n'.encode())
    t.read('h\u00e9llo \u4e16\r\n'.encode())
    t.found += os.read(t.fd, 1)  # the answer has begun
    t.interrupt(b'(stopped)')
    t.read(b'> ')
    t.type(b'/system\n')
    t.read(b'(there is no system prompt)')
    t.type(b'/save typed.json\n')
    t.read(b'(the conversation is saved)')
    t.type(b'/exit\n')
    t.drain()
    return os.waitstatus_to_exitcode(os.waitpid(t.pid, 0)[1])


sys.exit(main(sys.argv[1:]))
