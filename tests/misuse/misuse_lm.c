/* Language models: configs, losses, rates and files. */
#include <tapegrad/gpt.h>

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
    NONE(ARGUMENT, "family is \"bert\", expected one of those that tg_lm_family lists", SMALL, .family = "bert");
    QUIET(tg_lm_family, !strcmp(tg_lm_family(0), "llama") && !tg_lm_family(-1) && !tg_lm_family(1000));
    NONE(ARGUMENT, "norm is 5", SMALL, .norm = (tg_lm_norm)5);
    NONE(ARGUMENT, "activation is -1", SMALL, .activation = (tg_lm_activation)-1);
    NONE(ARGUMENT, "position_kind is 3", SMALL, .position_kind = (tg_lm_positions)3);
    NONE(ARGUMENT, "backend is 2, expected TG_LM_FUSED or TG_LM_COMPOSED", SMALL, .backend = (tg_lm_backend)2);
    NONE(ARGUMENT, "rope_base is 10, but the positions are learned", SMALL, .position_kind = TG_LM_LEARNED,
         .rope_base = 10);
    NONE(ARGUMENT, "GPT-2 needs kv_heads = heads", SMALL, .family = "gpt2", .kv_heads = 1);
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

/* Blocks that families choose. */
static void blocks(misuse_world *b) {
    NONE(ARGUMENT, "norm_place is 3, expected TG_LM_NORM_BEFORE", SMALL, .norm_place = (tg_lm_norm_place)3);
    NONE(ARGUMENT, "qk_norm is 3", SMALL, .qk_norm = (tg_lm_qk_norm)3);
    NONE(ARGUMENT, "rope_kind is 4", SMALL, .rope_kind = (tg_rope_kind)4);
    NONE(ARGUMENT, "parallel_residual is set, which needs norm_place TG_LM_NORM_BEFORE", SMALL,
         .parallel_residual = true, .norm_place = TG_LM_NORM_AFTER);
    NONE(ARGUMENT, "head_bias and tied are set", SMALL, .head_bias = true, .tied = true);
    NONE(ARGUMENT, "unit_norm is set, which needs norm TG_LM_RMS_NORM", SMALL, .unit_norm = true,
         .norm = TG_LM_LAYER_NORM);
    NONE(ARGUMENT, "attention_dropout 1", SMALL, .attention_dropout = 1);
    NONE(ARGUMENT, "embed_dropout nan", SMALL, .embed_dropout = NAN);
    NONE(ARGUMENT, "embed_scale 0", SMALL, .embed_scale = 0);
    NONE(ARGUMENT, "attention_scale -2", SMALL, .attention_scale = -2);
    NONE(ARGUMENT, "logit_softcap inf", SMALL, .logit_softcap = INFINITY);
    NONE(ARGUMENT, "window is 0, expected 1 or more", SMALL, .window = 0);
    NONE(ARGUMENT, "attention_kinds is \"fx\", expected letters f, w, F and W", SMALL, .attention_kinds = "fx");
    NONE(ARGUMENT, "with windows, but window is TG_NONE", SMALL, .attention_kinds = "fw");
    NONE(ARGUMENT, "only rotary positions belong to layers", SMALL, .attention_kinds = "fF",
         .position_kind = TG_LM_LEARNED);
    NONE(ARGUMENT, "rope_kind is 1, but the positions are none", SMALL, .position_kind = TG_LM_NO_POSITIONS,
         .rope_kind = TG_ROPE_LINEAR);
    NONE(ARGUMENT, "rope_dims is 1, but the positions are none", SMALL, .position_kind = TG_LM_NO_POSITIONS,
         .rope_dims = 1);
    NONE(ARGUMENT, "rope_local_base is 9, but the positions are learned", SMALL, .position_kind = TG_LM_LEARNED,
         .rope_local_base = 9);
    NONE(ARGUMENT, "rope_factor is 8, but the positions are learned", SMALL, .position_kind = TG_LM_LEARNED,
         .rope_factor = 8);
    NONE(ARGUMENT, "rope_gain is 2, but the positions are learned", SMALL, .position_kind = TG_LM_LEARNED,
         .rope_gain = 2);
    NONE(ARGUMENT, "rope_dims is 3, expected an even number from 2 to head_dim = 2", SMALL, .rope_dims = 3);
    NONE(ARGUMENT, "rope_factor is 2, but it is not used with TG_ROPE_PLAIN; leave rope_factor at its default", SMALL,
         .rope_factor = 2);
    NONE(ARGUMENT, "rope_factor is -2, expected a positive, finite number", SMALL, .rope_kind = TG_ROPE_LINEAR,
         .rope_factor = -2);
    NONE(ARGUMENT, "rope_low is 2, but it is not used with TG_ROPE_PLAIN", SMALL, .rope_low = 2);
    NONE(ARGUMENT, "rope_high is 8, but it is not used with TG_ROPE_LINEAR", SMALL, .rope_kind = TG_ROPE_LINEAR,
         .rope_factor = 2, .rope_high = 8);
    NONE(ARGUMENT, "rope_original is 131072, but it is not used with TG_ROPE_LINEAR", SMALL,
         .rope_kind = TG_ROPE_LINEAR, .rope_factor = 2, .rope_original = 131072);
    NONE(ARGUMENT, "rope_gain is 2, but it is not used with TG_ROPE_LLAMA3", SMALL, .rope_kind = TG_ROPE_LLAMA3,
         .rope_original = 4, .rope_gain = 2);
    NONE(ARGUMENT, "rope_original 0; expected 0 < rope_low < rope_high", SMALL, .rope_kind = TG_ROPE_LLAMA3);
    NONE(ARGUMENT, "rope_local_base 0", SMALL, .rope_local_base = 0);
    NONE(ARGUMENT, "extra is \"[1]\", expected a JSON object", SMALL, .extra = "[1]");
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
    INERT(tg_lm_loss, SHAPE, "expected 5 as the last dim", tg_lm_loss(m, t, wide, labels, TG_LOSS_MEAN));
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
    tg_module *nowhere = tg_lm_new(b->ctx, TG_LM(SMALL, .key = 77, .position_kind = TG_LM_NO_POSITIONS));
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
    FAILS(tg_lm_part, UNSUPPORTED, "the model has no positions", tg_lm_part(nowhere, &call, &ids, NULL, b->ids));
    tg_tensor *three = tg_zeros(b->ctx, TG_I64, TG_SHAPE(1, 3));
    FAILS(tg_lm_part, SHAPE, "positions are i64[1, 3], expected i64[1, 2]", tg_lm_part(m, &call, &ids, NULL, three));
    tg_drop(three);
    FAILS(tg_lm_part, ARGUMENT, "part 1 takes hidden states", tg_lm_part(last, &call, &ids, NULL, NULL));
    FAILS(tg_lm_part, SHAPE, "input[0] is f32[2, 3], expected [sequence, batch, 4]",
          tg_lm_part(last, &flat, NULL, NULL, NULL));
    tg_drop(ids);
    tg_module_free(m);
    tg_module_free(nowhere);
    tg_module_free(last);
    tg_module_free(linear);
}

