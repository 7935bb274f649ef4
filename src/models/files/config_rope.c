/* Reads and writes the members of config.json about rotary positions. Two forms are read: rope_theta and rope_scaling,
 * and rope_parameters, which Hugging Face transformers writes since its version 5 and which may have an object for each
 * kind of layer. The first form is written, because all versions read it. */
#include <math.h>

#include "models/files/families.h"

static const char *const kinds[] = {"default", "linear", "llama3", "yarn"}; /* in the order of tg_rope_kind */

bool tg_rope_knows(const char *name) {
    static const char *const names[] = {"rope_theta", "rope_scaling", "rope_parameters", "rope_local_base_freq",
                                        "partial_rotary_factor"};
    for (int i = 0; i < TG_LEN(names); i++)
        if (strcmp(names[i], name) == 0) return true;
    return false;
}

/* ---- Reading ---- */

/* The config that is being filled, and the part of a head that is rotated, which becomes rope_dims in the end. */
typedef struct rope_members {
    const tg_lm_family_row *f;
    tg_lm_config *c;
    double rotated; /* partial_rotary_factor: above 0, at most 1 */
} rope_members;

static tg_status read_kind(const tg_json *rope, tg_lm_config *c) {
    const char *names[] = {"rope_type", "type"}, *text = "default"; /* "type" is the older name */
    for (int i = 0; i < TG_LEN(names); i++)
        if (tg_json_has(rope, names[i])) {
            TG_TRY(tg_json_string(rope, names[i], &text));
            break;
        }
    for (int k = 0; k < TG_LEN(kinds); k++)
        if (strcmp(text, kinds[k]) == 0) return c->rope_kind = (tg_rope_kind)k, TG_OK;
    return tg_fail(rope->ctx, TG_ERR_UNSUPPORTED,
                   "'%s': \"rope_type\" is \"%s\", but only \"default\", \"linear\", \"llama3\" and \"yarn\" are "
                   "supported",
                   rope->path, text);
}

/* Fails if the object has a member that no kind of rotation reads here. */
static tg_status check_members(const tg_json *rope) {
    static const char *const known[] = {"rope_type", "type", "rope_theta", "factor", "low_freq_factor",
                                        "high_freq_factor", "original_max_position_embeddings", "beta_fast",
                                        "beta_slow", "attention_factor", "partial_rotary_factor",
                                        "finetuned"};
    const char *name;
    json_t *value;
    json_object_foreach(rope->object, name, value) {
        bool found = json_is_null(value) || (strcmp(name, "truncate") == 0 && json_is_true(value));
        for (int i = 0; i < TG_LEN(known); i++) found = found || strcmp(known[i], name) == 0;
        if (!found)
            return tg_fail(rope->ctx, TG_ERR_UNSUPPORTED, "'%s': \"%s\" of the rotary positions is not supported",
                           rope->path, name);
    }
    return TG_OK;
}

/* Reads one object of options. The kind of rope, and the options of this kind, are those of the object that is read
 * last. */
static tg_status read_options(const tg_json *rope, rope_members *m) {
    tg_lm_config *c = m->c;
    TG_TRY(check_members(rope));
    tg_lm_set_plain_rope(c);
    TG_TRY(read_kind(rope, c));
    TG_TRY(tg_member_positive(rope, "rope_theta", &c->rope_base));
    TG_TRY(tg_member_positive(rope, "partial_rotary_factor", &m->rotated));
    if (c->rope_kind == TG_ROPE_PLAIN) return TG_OK;
    TG_TRY(tg_json_real(rope, "factor", &c->rope_factor));
    if (c->rope_kind == TG_ROPE_LLAMA3) {
        TG_TRY(tg_json_real(rope, "low_freq_factor", &c->rope_low));
        TG_TRY(tg_json_real(rope, "high_freq_factor", &c->rope_high));
    }
    if (c->rope_kind == TG_ROPE_YARN) {
        c->rope_low = 1, c->rope_high = 32;
        TG_TRY(tg_member_positive(rope, "beta_slow", &c->rope_low));
        TG_TRY(tg_member_positive(rope, "beta_fast", &c->rope_high));
        TG_TRY(tg_member_positive(rope, "attention_factor", &c->rope_gain));
    }
    if (c->rope_kind == TG_ROPE_LINEAR) return TG_OK;
    c->rope_original = c->positions;
    return tg_member_size(rope, "original_max_position_embeddings", &c->rope_original);
}

/* Reads the options of the layers with windows, whose rotation must be plain. */
static tg_status read_local(const tg_json *rope, rope_members *m) {
    tg_lm_config own = *m->c;
    rope_members local = {.f = m->f, .c = &own, .rotated = m->rotated};
    bool own_base = m->f->fixed.rope_local_base != TG_AUTO;
    if (own_base) own.rope_base = m->c->rope_local_base; /* rope_local_base_freq or, without it, what is usual */
    TG_TRY(read_options(rope, &local));
    bool same = own.rope_base == m->c->rope_base && m->c->rope_kind == TG_ROPE_PLAIN;
    if (own.rope_kind != TG_ROPE_PLAIN || local.rotated != m->rotated || (!own_base && !same))
        return tg_fail(rope->ctx, TG_ERR_UNSUPPORTED,
                       "'%s': the rotary positions of layers with windows are of a kind that is not supported",
                       rope->path);
    if (own_base) m->c->rope_local_base = own.rope_base;
    return TG_OK;
}

