/* Models that are loaded without initial weights, and models on mapped files: the same values as a copy, in memory
 * once, and an error if a file becomes shorter. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <tapegrad/checkpoint.h>
#include <tapegrad/dlpack.h>
#include <tapegrad/gpt.h>
#include <tapegrad/handles.h>
#include <tapegrad/io.h>
#include <tapegrad/lora.h>

#include "on_ranks.h"

enum { VOCAB = 3000, LENGTH = 8, HIDDEN = 64 };

static tg_ctx *ctx;
static tg_tape *t;
static char dir[64], path[96];

static tg_module *model(tg_gpt_arch arch, bool unfilled) {
    return tg_gpt_new(ctx, TG_GPT(.arch = arch, .vocab = VOCAB, .layers = 2, .heads = 4, .hidden = HIDDEN, .ffn = 96,
                                  .positions = LENGTH, .init_std = 0.2, .unfilled = unfilled));
}

static void open_context(const tg_file_ops *files) {
    ctx = tg_ctx_new(TG_CONFIG(.threads = 2, .seed = 7, .check = true, .files = files));
    t = tg_tape_new(ctx);
}

static void close_context(void) {
    ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx));
    tg_tape_free(t);
    tg_ctx_free(ctx);
}

static float logits[3][LENGTH * VOCAB];

static tg_status compute(tg_module *m, float *out) {
    int64_t ids[LENGTH];
    for (int i = 0; i < LENGTH; i++) ids[i] = (i * 977 + 13) % VOCAB;
    tg_tensor *x = tg_from_host(ctx, TG_I64, TG_SHAPE(1, LENGTH), ids);
    tg_read(tg_gpt_logits(m, t, x), out, sizeof *logits);
    tg_tape_reset(t);
    tg_drop(x);
    return tg_ctx_status(ctx);
}

/* Saves a model, and sets logits[0] to what it computes. */
static void save(tg_gpt_arch arch) {
    snprintf(dir, sizeof dir, "/tmp/tg-map-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    open_context(NULL);
    tg_module *m = model(arch, false);
    ck_assert_int_eq(compute(m, logits[0]), TG_OK);
    ck_assert_int_eq(tg_gpt_save(m, dir), TG_OK);
    tg_module_free(m);
    close_context();
}

static void remove_directory(void) {
    char command[96];
    snprintf(command, sizeof command, "rm -r '%s'", dir);
    ck_assert_int_eq(system(command), 0);
}

static int64_t bytes_of_parameters(void) {
    tg_memory_info i = TG_MEMORY_INFO();
    tg_memory_query(ctx, &i);
    return i.live;
}

/* Fails unless m computes the logits of the model that was saved. */
static void ck_computes(tg_module *m) {
    ck_assert_int_eq(compute(m, logits[1]), TG_OK);
    ck_assert(!memcmp(logits[0], logits[1], sizeof *logits));
}

static void end(tg_module *m) {
    tg_module_free(m);
    close_context();
    remove_directory();
}

START_TEST(a_model_without_initial_weights_is_filled_by_loading) {
    save(TG_LLAMA);
    open_context(NULL);
    tg_module *m = model(TG_LLAMA, true);
    ck_assert_int_lt(bytes_of_parameters(), 64 << 10);
    ck_assert_int_eq(compute(m, logits[1]), TG_ERR_STATE);
    ck_assert(strstr(tg_ctx_message(ctx), " has no values yet"));
    tg_ctx_clear(ctx);
    ck_assert_int_eq(tg_gpt_load_weights(m, dir), TG_OK);
    ck_computes(m);
    end(m);
}
END_TEST

/* A load that runs out of memory leaves parameters that a later load can fill. */
START_TEST(a_load_without_memory_can_be_repeated) {
    enum { LIMIT = 8 << 20, LEFT = 256 << 10 }; /* the embedding has 750 KiB */
    save(TG_LLAMA);
    ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .seed = 7, .memory = LIMIT));
    t = tg_tape_new(ctx);
    tg_module *m = model(TG_LLAMA, true);
    tg_memory_info i = TG_MEMORY_INFO();
    tg_memory_query(ctx, &i);
    tg_tensor *rest = tg_zeros(ctx, TG_U8, TG_SHAPE(LIMIT - LEFT - i.live - i.workspace));
    ck_assert_int_eq(tg_gpt_load_weights(m, dir), TG_ERR_MEMORY);
    tg_ctx_clear(ctx);
    tg_drop(rest);
    ck_assert_msg(tg_gpt_load_weights(m, dir) == TG_OK, "%s", tg_ctx_message(ctx));
    ck_computes(m);
    end(m);
}
END_TEST