static void family(misuse_world *b) {
    tg_lm_config c = *TG_LM(SMALL), none = {0};
    QUIET(tg_lm_family_config, tg_lm_family_config(NULL, "llama", &c) == TG_ERR_ARGUMENT);
    FAILS(tg_lm_family_config, ARGUMENT, "family is NULL", tg_lm_family_config(b->ctx, NULL, &c));
    FAILS(tg_lm_family_config, ARGUMENT, "the config is NULL", tg_lm_family_config(b->ctx, "llama", NULL));
    FAILS(tg_lm_family_config, ARGUMENT, "size is 0", tg_lm_family_config(b->ctx, "llama", &none));
    FAILS(tg_lm_family_config, ARGUMENT, "family is \"bert\"", tg_lm_family_config(b->ctx, "bert", &c));
}

/* Packed documents. */
static void packed(misuse_world *b) {
    tg_module *m = tg_lm_new(b->ctx, TG_LM(SMALL, .key = 33)), *linear = tg_nn_linear(b->ctx, 3, 2, true, 1);
    tg_tensor *ids = tg_zeros(b->ctx, TG_I64, TG_SHAPE(1, 2)), *three = tg_zeros(b->ctx, TG_I64, TG_SHAPE(1, 3));
    tg_tape *t = b->t;
    QUIET(tg_lm_packed_logits, misuse_inert(tg_lm_packed_logits(NULL, t, ids, ids)));
    INERT(tg_lm_packed_logits, ARGUMENT, "the module is a \"linear\"", tg_lm_packed_logits(linear, t, ids, ids));
    INERT(tg_lm_packed_logits, ARGUMENT, "the tape is NULL", tg_lm_packed_logits(m, NULL, ids, ids));
    INERT(tg_lm_packed_logits, ARGUMENT, "positions: the tensor is NULL", tg_lm_packed_logits(m, t, ids, NULL));
    INERT(tg_lm_packed_logits, SHAPE, "positions are i64[1, 3], expected i64[1, 2]",
          tg_lm_packed_logits(m, t, ids, three));
    INERT(tg_lm_packed_logits, SHAPE, "positions are f32[2, 3]", tg_lm_packed_logits(m, t, ids, b->x));
    DEAD_TENSOR(tg_lm_packed_logits, tg_lm_packed_logits(m, t, x, ids));
    DEAD_TENSOR(tg_lm_packed_logits, tg_lm_packed_logits(m, t, ids, x));
    QUIET(tg_lm_packed_loss, misuse_inert(tg_lm_packed_loss(NULL, t, ids, ids, ids, TG_LOSS_SUM)));
    INERT(tg_lm_packed_loss, ARGUMENT, "tg_lm_packed_loss: reduction is 5",
          tg_lm_packed_loss(m, t, ids, ids, ids, (tg_loss_reduction)5));
    INERT(tg_lm_packed_loss, SHAPE, "target is i64[1, 3], expected i64[1, 2] like ids",
          tg_lm_packed_loss(m, t, ids, ids, three, TG_LOSS_SUM));
    INERT(tg_lm_packed_loss, SHAPE, "positions are i64[1, 3]", tg_lm_packed_loss(m, t, ids, three, ids, TG_LOSS_SUM));
    DEAD_TENSOR(tg_lm_packed_loss, tg_lm_packed_loss(m, t, ids, ids, x, TG_LOSS_SUM));
    tg_drop(ids), tg_drop(three);
    tg_module_free(m);
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
    QUIET(tg_lm_has_config, tg_lm_has_config(m) && !tg_lm_has_config(NULL) && !tg_lm_has_config(linear));
    tg_module_free(m);
    tg_module_free(linear);
}

