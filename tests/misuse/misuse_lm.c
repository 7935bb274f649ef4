/* Language models: configs, losses, rates and files. */
#include <tapegrad/lm.h>

#include "misuse/misuse.h"

/* Checks an inert module: every call on it does nothing, and it may be freed. */
static bool no_module(tg_module *m) {
    bool good = m && tg_module_param_count(m) == 0 && !tg_lm_config_of(m);
    tg_module_free(m);
    return good;
}

#define NONE(code, says, ...) GIVES(tg_lm_new, code, says, no_module(tg_lm_new(b->ctx, TG_LM(__VA_ARGS__))))
#define SMALL                 .vocab = 5, .layers = 2, .heads = 2, .hidden = 4, .positions = 8

static void configs(misuse_world *b) {
    tg_lm_config zero = {0}, later = {.size = sizeof later + 8, SMALL};
    QUIET(tg_lm_new, no_module(tg_lm_new(NULL, TG_LM(SMALL))));
    GIVES(tg_lm_new, ARGUMENT, "the config is NULL", no_module(tg_lm_new(b->ctx, NULL)));
    GIVES(tg_lm_new, ARGUMENT, "size is 0", no_module(tg_lm_new(b->ctx, &zero)));
    GIVES(tg_lm_new, ARGUMENT, "this library knows", no_module(tg_lm_new(b->ctx, &later)));
    NONE(ARGUMENT, "tg_lm_new: vocab is 0", .layers = 1, .heads = 2, .hidden = 4, .positions = 8);
    NONE(ARGUMENT, "names is 2, expected TG_LM_NAMES_LLAMA or _GPT2", SMALL, .names = (tg_lm_names)2);
    NONE(ARGUMENT, "norm is 5", SMALL, .norm = (tg_lm_norm)5);
    NONE(ARGUMENT, "activation is -1", SMALL, .activation = (tg_lm_activation)-1);
    NONE(ARGUMENT, "position_kind is 2", SMALL, .position_kind = (tg_lm_positions)2);
    NONE(ARGUMENT, "backend is 2, expected TG_LM_FUSED or TG_LM_COMPOSED", SMALL, .backend = (tg_lm_backend)2);
    NONE(ARGUMENT, "rope_base is 10, but the positions are learned", SMALL, .position_kind = TG_LM_LEARNED,
         .rope_base = 10);
    NONE(ARGUMENT, "GPT-2 needs kv_heads = heads", SMALL, .names = TG_LM_NAMES_GPT2, .kv_heads = 1);
    NONE(ARGUMENT, "mtp is -1", SMALL, .mtp = -1);
    NONE(ARGUMENT, "mtp_weight is -0.5", SMALL, .mtp = 1, .mtp_weight = -0.5);
    NONE(ARGUMENT, "mtp_weight is 0", SMALL, .mtp = 1, .mtp_weight = 0);
    NONE(ARGUMENT, "mup_base is 0, expected the hidden size of the base model, or TG_NONE", SMALL, .mup_base = 0);
    NONE(ARGUMENT, "mup_base is nan", SMALL, .mup_base = NAN);
    NONE(ARGUMENT, "a layout that would do is \"E t|t L\"", SMALL, .layout = "E t|L");
    NONE(ARGUMENT, "chunk is 1, expected 0 to 0", SMALL, .chunk = 1);
    NONE(ARGUMENT, "chunk is -1, expected 0 to 1", SMALL, .layout = "E t|t L", .chunk = -1);
    NONE(UNSUPPORTED, "two copies of the embedding", SMALL, .layout = "E t|t L", .tied = true);
}

