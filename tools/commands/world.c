/* tapegrad world: says how each rank was started, and lets the ranks meet once. It tests a job script in a second. */
#include <tapegrad/world.h>

#include "base/os.h"
#include "common/ranks.h"

typedef struct world_options {
    rank_options on;
    const char *device;
} world_options;

#define AT(field) offsetof(world_options, field)

static const option options[] = {
    COMM_ROWS(world_options),
    {"device", OPTION_DEVICE, AT(device), DEVICES, "where tensors lie; cuda: each rank gets a GPU", .fixed = false},
};

static const command world_command = {
    .name = "world",
    .usage = "[OPTION...]",
    .summary =
        "Says how this process was started as one of several ranks, and by what the ranks reach each other.\n"
        "Then all ranks meet and add up a number. Start it as you start a program that trains: by `tapegrad run`,\n"
        "mpirun, torchrun or srun.",
    .options = options,
    .n_options = sizeof options / sizeof *options,
};

/* The rank's line is one write, because all ranks print. */
static int meet(void *arg, tg_ctx *ctx, tg_comm *world) {
    const double *begun = arg;
    tg_world_info w = TG_WORLD_INFO();
    char text[512];
    double ranks = 1;
    tg_world_query(&w, NULL, 0);
    tg_world_text(&w, text, sizeof text);
    printf("%s; device %s, transport \"%s\"\n", text, tg_ctx_device(ctx), tg_comm_transport(world));
    fflush(stdout);
    sum_over_ranks(ctx, world, &ranks, 1);
    if (!check(ctx)) return 1;
    if (is_chief(world))
        say("%d rank%s met, %.2f s after the start\n", (int)ranks, ranks > 1 ? "s have" : " has",
            tg_system_now() - *begun);
    return 0;
}

int run_world(int argc, char **argv) {
    world_options o = {.on = RANK_DEFAULTS};
    parsed p;
    double begun = tg_system_now();
    bool chief;
    if (!options_parse(&world_command, &o, &p, argc, argv)) return p.status;
    int status = comm_option_check(&world_command, &o.on);
    if (status) return status;
    ranks_begin(&chief);
    tg_config config = *TG_CONFIG(.threads = 1, .device = o.device);
    return run_on_ranks(&o.on, config, meet, &begun);
}
