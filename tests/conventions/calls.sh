#!/bin/sh
# calls.sh LIBRARY.a: nothing in the library prints, ends the process, changes the state of the process, or calls a
# function whose result lies in memory that threads share. Objects *.cu.o are left out, as nvcc registers kernels when
# a program starts; the same sources are checked in builds with the emulator.
set -eu
forbidden='printf|vprintf|__printf_chk|__vprintf_chk|puts|putchar|perror|stdout|stderr|stdin
abort|exit|_exit|_Exit|quick_exit|raise|kill|__assert_fail|__assert_perror_fail
atexit|__cxa_atexit|on_exit|signal|sigaction|setenv|putenv|unsetenv|clearenv|setlocale|chdir|umask
rand|srand|random|srandom|drand48|strtok|localtime|gmtime|ctime|asctime|system|popen|fork|vfork
pthread_once|call_once|pthread_key_create|tss_create|__tls_get_addr|__emutls_get_address'
pattern=$(echo "$forbidden" | tr '\n' '|')
nm -A -u "$1" 2>/dev/null | grep -v '\.cu\.o:' | awk -v pattern="^(${pattern%|})\$" '
    { seen++; name = $NF; sub(/@.*/, "", name) }
    name ~ pattern { print $1 " needs " name; bad = 1 }
    END {
        if (!seen) { print "no symbols read"; bad = 1 }
        exit bad
    }'