static void losses(misuse_world *b) {
    tg_module *m = tg_lm_new(b->ctx, TG_LM(SMALL, .mtp = 1, .key = 11)), *linear = tg_nn_linear(b->ctx, 3, 2, true, 1);
    tg_tape *t = b->t;
    tg_tensor *labels = tg_zeros(b->ctx, TG_I64, TG_SHAPE(1, 2));
    tg_tensor *logits = tg_zeros(b->ctx, TG_F32, TG_SHAPE(2, 1, 5)),
              *wide = tg_zeros(b->ctx, TG_F32, TG_SHAPE(2, 1, 6));
    const int64_t none[2] = {3, -1};
    QUIET(tg_lm_config_of, !tg_lm_config_of(NULL) && !tg_lm_config_of(linear));
    QUIET(tg_lm_embedding_or_output_weight,
          !tg_lm_embedding_or_output_weight(NULL) && !tg_lm_embedding_or_output_weight(linear));
    QUIET(tg_lm_loss, misuse_inert(tg_lm_loss(NULL, t, logits, labels, TG_LOSS_MEAN)));
    INERT(tg_lm_loss, ARGUMENT, "the module is a \"linear\", expected a language model",
          tg_lm_loss(linear, t, logits, labels, TG_LOSS_MEAN));
    INERT(tg_lm_loss, ARGUMENT, "the tape is NULL", tg_lm_loss(m, NULL, logits, labels, TG_LOSS_MEAN));
    INERT(tg_lm_loss, HANDLE, "different contexts", tg_lm_loss(m, b->far_t, logits, labels, TG_LOSS_MEAN));
    INERT(tg_lm_loss, ARGUMENT, "reduction is 5", tg_lm_loss(m, t, logits, labels, (tg_loss_reduction)5));
    INERT(tg_lm_loss, ARGUMENT, "logits: the tensor is NULL", tg_lm_loss(m, t, NULL, labels, TG_LOSS_MEAN));
    INERT(tg_lm_loss, ARGUMENT, "labels: the tensor is NULL", tg_lm_loss(m, t, logits, NULL, TG_LOSS_MEAN));
    INERT(tg_lm_loss, SHAPE, "labels are i64[2], expected i64[batch, sequence]",
          tg_lm_loss(m, t, logits, b->ids, TG_LOSS_MEAN));
    INERT(tg_lm_loss, SHAPE, "expected logits [sequence, batch, vocabulary]",
          tg_lm_loss(m, t, b->x, labels, TG_LOSS_MEAN));
    INERT(tg_lm_loss, SHAPE, "expected 5 columns", tg_lm_loss(m, t, wide, labels, TG_LOSS_MEAN));
    DEAD_TENSOR(tg_lm_loss, tg_lm_loss(m, t, x, labels, TG_LOSS_MEAN));
    DEAD_TENSOR(tg_lm_loss, tg_lm_loss(m, t, logits, x, TG_LOSS_MEAN));
    QUIET(tg_lm_set_tokens, tg_lm_set_tokens(NULL, none) == TG_ERR_ARGUMENT);
    FAILS(tg_lm_set_tokens, ARGUMENT, "the module is not a language model", tg_lm_set_tokens(linear, none));
    FAILS(tg_lm_set_tokens, ARGUMENT, "tokens is NULL", tg_lm_set_tokens(m, NULL));
    FAILS(tg_lm_set_tokens, ARGUMENT, "tokens[1] is -1, expected 0 or more", tg_lm_set_tokens(m, none));
    tg_drop(labels), tg_drop(logits), tg_drop(wide);
    tg_module_free(m);
    tg_module_free(linear);
}

static void parts(misuse_world *b) {
    tg_module *m = tg_lm_new(b->ctx, TG_LM(SMALL, .key = 14)), *linear = tg_nn_linear(b->ctx, 3, 2, true, 1);
    tg_module *last = tg_lm_new(b->ctx, TG_LM(SMALL, .key = 15, .layout = "E t|t L", .chunk = 1));
    tg_tensor *ids = tg_zeros(b->ctx, TG_I64, TG_SHAPE(1, 2)), *out = NULL;
    tg_pipe_call call = {.size = sizeof call, .tape = b->t, .out = &out},
                 no_out = {.size = sizeof no_out, .tape = b->t};
    tg_pipe_call no_tape = {.size = sizeof no_tape, .out = &out}, flat = call;
    flat.input = &b->x;
    QUIET(tg_lm_part, tg_lm_part(NULL, &call, &ids, NULL, NULL) == TG_ERR_ARGUMENT);
    FAILS(tg_lm_part, ARGUMENT, "the call is NULL", tg_lm_part(m, NULL, &ids, NULL, NULL));
    FAILS(tg_lm_part, ARGUMENT, "out of the call is NULL", tg_lm_part(m, &no_out, &ids, NULL, NULL));
    FAILS(tg_lm_part, ARGUMENT, "the tape is NULL", tg_lm_part(m, &no_tape, &ids, NULL, NULL));
    FAILS(tg_lm_part, ARGUMENT, "expected a language model", tg_lm_part(linear, &call, &ids, NULL, NULL));
    FAILS(tg_lm_part, ARGUMENT, "ids is NULL, but the first part needs them", tg_lm_part(m, &call, NULL, NULL, NULL));
    FAILS(tg_lm_part, SHAPE, "ids are f32[2, 3], expected i64[", tg_lm_part(m, &call, &b->x, NULL, NULL));
    FAILS(tg_lm_part, UNSUPPORTED, "rotary positions always count from 0", tg_lm_part(m, &call, &ids, NULL, b->ids));
    FAILS(tg_lm_part, ARGUMENT, "part 1 takes hidden states", tg_lm_part(last, &call, &ids, NULL, NULL));
    FAILS(tg_lm_part, SHAPE, "in[0] is f32[2, 3], expected [sequence, batch, 4]",
          tg_lm_part(last, &flat, NULL, NULL, NULL));
    tg_drop(ids);
    tg_module_free(m);
    tg_module_free(last);
    tg_module_free(linear);
}

