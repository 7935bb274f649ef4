/* Reads and writes config.json: the members of the model's family, and the others, which are kept. */
#include "base/memory/host_memory.h"
#include "base/options.h"
#include "models/files/families.h"
#include "models/files/model_files.h"

/* ---- Reading ---- */

/* Keeps the letters of the layers, unless a config without letters means the same. */
static tg_status keep_kinds(tg_ctx *ctx, const char *kinds, tg_config_file *out) {
    size_t n = strlen(kinds);
    char usual = out->c.window == TG_NONE ? 'f' : 'w';
    const char only[2] = {usual, 0};
    if (strspn(kinds, only) == n) return TG_OK;
    out->kinds = tg_host_strdup(ctx, kinds);
    out->c.attention_kinds = out->kinds;
    return ctx->run.status;
}

static tg_status read_layers(const tg_json *j, const tg_lm_family_row *f, tg_config_file *out) {
    if (!f->read_layers) return TG_OK;
    size_t n = (size_t)out->c.layers + 1;
    char *kinds = tg_host_alloc(j->ctx, n);
    if (!kinds) return j->ctx->run.status;
    memset(kinds, 0, n);
    tg_status s = f->read_layers(j, &out->c, kinds);
    if (s == TG_OK) s = keep_kinds(j->ctx, kinds, out);
    tg_host_free(j->ctx, kinds, n);
    return s;
}

static tg_status no_memory(tg_ctx *ctx) { return tg_fail(ctx, TG_ERR_MEMORY, "no memory for the config"); }

/* Keeps the members that the library does not write itself. */
static tg_status keep_others(const tg_json *j, const tg_lm_family_row *f, tg_config_file *out) {
    json_t *others = json_object(), *value;
    const char *name;
    int failed = !others;
    json_object_foreach(j->object, name, value)
        if (!tg_members_know(f, name) && strcmp(name, TG_CONFIG_SUM) != 0)
            failed |= json_object_set(others, name, value);
    if (!failed && json_object_size(others)) out->extra = tg_config_line(j->ctx, others);
    out->c.extra = out->extra;
    json_decref(others);
    return failed ? no_memory(j->ctx) : j->ctx->run.status;
}

static tg_status read_family(const tg_json *j, const tg_lm_family_row **f) {
    const char *type;
    TG_TRY(tg_json_string(j, "model_type", &type));
    *f = tg_lm_family_find(type);
    if (*f) return TG_OK;
    char known[256] = "";
    for (int i = 0; tg_lm_family(i); i++) {
        size_t at = strlen(known);
        snprintf(known + at, sizeof known - at, "%s%s", i ? ", " : "", tg_lm_family(i));
    }
    return tg_fail(j->ctx, TG_ERR_UNSUPPORTED, "'%s': model_type is \"%s\", but only these are supported: %s", j->path,
                   type, known);
}

tg_status tg_config_parse(const tg_json *j, tg_config_file *out) {
    const tg_lm_family_row *f;
    TG_TRY(read_family(j, &f));
    out->c = f->fixed;
    out->c.family = f->type;
    TG_TRY(tg_members_read(j, f, &out->c));
    if (f->fixed.position_kind == TG_LM_ROTARY) TG_TRY(tg_rope_read(j, f, &out->c));
    TG_TRY(read_layers(j, f, out));
    TG_TRY(tg_members_check_others(j, f));
    if (f->finish) f->finish(&out->c);
    return keep_others(j, f, out);
}

tg_status tg_config_read(tg_ctx *ctx, const char *path, tg_config_file *out) {
    tg_json j;
    *out = (tg_config_file){.c = {TG_LM_DEFAULTS}};
    TG_TRY(tg_json_load(&j, ctx, path));
    tg_status s = tg_config_parse(&j, out);
    tg_json_free(&j);
    return s;
}

void tg_config_free(tg_ctx *ctx, tg_config_file *f) {
    tg_host_strfree(ctx, f->kinds);
    tg_host_strfree(ctx, f->extra);
}

/* ---- Whether two configs are of the same model ---- */

/* Returns whether tg_lm_same ignores the field: it says how the model is run and not what it computes, it is a text, or
 * only multi-token prediction uses it. */