static void compare_mapped(tg_gpt_arch arch) {
    save(arch);
    open_context(NULL);
    tg_module *m = model(arch, true);
    ck_assert_int_eq(tg_lm_map(&m, 1, dir), TG_OK);
    if (arch == TG_LLAMA) ck_assert_int_lt(bytes_of_parameters(), 64 << 10); /* GPT-2's projections are copied */
    ck_computes(m);
    tg_lora_apply(m, NULL);
    ck_assert_int_eq(compute(m, logits[2]), TG_OK);
    end(m);
}

START_TEST(a_mapped_model_computes_the_same) {
    compare_mapped(TG_LLAMA);
    compare_mapped(TG_GPT2);
}
END_TEST

START_TEST(what_is_written_to_a_mapped_parameter_stays_in_memory) {
    save(TG_LLAMA);
    open_context(NULL);
    tg_module *m = model(TG_LLAMA, true), *again = model(TG_LLAMA, true);
    tg_lm_map(&m, 1, dir);
    tg_param_init(tg_module_find(m, "model.embed_tokens.weight"), TG_INIT(.kind = TG_INIT_CONSTANT, .a = 2));
    ck_assert_int_eq(compute(m, logits[1]), TG_OK);
    tg_lm_map(&again, 1, dir);
    ck_assert_int_eq(compute(again, logits[2]), TG_OK);
    ck_assert(memcmp(logits[0], logits[1], sizeof *logits) && !memcmp(logits[0], logits[2], sizeof *logits));
    ck_assert_int_eq(tg_gpt_save(m, dir), TG_OK); /* to the directory that is mapped */
    ck_assert_int_eq(compute(again, logits[2]), TG_OK);
    ck_assert(!memcmp(logits[0], logits[2], sizeof *logits));
    tg_module_free(m);
    tg_module_free(again);
    close_context();
    remove_directory();
}
END_TEST

/* Returns how many mappings of the file the process has. */
static int count_mappings(void) {
    char line[512];
    int n = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps)) n += strstr(line, path) != NULL;
    if (maps) fclose(maps);
    return n;
}

START_TEST(mapping_again_ends_the_mapping_before) {
    save(TG_LLAMA);
    open_context(NULL);
    tg_module *m = model(TG_LLAMA, true);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(tg_lm_map(&m, 1, dir), TG_OK);
        ck_assert_int_eq(count_mappings(), 1);
    }
    ck_computes(m);
    tg_module_free(m);
    ck_assert_int_eq(count_mappings(), 0);
    close_context();
    remove_directory();
}
END_TEST

START_TEST(pinned_bytes_stay_at_their_address) {
    save(TG_LLAMA);
    open_context(NULL);
    tg_module *m = model(TG_LLAMA, false);
    tg_tensor *w = tg_module_find(m, "model.embed_tokens.weight");
    tg_param_init(w, TG_INIT(.kind = TG_INIT_CONSTANT, .a = 2));
    tg_storage *s = tg_pin(w);
    const void *bytes = tg_host_data(w);
    ck_assert_int_eq(tg_lm_map(&m, 1, dir), TG_OK);
    ck_assert_ptr_eq(tg_host_data(w), bytes);
    tg_unpin(s);
    ck_computes(m);
    end(m);
}
END_TEST

/* ---- Files that become shorter ---- */

static void on_fault(int number, siginfo_t *info, void *context) {
    (void)context;
    if (!tg_mapping_fault(ctx, info->si_addr)) signal(number, SIG_DFL);
}

START_TEST(zeros_in_place_of_lost_bytes_are_not_saved) {
    struct sigaction a = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO}, before;
    char copy[128];
    save(TG_LLAMA);
    open_context(NULL);
    tg_module *m = model(TG_LLAMA, true);
    tg_lm_map(&m, 1, dir);
    tg_tensor *w = tg_detach(t, tg_module_find(m, "model.embed_tokens.weight"));
    const tg_named_tensor named = {"w", w};
    snprintf(copy, sizeof copy, "%s/copy.safetensors", dir);
    sigaction(SIGBUS, &a, &before);
    ck_assert_int_eq(truncate(path, 8192), 0);
    ck_assert_int_eq(tg_safetensors_save(ctx, copy, &named, 1, NULL, 0), TG_ERR_IO);
    ck_assert_msg(strstr(tg_ctx_message(ctx), path) && strstr(tg_ctx_message(ctx), "has become shorter"), "%s",
                  tg_ctx_message(ctx));
    ck_assert(access(copy, F_OK) != 0);
    sigaction(SIGBUS, &before, NULL);
    tg_ctx_clear(ctx);
    ck_assert_ptr_null(tg_dlpack_export(w)); /* another library would read the zeros */
    ck_assert_int_eq(tg_ctx_status(ctx), TG_ERR_IO);
    tg_ctx_clear(ctx);
    tg_tape_reset(t);
    end(m);
}
END_TEST

