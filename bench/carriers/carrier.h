/* What the measurement of message carriers (pingpong.c) needs of each library: one connection between two processes of
 * this machine. The other C files of this folder implement it, each with one library. */
#ifndef CARRIER_H
#define CARRIER_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { LONGEST = 128 << 10 }; /* bytes of the longest message, that of tapegrad/p2p.h */

/* Connects with the other process. me: 0 or 1. where: the transport, in the library's own words. */
void carrier_open(int me, const char *where);
/* Starts to send n bytes, which stay as they are until carrier_flush has returned. */
void carrier_send(const void *data, size_t n);
/* Waits for the next message, of n bytes. */
void carrier_receive(void *data, size_t n);
/* Waits until all messages have been handed over, so that their memory can be used again. */
void carrier_flush(void);

/* Exchange n bytes with the other process, at most 4,096, before there is a connection. */
void swap_bytes(const void *mine, void *theirs, size_t n);
/* Ends this process with the reason, and says how long after the peer's end it came. */
void lost(const char *why) __attribute__((noreturn));

#ifdef __cplusplus
}
#endif

#endif