/* Fails if an object that has options for each kind of layer has another kind of layer. */
static tg_status check_kinds(const tg_json *rope) {
    const char *name;
    json_t *value;
    json_object_foreach(rope->object, name, value)
        if (strcmp(name, "full_attention") != 0 && strcmp(name, "sliding_attention") != 0)
            return tg_fail(rope->ctx, TG_ERR_UNSUPPORTED, "'%s': \"%s\" of the rotary positions is not supported",
                           rope->path, name);
    return TG_OK;
}

/* Reads the options in the object `name`, if there is one. */
static tg_status read_object(const tg_json *j, const char *name, rope_members *m) {
    tg_json rope, of;
    if (!tg_json_has(j, name)) return TG_OK;
    TG_TRY(tg_json_object(j, name, &rope));
    bool nested = tg_json_has(&rope, "full_attention") || tg_json_has(&rope, "sliding_attention");
    if (!nested) return read_options(&rope, m);
    TG_TRY(check_kinds(&rope));
    if (tg_json_has(&rope, "full_attention")) {
        TG_TRY(tg_json_object(&rope, "full_attention", &of));
        TG_TRY(read_options(&of, m));
    }
    if (!tg_json_has(&rope, "sliding_attention")) return TG_OK;
    TG_TRY(tg_json_object(&rope, "sliding_attention", &of));
    return read_local(&of, m);
}

/* Sets rope_dims from the part of a head that is rotated. */
static tg_status set_dims(const tg_json *j, rope_members *m) {
    tg_lm_config *c = m->c;
    int64_t d = c->head_dim != TG_AUTO ? c->head_dim : c->hidden / c->heads;
    if (m->rotated > 1)
        return tg_fail(j->ctx, TG_ERR_UNSUPPORTED, "'%s': \"partial_rotary_factor\" is %g, expected at most 1", j->path,
                       m->rotated);
    if (m->rotated < 1) c->rope_dims = (int64_t)((double)d * m->rotated);
    return TG_OK;
}

/* If a file has both rope_parameters and the older rope_scaling, the latter takes precedence, as in transformers. */
tg_status tg_rope_read(const tg_json *j, const tg_lm_family_row *f, tg_lm_config *c) {
    rope_members m = {.f = f, .c = c, .rotated = f->rotated};
    TG_TRY(tg_member_positive(j, "rope_theta", &c->rope_base));
    if (f->fixed.rope_local_base != TG_AUTO) TG_TRY(tg_member_positive(j, "rope_local_base_freq", &c->rope_local_base));
    TG_TRY(tg_member_positive(j, "partial_rotary_factor", &m.rotated));
    TG_TRY(read_object(j, "rope_parameters", &m));
    TG_TRY(read_object(j, "rope_scaling", &m));
    /* A member next to the object takes precedence over the one in it. */
    if (c->rope_kind != TG_ROPE_LINEAR && c->rope_kind != TG_ROPE_PLAIN)
        TG_TRY(tg_member_size(j, "original_max_position_embeddings", &c->rope_original));
    return set_dims(j, &m);
}

/* ---- Writing ---- */

/* Returns rope_scaling; null if the rotation is plain. */
static json_t *scaling(const tg_lm_config *c) {
    json_t *rope = c->rope_kind == TG_ROPE_PLAIN
                       ? json_null()
                       : json_pack("{s:s, s:f}", "rope_type", kinds[c->rope_kind], "factor", c->rope_factor);
    bool yarn = c->rope_kind == TG_ROPE_YARN;
    int failed = 0;
    if (yarn || c->rope_kind == TG_ROPE_LLAMA3) {
        failed |= json_object_set_new(rope, yarn ? "beta_slow" : "low_freq_factor", json_real(c->rope_low));
        failed |= json_object_set_new(rope, yarn ? "beta_fast" : "high_freq_factor", json_real(c->rope_high));
        failed |= json_object_set_new(rope, "original_max_position_embeddings", json_integer(c->rope_original));
    }
    if (yarn && c->rope_gain != TG_AUTO)
        failed |= json_object_set_new(rope, "attention_factor", json_real(c->rope_gain));
    if (!failed) return rope;
    json_decref(rope);
    return NULL;
}

/* Returns the part of a head that is rotated. Readers round its product with head_dim down, so it must not be less. */
static double rotated_part(const tg_lm_config *c) {
    double part = (double)c->rope_dims / (double)c->head_dim;
    return (int64_t)((double)c->head_dim * part) < c->rope_dims ? nextafter(part, 1) : part;
}

int tg_rope_write(json_t *root, const tg_lm_family_row *f, const tg_lm_config *c) {
    double rotated = rotated_part(c);
    int failed = json_object_set_new(root, "rope_theta", json_real(c->rope_base));
    failed |= json_object_set_new(root, "rope_scaling", scaling(c));
    if (f->fixed.rope_local_base != TG_AUTO)
        failed |= json_object_set_new(root, "rope_local_base_freq", json_real(c->rope_local_base));
    if (rotated != 1 || f->rotated != 1)
        failed |= json_object_set_new(root, "partial_rotary_factor", json_real(rotated));
    return failed;
}