START_TEST(zeros_in_place_of_lost_bytes_are_in_no_state) {
    struct sigaction a = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO}, before;
    char state[128];
    save(TG_LLAMA);
    open_context(NULL);
    tg_comm *self = tg_comm_self_new(ctx);
    tg_parallel *p = tg_parallel_new(self, NULL);
    tg_module *m = model(TG_LLAMA, true);
    ck_assert_int_eq(tg_lm_map(&m, 1, dir), TG_OK);
    tg_shards *s = tg_shards_new(p);
    ck_assert_int_eq(tg_shards_add_module(s, NULL, m), TG_OK);
    snprintf(state, sizeof state, "%s/state", dir);
    sigaction(SIGBUS, &a, &before);
    ck_assert_int_eq(truncate(path, 8192), 0);
    ck_assert_ptr_null(tg_shards_save_begin(s, state, TG_SAVE(.background = true)));
    ck_assert_int_eq(tg_ctx_status(ctx), TG_ERR_IO);
    ck_assert_msg(strstr(tg_ctx_message(ctx), "has become shorter"), "%s", tg_ctx_message(ctx));
    sigaction(SIGBUS, &before, NULL);
    tg_ctx_clear(ctx);
    tg_shards_free(s);
    tg_module_free(m);
    tg_parallel_free(p);
    tg_comm_free(self);
    close_context();
    remove_directory();
}
END_TEST

START_TEST(a_file_that_becomes_shorter_is_an_error) {
    struct sigaction a = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO}, before;
    save(TG_LLAMA);
    open_context(NULL);
    ck_assert(!tg_mapping_fault(ctx, &a));
    tg_module *m = model(TG_LLAMA, true);
    tg_lm_map(&m, 1, dir);
    ck_assert_int_eq(compute(m, logits[1]), TG_OK);
    sigaction(SIGBUS, &a, &before);
    ck_assert_int_eq(truncate(path, 8192), 0);
    ck_assert_int_eq(compute(m, logits[1]), TG_ERR_IO);
    ck_assert_msg(strstr(tg_ctx_message(ctx), path) && strstr(tg_ctx_message(ctx), "has become shorter"), "%s",
                  tg_ctx_message(ctx));
    sigaction(SIGBUS, &before, NULL);
    tg_ctx_clear(ctx);
    ck_assert_int_eq(compute(m, logits[1]), TG_ERR_IO); /* as long as the model has the bytes */
    tg_ctx_clear(ctx);
    tg_module_free(m);
    tg_draws_step(ctx, 1);
    m = model(TG_LLAMA, false);
    ck_assert_int_eq(compute(m, logits[1]), TG_OK); /* nothing has the file's bytes any more */
    end(m);
}
END_TEST

static int64_t read_bytes(void *user, int fd, void *to, size_t n, int64_t offset) {
    ++*(int *)user;
    return pread(fd, to, n, offset);
}

START_TEST(a_program_with_file_functions_of_its_own_gets_copies) {
    int reads = 0;
    const tg_file_ops files = {TG_FILE_OPS_DEFAULTS, .pread = read_bytes, .user = &reads};
    save(TG_LLAMA);
    open_context(&files);
    tg_module *m = model(TG_LLAMA, true);
    ck_assert_int_eq(tg_lm_map(&m, 1, dir), TG_OK);
    ck_assert_int_gt(bytes_of_parameters(), VOCAB * HIDDEN * 4);
    ck_assert(reads > 20);
    ck_assert_int_eq(truncate(path, 0), 0);
    ck_computes(m);
    end(m);
}
END_TEST

int main(void) {
    const TTest *tests[] = {a_model_without_initial_weights_is_filled_by_loading,
                            a_load_without_memory_can_be_repeated,
                            a_mapped_model_computes_the_same,
                            what_is_written_to_a_mapped_parameter_stays_in_memory,
                            mapping_again_ends_the_mapping_before,
                            pinned_bytes_stay_at_their_address,
                            zeros_in_place_of_lost_bytes_are_not_saved,
                            zeros_in_place_of_lost_bytes_are_in_no_state,
                            a_file_that_becomes_shorter_is_an_error,
                            a_program_with_file_functions_of_its_own_gets_copies};
    return tg_check_main("lm_map", tests, sizeof tests / sizeof *tests);
}
