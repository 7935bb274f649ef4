/* tapegrad-bench-ranks [ROUNDS]: measures what tensor parallelism costs. Four teams of ranks run steps of GPT-2 124M in
 * turn: one rank with two threads, two ranks with one thread each, the same with sequence parallelism, and four
 * ranks. */
#include <stdio.h>
#include <stdlib.h>

#include "teams.h"

int main(int argc, char **argv) {
    static team teams[] = {{.name = "1 rank, 2 threads", .ranks = 1, .threads = 2, .tp = 1},
                           {.name = "tp 2, 1 thread each", .ranks = 2, .threads = 1, .tp = 2},
                           {.name = "tp 2 with sp", .ranks = 2, .threads = 1, .tp = 2, .sp = true},
                           {.name = "tp 4, 1 thread each", .ranks = 4, .threads = 1, .tp = 4}};
    enum { TEAMS = sizeof teams / sizeof *teams, WARM = 3 };
    int rounds = argc > 1 ? atoi(argv[1]) : 15;
    if (rounds < 1 || rounds > TEAM_ROUNDS - WARM - 2) rounds = 15;
    for (int i = 0; i < TEAMS; i++)
        if (!team_start(&teams[i])) return 1;
    bool good = true;
    for (int r = 0; r < WARM + rounds && good; r++)
        for (int i = 0; i < TEAMS && good; i++) good = team_play(&teams[i], r);
    for (int i = 0; i < TEAMS; i++) team_end(&teams[i]);
    if (!good) return 1;
    double m[TEAMS];
    printf("GPT-2 124M step, float32, AdamW, batch %d of %d tokens, medians of %d rounds in alternation:\n", TEAM_BATCH,
           TEAM_LENGTH, rounds);
    for (int i = 0; i < TEAMS; i++) {
        m[i] = median(teams[i].ms + WARM, rounds);
        printf("  %-20s %8.1f ms   first loss %.6f\n", teams[i].name, m[i], teams[i].loss);
    }
    printf("tp 2 / 1 rank with 2 threads   %.3f   (target: at most 1.05)\n", m[1] / m[0]);
    printf("tp 2 with sp / the same        %.3f\n", m[2] / m[0]);
    printf("4 ranks / 2 ranks              %.3f   (target on 2 cores: at most 1.25)\n", m[3] / m[1]);
    return 0;
}