static bool is_of_run(const char *field) {
    static const char *const names[] = {"family", "recompute", "wgrad", "backend", "cp_kind", "cp_inner", "parallel",
                                        "layout", "chunk", "key", "unfilled", "extra", "attention_kinds", "mtp_weight"};
    for (int i = 0; i < TG_LEN(names); i++)
        if (strcmp(names[i], field) == 0) return true;
    return false;
}

/* Returns whether the layers of both have the same windows and positions. */
static bool same_layers(const tg_lm_config *a, const tg_lm_config *b) {
    for (int64_t i = 0; i < a->layers; i++)
        if (tg_lm_layer_has_window(a, i) != tg_lm_layer_has_window(b, i) ||
            tg_lm_layer_has_positions(a, i) != tg_lm_layer_has_positions(b, i))
            return false;
    return true;
}

bool tg_lm_same(const tg_lm_config *a, const tg_lm_config *b) {
    const tg_struct *s = &tg_lm_config_struct;
    for (int i = 0; i < s->n_fields; i++) {
        const tg_field *f = &s->fields[i];
        const char *x = (const char *)a + f->offset, *y = (const char *)b + f->offset;
        if (!is_of_run(f->name) && memcmp(x, y, f->bytes) != 0) return false;
    }
    return same_layers(a, b);
}

/* ---- Writing ---- */

/* Returns the name that PyTorch gives to a dtype. */
static const char *torch_name(tg_dtype d) {
    return d == TG_F64 ? "float64" : d == TG_BF16 ? "bfloat16" : d == TG_F16 ? "float16" : "float32";
}

static int write_members(json_t *root, const tg_lm_family_row *f, const tg_lm_config *c, tg_dtype dtype) {
    int failed = json_object_set_new(root, "architectures", json_pack("[s]", f->architecture));
    failed |= json_object_set_new(root, "model_type", json_string(f->type));
    failed |= json_object_set_new(root, "torch_dtype", json_string(torch_name(dtype)));
    failed |= tg_members_write(root, f, c);
    if (f->fixed.position_kind == TG_LM_ROTARY) failed |= tg_rope_write(root, f, c);
    return f->write_layers ? failed | f->write_layers(root, c) : failed;
}

/* Returns whether the config that root describes is c. A root that cannot be read, such as one with a size that the
 * family cannot have, describes no config, which is no error of ctx; so it is read with a context of its own. */
static bool describes(tg_ctx *ctx, json_t *root, const tg_lm_config *c) {
    tg_ctx *own = tg_ctx_new(TG_CONFIG(.device = "meta", .threads = 1, .allocator = ctx->run.allocator));
    const tg_json j = {.ctx = own, .path = "config.json", .object = root};
    tg_config_file f = {.c = {TG_LM_DEFAULTS}};
    bool good = tg_ok(own) && tg_config_parse(&j, &f) == TG_OK;
    tg_status s = tg_ctx_status(own);
    if (s != TG_OK && s != TG_ERR_UNSUPPORTED && s != TG_ERR_FORMAT) tg_fail(ctx, s, "%s", tg_ctx_message(own));
    if (good) tg_lm_choose(&f.c);
    good = good && tg_lm_same(&f.c, c);
    tg_config_free(own, &f);
    tg_ctx_free(own);
    return good;
}

json_t *tg_lm_config_json(const tg_module *lm) {
    const tg_lm_config *c = tg_lm_config_of(lm);
    json_t *root = json_object(), *others = c->extra ? json_loads(c->extra, 0, NULL) : json_object();
    bool good = others && !write_members(root, tg_lm_family_of(c), c, (tg_dtype)tg_module_param(lm, 0, NULL)->dtype) &&
                !tg_json_add_missing(root, others);
    json_decref(others);
    if (!good) {
        json_decref(root);
        no_memory(lm->ctx);
        return NULL;
    }
    if (describes(lm->ctx, root, c)) return root;
    json_decref(root);
    return NULL;
}

char *tg_config_line(tg_ctx *ctx, const json_t *root) {
    char *text = tg_json_text(root, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(17));
    char *copy = text ? tg_host_strdup(ctx, text) : NULL;
    if (!text) no_memory(ctx);
    free(text);
    return copy;
}

tg_status tg_config_save(tg_ctx *ctx, const char *path, json_t *root, const char *weights_sum) {
    if (json_object_set_new(root, TG_CONFIG_SUM, json_string(weights_sum))) return no_memory(ctx);
    return tg_json_save(ctx, path, root);
}