static void rates(misuse_world *b) {
    tg_module *m = tg_lm_new(b->ctx, TG_LM(SMALL, .mup_base = 2, .key = 12)),
              *linear = tg_nn_linear(b->ctx, 3, 2, true, 1);
    tg_module *two[2] = {m, linear};
    tg_tensor *p = tg_module_param(m, 0, NULL);
    tg_optim *o = tg_adamw_new(b->ctx, &p, 1, NULL), *sgd = tg_sgd_new(b->ctx, &p, 1, TG_SGD(.lr = 1));
    const tg_lm_rates zero = {0};
    QUIET(tg_lm_groups, tg_lm_groups(NULL, 1, o, TG_LM_RATES(.lr = 1)) == TG_ERR_ARGUMENT);
    QUIET(tg_lm_groups, tg_lm_groups(&m, 0, o, TG_LM_RATES(.lr = 1)) == TG_ERR_ARGUMENT);
    FAILS(tg_lm_groups, ARGUMENT, "module 1 is not a language model", tg_lm_groups(two, 2, o, TG_LM_RATES(.lr = 1)));
    FAILS(tg_lm_groups, ARGUMENT, "the optimizer is NULL", tg_lm_groups(&m, 1, NULL, TG_LM_RATES(.lr = 1)));
    FAILS(tg_lm_groups, ARGUMENT, "the rates of mup_base are those of Adam",
          tg_lm_groups(&m, 1, sgd, TG_LM_RATES(.lr = 1)));
    FAILS(tg_lm_groups, ARGUMENT, "the rates are NULL", tg_lm_groups(&m, 1, o, NULL));
    FAILS(tg_lm_groups, ARGUMENT, "size is 0", tg_lm_groups(&m, 1, o, &zero));
    FAILS(tg_lm_groups, ARGUMENT, "tg_lm_groups: the schedule: the struct's size is 0",
          tg_lm_groups(&m, 1, o, TG_LM_RATES(.lr = 1, .schedule = &(tg_schedule){.lr = 1})));
    FAILS(tg_lm_groups, ARGUMENT, "lr is 0", tg_lm_groups(&m, 1, o, TG_LM_RATES(.embed_lr = 1)));
    FAILS(tg_lm_groups, ARGUMENT, "embed_lr -2", tg_lm_groups(&m, 1, o, TG_LM_RATES(.lr = 1, .embed_lr = -2)));
    FAILS(tg_lm_groups, ARGUMENT, "both minimums 0 unless a schedule is given",
          tg_lm_groups(&m, 1, o, TG_LM_RATES(.lr = 1, .embed_min_lr = 1)));
    FAILS(tg_lm_groups, ARGUMENT, "both minimums 0 unless a schedule is given",
          tg_lm_groups(&m, 1, o, TG_LM_RATES(.lr = 1, .min_lr = 0.1)));
    tg_optim_free(o);
    tg_optim_free(sgd);
    tg_module_free(m);
    tg_module_free(linear);
}

static void files(misuse_world *b) {
    tg_module *m = tg_lm_new(b->ctx, TG_LM(SMALL, .key = 13)), *linear = tg_nn_linear(b->ctx, 3, 2, true, 1);
    char nowhere[512];
    snprintf(nowhere, sizeof nowhere, "%s/no/such", b->dir);
    QUIET(tg_lm_load, tg_lm_load(NULL, 1, b->dir) == TG_ERR_ARGUMENT && tg_lm_load(&m, 0, b->dir) == TG_ERR_ARGUMENT);
    FAILS(tg_lm_load, ARGUMENT, "module 0 is not a language model", tg_lm_load(&linear, 1, b->dir));
    FAILS(tg_lm_load, ARGUMENT, "dir is NULL", tg_lm_load(&m, 1, NULL));
    FAILS(tg_lm_load, IO, "no/such/model.safetensors", tg_lm_load(&m, 1, nowhere));
    QUIET(tg_lm_save, tg_lm_save(NULL, 1, b->dir, NULL) == TG_ERR_ARGUMENT);
    FAILS(tg_lm_save, ARGUMENT, "module 0 is not a language model", tg_lm_save(&linear, 1, b->dir, NULL));
    FAILS(tg_lm_save, ARGUMENT, "dir is NULL", tg_lm_save(&m, 1, NULL, NULL));
    FAILS(tg_lm_save, ARGUMENT, "file_bytes is -1", tg_lm_save(&m, 1, b->dir, TG_LM_SAVE(.file_bytes = -1)));
    FAILS(tg_lm_save, ARGUMENT, "file_bytes is 0", tg_lm_save(&m, 1, b->dir, TG_LM_SAVE(.file_bytes = 0)));
    FAILS(tg_lm_save, IO, "no/such", tg_lm_save(&m, 1, nowhere, NULL));
    tg_module_free(m);
    tg_module_free(linear);
}

void misuse_lm(misuse_world *b) {
    configs(b);
    losses(b);
    parts(b);
    rates(b);
    files(b);
}
