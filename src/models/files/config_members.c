/* Reads and writes the members of config.json that the rows of families list, and refuses others that would change
 * numbers. */
#include <float.h>
#include <math.h>

#include "models/files/families.h"

/* ---- Values ---- */

tg_status tg_member_size(const tg_json *j, const char *name, int64_t *out) {
    return tg_json_has(j, name) ? tg_json_int(j, name, 1, (int64_t)1 << 40, out) : TG_OK;
}

tg_status tg_member_positive(const tg_json *j, const char *name, double *out) {
    if (!tg_json_has(j, name)) return TG_OK;
    TG_TRY(tg_json_real(j, name, out));
    if (*out > 0) return TG_OK;
    return tg_fail(j->ctx, TG_ERR_UNSUPPORTED, "'%s': \"%s\" is %g, expected a number above 0", j->path, name, *out);
}

tg_status tg_member_bool(const tg_json *j, const char *name, bool *out) {
    return tg_json_has(j, name) ? tg_json_bool(j, name, out) : TG_OK;
}

int tg_member_set(json_t *root, const char *name, double v, double none, bool whole) {
    json_t *x = v == none                                    ? json_null()
                : whole && v == nearbyint(v) && fabs(v) < 1e15 ? json_integer((json_int_t)v)
                                                             : json_real(v);
    return json_object_set_new(root, name, x);
}

/* Returns the field of *c that a member describes. */
static void *field(tg_lm_config *c, const tg_member *m) { return (char *)c + m->offset; }

/* Returns an s whose 1 / sqrt(s), as read_number computes it, is v: a whole number if there is one, else one of the
 * numbers next to 1 / v^2, of which about two in a row have the same root. If there is no such s, returns 1 / v^2. */
static double square_of(double v) {
    double s = 1 / (v * v), next = s, previous = s, whole = nearbyint(s);
    if (1 / sqrt(whole) == v) return whole;
    for (int i = 0; i < 3; i++, next = nextafter(next, INFINITY), previous = nextafter(previous, 0)) {
        if (1 / sqrt(next) == v) return next;
        if (1 / sqrt(previous) == v) return previous;
    }
    return fmin(s, DBL_MAX); /* JSON has no infinity */
}

/* ---- Reading ---- */

/* Fails unless the member has one of the texts that mean what the library computes. */
static tg_status check_text(const tg_json *j, const tg_member *m) {
    const char *s;
    if (!tg_json_has(j, m->name)) return TG_OK;
    TG_TRY(tg_json_string(j, m->name, &s));
    if (strcmp(s, m->text) == 0) return TG_OK;
    for (int i = 0; i < TG_LEN(m->also); i++)
        if (m->also[i] && strcmp(s, m->also[i]) == 0) return TG_OK;
    return tg_fail(j->ctx, TG_ERR_UNSUPPORTED, "'%s': \"%s\" is \"%s\", but only \"%s\" is supported", j->path, m->name,
                   s, m->text);
}

/* Fails if the member has a value with which published models compute something else. */
static tg_status check_value(const tg_json *j, const char *name, double usual) {
    const json_t *v = json_object_get(j->object, name);
    double is = json_is_true(v) ? 1 : json_is_number(v) ? json_number_value(v) : 0;
    bool known = !v || json_is_null(v) || json_is_boolean(v) || json_is_number(v);
    if (!v || json_is_null(v) || (known && is == usual)) return TG_OK;
    char *text = tg_json_text(v, JSON_ENCODE_ANY | JSON_COMPACT);
    tg_status s = tg_fail(j->ctx, TG_ERR_UNSUPPORTED, "'%s': \"%s\" is %.80s, which is not supported", j->path, name,
                          text ? text : "another value");
    free(text);
    return s;
}

/* Reads a member that is a number, and gives the field its default if the member is missing. */
static tg_status read_number(const tg_json *j, const tg_member *m, tg_lm_config *c) {
    double *to = field(c, m), v = json_object_get(j->object, m->name) ? TG_NONE : m->usual;
    if (m->kind == TG_MEMBER_RATE && v == TG_NONE) v = 0;
    if (m->kind == TG_MEMBER_RATE && tg_json_has(j, m->name))
        TG_TRY(tg_json_real(j, m->name, &v));
    else
        TG_TRY(tg_member_positive(j, m->name, &v));
    *to = m->kind == TG_MEMBER_RSQRT && v > 0 ? 1 / sqrt(v) : v;
    return TG_OK;
}

