/* Our Philox4x32-10 gives cuRAND's numbers, word for word. The reference is cuRAND's generator on the host, which needs
 * no GPU. It returns block 0 of STREAMS subsequences, then block 1 of each, and so on; a subsequence is what Tapegrad
 * calls a stream. */
#include <curand.h>
#include <stdlib.h>

#include "check_main.h"
#include "kernels/philox.h"

enum { STREAMS = 65536, WORDS = 4 * STREAMS };

/* Returns the position of cuRAND's number i. */
static uint32_t ours(uint64_t seed, uint64_t i) {
    tg_rng rng = {.seed = seed, .stream = i / 4 % STREAMS, .counter = i / WORDS * 4 + i % 4};
    return tg_philox_word(&rng, 0, 0);
}

static void same_from(uint64_t seed, uint64_t offset, size_t n) {
    curandGenerator_t g;
    uint32_t *words = malloc(n * sizeof *words);
    size_t same = 0;
    ck_assert_int_eq(curandCreateGeneratorHost(&g, CURAND_RNG_PSEUDO_PHILOX4_32_10), CURAND_STATUS_SUCCESS);
    ck_assert_int_eq(curandSetPseudoRandomGeneratorSeed(g, seed), CURAND_STATUS_SUCCESS);
    ck_assert_int_eq(curandSetGeneratorOffset(g, offset), CURAND_STATUS_SUCCESS);
    ck_assert_int_eq(curandGenerate(g, words, n), CURAND_STATUS_SUCCESS);
    for (size_t i = 0; i < n; i++) same += words[i] == ours(seed, offset + i);
    ck_assert_uint_eq(same, n);
    curandDestroyGenerator(g);
    free(words);
}

START_TEST(streams_and_blocks) {
    same_from(0, 0, 3 * WORDS + 100);
    same_from(0x123456789abcdef0u, 0, WORDS + 4);
    same_from(~(uint64_t)0, 0, 4096);
}
END_TEST

START_TEST(a_stream_far_along_equals_curands) {
    same_from(42, 4, 1000);
    same_from(42, (uint64_t)WORDS * 5 - 8, 1000);
    same_from(42, ((uint64_t)1 << 50) + 12, 1000); /* past 2^32 blocks */
}
END_TEST

int main(void) {
    const TTest *const tests[] = {streams_and_blocks, a_stream_far_along_equals_curands};
    return tg_check_main("philox_curand", tests, sizeof tests / sizeof *tests);
}