/* Writes a config.json with the sizes of a small model and these members. */
static void write_config(const char *path, const char *members) {
    FILE *f = fopen(path, "w");
    if (!f) return;
    fprintf(f,
            "{\"vocab_size\": 5, \"hidden_size\": 4, \"num_hidden_layers\": 2, \"num_attention_heads\": 2, "
            "\"num_key_value_heads\": 2, \"head_dim\": 2, \"intermediate_size\": 8, "
            "\"max_position_embeddings\": 8, %s}",
            members);
    fclose(f);
}

/* Members of config.json that mean what the library does not compute are refused by name. */
static void members(misuse_world *b) {
    static const struct { const char *members, *message; } rows[] = {
        {"\"model_type\": \"bert\"", "model_type is \"bert\", but only these are supported: llama, gpt2, mistral"},
        {"\"model_type\": \"llama\", \"hidden_act\": \"relu\"", "\"hidden_act\" is \"relu\""},
        {"\"model_type\": \"llama\", \"quantization_config\": {\"bits\": 4}",
         "\"quantization_config\" is {\"bits\":4}"},
        {"\"model_type\": \"llama\", \"sliding_window\": 7", "\"sliding_window\" is 7"},
        {"\"model_type\": \"llama\", \"rope_scaling\": {\"rope_type\": \"longrope\"}", "\"rope_type\" is \"longrope\""},
        {"\"model_type\": \"llama\", \"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 2, \"mscale\": 1}",
         "\"mscale\" of the rotary positions is not supported"},
        {"\"model_type\": \"qwen3\", \"layer_types\": [\"full_attention\", \"chunked\"]",
         "\"layer_types\" has \"chunked\""},
        {"\"model_type\": \"phi\", \"qk_layernorm\": true", "\"qk_layernorm\" is true"},
        {"\"model_type\": \"gemma2\", \"use_bidirectional_attention\": true",
         "\"use_bidirectional_attention\" is true"},
        {"\"model_type\": \"olmo\", \"clip_qkv\": 0", "\"clip_qkv\" is 0, expected a number above 0"},
    };
    char path[512];
    snprintf(path, sizeof path, "%s/config.json", b->dir);
    remove(path); /* that of other rows */
    QUIET(tg_lm_from_config, no_module(tg_lm_from_config(NULL, path, NULL)));
    GIVES(tg_lm_from_config, ARGUMENT, "the path is NULL", no_module(tg_lm_from_config(b->ctx, NULL, NULL)));
    GIVES(tg_lm_from_config, IO, "config.json", no_module(tg_lm_from_config(b->ctx, path, NULL)));
    QUIET(tg_lm_load_dir, no_module(tg_lm_load_dir(NULL, b->dir, NULL)));
    GIVES(tg_lm_load_dir, ARGUMENT, "the directory is NULL", no_module(tg_lm_load_dir(b->ctx, NULL, NULL)));
    GIVES(tg_lm_load_dir, IO, "config.json", no_module(tg_lm_load_dir(b->ctx, b->dir, NULL)));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        write_config(path, rows[i].members);
        GIVES(tg_lm_from_config, UNSUPPORTED, rows[i].message, no_module(tg_lm_from_config(b->ctx, path, NULL)));
    }
    write_config(path, "\"model_type\": \"qwen3\", \"layer_types\": [\"full_attention\"]");
    GIVES(tg_lm_from_config, FORMAT, "\"layer_types\" has 1 elements, expected one for each of 2 layers",
          no_module(tg_lm_from_config(b->ctx, path, NULL)));
    GIVES(tg_gpt_from_config, FORMAT, "\"layer_types\" has 1 elements", no_module(tg_gpt_from_config(b->ctx, path)));
    write_config(path, "\"model_type\": \"smollm3\", \"no_rope_layers\": [1, \"no\"]");
    GIVES(tg_lm_from_config, FORMAT, "element 1 of \"no_rope_layers\" is neither 0 nor 1",
          no_module(tg_lm_from_config(b->ctx, path, NULL)));
    write_config(path, "\"model_type\": \"qwen3\"");
    GIVES(tg_lm_from_config, ARGUMENT, "size is 0",
          no_module(tg_lm_from_config(b->ctx, path, &(tg_lm_config){.vocab = 1})));
    GIVES(tg_gpt_from_config, UNSUPPORTED, "but a GPT is a \"gpt2\" or a \"llama\"; call tg_lm_load_dir",
          no_module(tg_gpt_from_config(b->ctx, path)));
    write_config(path, "\"model_type\": \"llama\", \"mlp_bias\": true");
    GIVES(tg_gpt_from_config, UNSUPPORTED, "has options that a GPT does not have",
          no_module(tg_gpt_from_config(b->ctx, path)));
    write_config(path, "\"model_type\": \"llama\", \"attention_dropout\": 1");
    GIVES(tg_gpt_from_config, ARGUMENT, "tg_gpt_from_config: dropout 0, embed_dropout 0, attention_dropout 1",
          no_module(tg_gpt_from_config(b->ctx, path)));
    GIVES(tg_gpt_load, ARGUMENT, "tg_gpt_load: dropout 0, embed_dropout 0, attention_dropout 1",
          no_module(tg_gpt_load(b->ctx, b->dir)));
    remove(path);
}

void misuse_lm(misuse_world *b) {
    configs(b);
    blocks(b);
    losses(b);
    parts(b);
    packed(b);
    family(b);
    rates(b);
    files(b);
    members(b);
}