static tg_status read_member(const tg_json *j, const tg_member *m, tg_lm_config *c) {
    int64_t *size = field(c, m);
    bool *on = field(c, m), missing = !json_object_get(j->object, m->name);
    switch (m->kind) {
    case TG_MEMBER_SIZE:
        if (m->required) return tg_json_int(j, m->name, 1, m->most ? m->most : (int64_t)1 << 40, size);
        *size = missing ? (int64_t)m->usual : TG_AUTO;
        return tg_member_size(j, m->name, size);
    case TG_MEMBER_BOOL: *on = m->usual != 0; return tg_member_bool(j, m->name, on);
    case TG_MEMBER_TEXT: return check_text(j, m);
    case TG_MEMBER_NUMBER: return check_value(j, m->name, m->usual);
    default: return read_number(j, m, c);
    }
}

tg_status tg_members_read(const tg_json *j, const tg_lm_family_row *f, tg_lm_config *c) {
    for (int i = 0; i < f->n_members; i++) TG_TRY(read_member(j, &f->members[i], c));
    return TG_OK;
}

/* ---- Writing ---- */

static int write_member(json_t *root, const tg_member *m, const tg_lm_config *c) {
    const void *from = (const char *)c + m->offset;
    const double *real = from;
    switch (m->kind) {
    case TG_MEMBER_SIZE: return tg_member_set(root, m->name, (double)*(const int64_t *)from, TG_AUTO, true);
    case TG_MEMBER_BOOL: return json_object_set_new(root, m->name, json_boolean(*(const bool *)from));
    case TG_MEMBER_TEXT: return json_object_set_new(root, m->name, json_string(m->text));
    case TG_MEMBER_NUMBER: return json_object_set_new(root, m->name, json_boolean(m->usual != 0));
    case TG_MEMBER_RSQRT: return tg_member_set(root, m->name, square_of(*real), TG_NONE, true);
    default: return tg_member_set(root, m->name, *real, TG_NONE, false);
    }
}

int tg_members_write(json_t *root, const tg_lm_family_row *f, const tg_lm_config *c) {
    for (int i = 0; i < f->n_members; i++)
        if (write_member(root, &f->members[i], c)) return -1;
    return 0;
}

/* ---- Other members ---- */

/* Members with which some published models compute something else than the library does, unless they have this value,
 * are missing or null. */
static const struct { const char *name; double usual; } others[] = {
    {"quantization_config", 0}, {"num_experts", 0}, {"num_local_experts", 0}, {"n_routed_experts", 0},
    {"moe_intermediate_size", 0}, {"kv_lora_rank", 0}, {"q_lora_rank", 0}, {"attention_multiplier", 1},
    {"embedding_multiplier", 1}, {"residual_multiplier", 1}, {"logits_scaling", 1}, {"logit_scale", 1},
    {"scale_emb", 1}, {"scale_depth", 1}, {"dim_model_base", 0}, {"attn_logit_softcapping", 0},
    {"final_logit_softcapping", 0}, {"query_pre_attn_scalar", 0}, {"clip_qkv", 0}, {"sliding_window", 0},
    {"attention_bias", 0}, {"mlp_bias", 0}, {"use_qk_norm", 0}, {"qk_layernorm", 0}, {"parallel_residual", 0},
    {"use_parallel_residual", 0}, {"layer_types", 0}, {"no_rope_layers", 0}, {"attention_sinks", 0},
    {"num_nextn_predict_layers", 0}, {"hidden_activation", 0}, {"use_bidirectional_attention", 0},
    {"rope_interleaved", 0}, {"interleaved_rotary", 0}, {"resid_pdrop", 0}, {"embd_pdrop", 0},
    {"hidden_dropout", 0}, {"hidden_dropout_prob", 0}, {"reorder_and_upcast_attn", 0}};

tg_status tg_members_check_others(const tg_json *j, const tg_lm_family_row *f) {
    for (int i = 0; i < TG_LEN(others); i++)
        if (!tg_members_know(f, others[i].name)) TG_TRY(check_value(j, others[i].name, others[i].usual));
    return TG_OK;
}

bool tg_members_know(const tg_lm_family_row *f, const char *name) {
    static const char *const always[] = {"model_type", "architectures", "torch_dtype", "dtype"};
    for (int i = 0; i < f->n_members; i++)
        if (strcmp(f->members[i].name, name) == 0) return true;
    for (int i = 0; i < TG_LEN(always); i++)
        if (strcmp(always[i], name) == 0) return true;
    for (const char *const *m = f->layer_members; m && *m; m++)
        if (strcmp(*m, name) == 0) return true;
    return f->fixed.position_kind == TG_LM_ROTARY && tg_rope_knows(name);
}
