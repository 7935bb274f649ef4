/* adapter_config.json: what PEFT's LoraConfig has, as far as the library computes it. */
#include <math.h>
#include <strings.h>

#include "models/lm/lm.h"
#include "models/lora/lora_files.h"

/* ---- Write ---- */

/* Returns the last component of a path. */
static const char *last(const char *path) {
    const char *dot = strrchr(path, '.');
    return dot ? dot + 1 : path;
}

static bool is_in(const tg_lora_list *l, const tg_module *m) {
    for (int i = 0; i < l->n; i++)
        if (l->list[i] == m) return true;
    return false;
}

/* Returns whether every linear layer that has the same last component of its path as an adapted one is adapted too. The
 * last components alone then say which layers are adapted, as PEFT's configs usually do. */
static bool names_suffice(tg_module *m, const tg_lora_list *adapters) {
    tg_lora_list all;
    char path[TG_LORA_PATH], of[TG_LORA_PATH];
    bool good = tg_lora_list_layers(m, &all) == TG_OK;
    for (int i = 0; good && i < all.n; i++) {
        tg_lora_path(m, all.list[i], path, sizeof path);
        for (int k = 0; k < adapters->n && good; k++) {
            tg_lora_path(m, adapters->list[k], of, sizeof of);
            good = strcmp(last(path), last(of)) != 0 || is_in(adapters, all.list[i]->parent);
        }
    }
    tg_lora_list_free(&all);
    return good;
}

/* Appends a string to an array that does not have it. Returns 0 unless there is no memory. */
static int add_once(json_t *array, const char *text) {
    size_t i;
    json_t *v;
    json_array_foreach(array, i, v) {
        if (strcmp(json_string_value(v), text) == 0) return 0;
    }
    return json_array_append_new(array, json_string(text));
}

/* Returns j, or NULL after freeing it if something in it has failed. json_pack then frees the rest. */
static json_t *unless(int failed, json_t *j) {
    if (!failed) return j;
    json_decref(j);
    return NULL;
}

static json_t *targets_json(tg_module *m, const tg_lora_list *l) {
    char path[TG_LORA_PATH];
    json_t *array = json_array();
    bool names = names_suffice(m, l);
    int failed = 0;
    for (int i = 0; i < l->n; i++) {
        tg_lora_path(m, l->list[i], path, sizeof path);
        failed |= add_once(array, names ? last(path) : path);
    }
    return unless(failed, array);
}

/* Returns {path: rank} (or alpha) of the layers that differ from the first one. */
static json_t *pattern_json(tg_module *m, const tg_lora_list *l, bool alpha) {
    char path[TG_LORA_PATH];
    json_t *object = json_object();
    const tg_lora_numbers *first = &tg_lora_of(l->list[0])->n;
    int failed = 0;
    for (int i = 1; i < l->n; i++) {
        const tg_lora_numbers *n = &tg_lora_of(l->list[i])->n;
        tg_lora_path(m, l->list[i], path, sizeof path);
        if (alpha && n->alpha != first->alpha) failed |= json_object_set_new(object, path, json_real(n->alpha));
        if (!alpha && n->rank != first->rank)
            failed |= json_object_set_new(object, path, json_integer((json_int_t)n->rank));
    }
    return unless(failed, object);
}

/* Returns the number as an integer if it is one, as PEFT writes alpha. */
static json_t *number(double v) {
    return v == nearbyint(v) && fabs(v) < 1e15 ? json_integer((json_int_t)v) : json_real(v);
}

/* The projections of GPT-2's layers are [in, out] in its files, which PEFT has to know to merge. */
static bool is_transposed(const tg_module *m) { return tg_is_lm(m) && tg_lm_is_transposed(&tg_lm_of(m)->c); }

tg_status tg_lora_config_save(tg_module *m, const tg_lora_list *l, const char *path, const char *base) {
    const tg_lora_numbers *n = &tg_lora_of(l->list[0])->n;
    json_t *root =
        json_pack("{s:s, s:o, s:s?, s:I, s:o, s:f, s:o, s:o, s:o, s:s, s:b, s:b, s:b, s:b, s:n}", "peft_type", "LORA",
                  "task_type", tg_is_lm(m) ? json_string("CAUSAL_LM") : json_null(), "base_model_name_or_path", base,
                  "r", (json_int_t)n->rank, "lora_alpha", number(n->alpha), "lora_dropout", n->dropout,
                  "target_modules", targets_json(m, l), "rank_pattern", pattern_json(m, l, false), "alpha_pattern",
                  pattern_json(m, l, true), "bias", "none", "fan_in_fan_out", is_transposed(m), "use_rslora", n->rslora,
                  "use_dora", false, "inference_mode", true, "modules_to_save");
    if (!root) return tg_fail(m->ctx, TG_ERR_MEMORY, "tg_lora_save: no memory for '%s'", path);
    tg_status s = tg_json_save(m->ctx, path, root);
    json_decref(root);
    return s;
}

/* ---- Read ---- */

