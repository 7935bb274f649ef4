/* Random permutations that are computed element by element: a Feistel network whose round function is Philox (Luby and
 * Rackoff, SIAM J. Comput. 17, 1988), on the least even number of bits that can hold all numbers below n, 2 or
 * more. It is applied again while its result is n or more ("cycle walking"; Black and Rogaway, CT-RSA 2002). */
#include "data/order.h"

#include "kernels/philox.h"

enum { ROUNDS = 8 };

/* Returns the key of the orders of a seed: a block of that seed that no random stream of a context has. */
static uint64_t key_of(uint64_t seed) {
    tg_philox_block b = tg_philox(seed, UINT64_MAX, UINT64_MAX);
    return (uint64_t)b.w[1] << 32 | b.w[0];
}

/* Permutes the numbers of 2 * half bits. */
static uint64_t permute(uint64_t key, uint64_t epoch, int half, uint64_t x) {
    uint64_t mask = (UINT64_C(1) << half) - 1, left = x >> half, right = x & mask;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        uint64_t next = left ^ (tg_philox(key, right << 8 | round, epoch).w[0] & mask);
        left = right, right = next;
    }
    return left << half | right;
}

int64_t tg_order_at(uint64_t seed, int64_t epoch, int64_t n, int64_t i) {
    uint64_t key = key_of(seed), x = (uint64_t)i;
    int half = 1;
    while (half < 31 && UINT64_C(1) << 2 * half < (uint64_t)n) half++;
    do x = permute(key, (uint64_t)epoch, half, x);
    while (x >= (uint64_t)n);
    return (int64_t)x;
}