/* Returns whether a value turns nothing on: null, false, "none", or empty. */
static bool is_off(const json_t *v) {
    const char *text = json_string_value(v);
    return !v || json_is_null(v) || json_is_false(v) || (text && !strcmp(text, "none")) ||
           ((json_is_array(v) || json_is_object(v)) && !json_array_size(v) && !json_object_size(v));
}

/* Fails if the config asks for something that changes numbers and that the library does not compute. */
static tg_status check_variant(const tg_lora_config *c) {
    static const char *const unknown[] = {"use_dora",
                                          "lora_bias",
                                          "use_qalora",
                                          "bias",
                                          "modules_to_save",
                                          "layer_replication",
                                          "trainable_token_indices",
                                          "target_parameters",
                                          "alora_invocation_tokens",
                                          "use_bdlora",
                                          "arrow_config",
                                          "kasa_config",
                                          "monteclora_config"};
    for (int i = 0; i < TG_LEN(unknown); i++) {
        if (is_off(json_object_get(c->json.object, unknown[i]))) continue;
        char *text = tg_json_text(json_object_get(c->json.object, unknown[i]), JSON_ENCODE_ANY | JSON_COMPACT);
        tg_fail(c->json.ctx, TG_ERR_UNSUPPORTED, "'%s': \"%s\" is %.100s, which the library does not compute",
                c->json.path, unknown[i], text ? text : "set");
        free(text);
    }
    return c->json.ctx->run.status;
}

/* Fails for initial values that PEFT subtracts from the model's own weights, so that the matrices belong to changed
 * ones. Other initial values do not matter once the matrices are trained. */
static tg_status check_start(const tg_lora_config *c) {
    static const char *const changing[] = {"pissa", "corda", "olora", "loftq", "lora_ga"};
    const char *text = json_string_value(json_object_get(c->json.object, "init_lora_weights"));
    for (int i = 0; text && i < TG_LEN(changing); i++)
        if (strncasecmp(text, changing[i], strlen(changing[i])) == 0)
            return tg_fail(c->json.ctx, TG_ERR_UNSUPPORTED,
                           "'%s': \"init_lora_weights\" is \"%.64s\", which changes the model's own weights; convert "
                           "the adapters to plain ones with PEFT (path_initial_model_for_weight_conversion)",
                           c->json.path, text);
    return TG_OK;
}

static tg_status read_numbers(tg_lora_config *c) {
    const char *type;
    TG_TRY(tg_json_string(&c->json, "peft_type", &type));
    if (strcmp(type, "LORA") != 0)
        return tg_fail(c->json.ctx, TG_ERR_UNSUPPORTED, "'%s': \"peft_type\" is \"%.64s\", expected \"LORA\"",
                       c->json.path, type);
    TG_TRY(tg_json_int(&c->json, "r", 1, INT32_MAX, &c->n.rank));
    TG_TRY(tg_json_real(&c->json, "lora_alpha", &c->n.alpha));
    if (tg_json_has(&c->json, "lora_dropout")) TG_TRY(tg_json_real(&c->json, "lora_dropout", &c->n.dropout));
    if (tg_json_has(&c->json, "use_rslora")) TG_TRY(tg_json_bool(&c->json, "use_rslora", &c->n.rslora));
    if (!(c->n.dropout >= 0 && c->n.dropout < 1))
        return tg_fail(c->json.ctx, TG_ERR_FORMAT, "'%s': \"lora_dropout\" is %g, expected 0 or more and less than 1",
                       c->json.path, c->n.dropout);
    TG_TRY(check_start(c));
    return check_variant(c);
}

/* A key of PEFT's patterns is a regular expression. Only names can be compared here. */
static tg_status check_patterns(const tg_lora_config *c) {
    const char *key;
    json_t *value;
    json_object_foreach(json_object_get(c->json.object, "alpha_pattern"), key, value) {
        if (!strpbrk(key, "\\*+?()[]{}|^$") && json_is_number(value)) continue;
        return tg_fail(c->json.ctx, TG_ERR_UNSUPPORTED,
                       "'%s': \"alpha_pattern\" has \"%.100s\", expected names of layers, each with a number",
                       c->json.path, key);
    }
    return TG_OK;
}

tg_status tg_lora_config_load(tg_ctx *ctx, const char *path, tg_lora_config *c) {
    *c = (tg_lora_config){0};
    TG_TRY(tg_json_load(&c->json, ctx, path));
    tg_status s = read_numbers(c);
    if (s == TG_OK) s = check_patterns(c);
    if (s != TG_OK) tg_json_free(&c->json);
    return s;
}

/* Returns whether the name is the path, or the end of it after a dot. */
static bool is_named(const char *path, const char *name) {
    size_t n = strlen(path), k = strlen(name);
    return n >= k && strcmp(path + n - k, name) == 0 && (n == k || path[n - k - 1] == '.');
}

double tg_lora_config_alpha(const tg_lora_config *c, const char *path) {
    const char *key;
    json_t *value;
    json_object_foreach(json_object_get(c->json.object, "alpha_pattern"), key, value) {
        if (is_named(path, key)) return json_number_value(value);
    }
    return c->n.alpha;
}
