/* Reads and writes the members of config.json that say how the layers of a family differ: windows, and layers without
 * positions. A missing member means what it means in Hugging Face transformers. */
#include <ctype.h>

#include "models/files/families.h"

static const char full[] = "full_attention", sliding[] = "sliding_attention";

/* ---- Lists with an element for each layer ---- */

/* Sets *list to the array `name` with an element for each layer; NULL if it is missing. */
static tg_status read_list(const tg_json *j, const char *name, const tg_lm_config *c, json_t **list) {
    *list = NULL;
    if (!tg_json_has(j, name)) return TG_OK;
    TG_TRY(tg_json_array(j, name, list));
    if ((int64_t)json_array_size(*list) == c->layers) return TG_OK;
    return tg_fail(j->ctx, TG_ERR_FORMAT, "'%s': \"%s\" has %zu elements, expected one for each of %lld layers",
                   j->path, name, json_array_size(*list), (long long)c->layers);
}

/* Reads layer_types into kinds. Leaves kinds empty if it is missing. */
static tg_status read_types(const tg_json *j, const tg_lm_config *c, char *kinds) {
    json_t *list;
    TG_TRY(read_list(j, "layer_types", c, &list));
    for (int64_t i = 0; list && i < c->layers; i++) {
        const char *type = json_string_value(json_array_get(list, (size_t)i));
        if (!type || (strcmp(type, full) && strcmp(type, sliding)))
            return tg_fail(j->ctx, TG_ERR_UNSUPPORTED,
                           "'%s': \"layer_types\" has \"%s\", but only \"%s\" and \"%s\" are supported", j->path,
                           type ? type : "a value that is no text", full, sliding);
        kinds[i] = strcmp(type, full) ? 'w' : 'f';
    }
    return TG_OK;
}

static int write_types(json_t *root, const tg_lm_config *c) {
    json_t *list = json_array();
    for (int64_t i = 0; i < c->layers; i++)
        if (json_array_append_new(list, json_string(tg_lm_layer_has_window(c, i) ? sliding : full))) {
            json_decref(list);
            return -1;
        }
    return json_object_set_new(root, "layer_types", list);
}

static int write_window(json_t *root, const tg_lm_config *c) {
    return tg_member_set(root, "sliding_window", (double)c->window, TG_NONE, true);
}

/* Reads sliding_window. If it is missing, the window is `usual`; if it is null, there is none. */
static tg_status read_window(const tg_json *j, tg_lm_config *c, int64_t usual) {
    c->window = json_object_get(j->object, "sliding_window") ? TG_NONE : usual;
    return tg_member_size(j, "sliding_window", &c->window);
}

/* ---- One window for all layers ---- */

const char *const tg_window_members[] = {"sliding_window", NULL};

tg_status tg_window_read(const tg_json *j, tg_lm_config *c, char *kinds) {
    (void)kinds;
    return read_window(j, c, strcmp(c->family, "mistral") == 0 ? 4096 : TG_NONE);
}

int tg_window_write(json_t *root, const tg_lm_config *c) { return write_window(root, c); }

/* ---- Windows of the last layers ---- */

const char *const tg_qwen_members[] = {"sliding_window", "use_sliding_window", "max_window_layers", "layer_types",
                                       NULL};

tg_status tg_qwen_read(const tg_json *j, tg_lm_config *c, char *kinds) {
    bool windows = false;
    int64_t before = 28;
    TG_TRY(read_window(j, c, 4096));
    TG_TRY(tg_member_bool(j, "use_sliding_window", &windows));
    if (tg_json_has(j, "max_window_layers")) TG_TRY(tg_json_int(j, "max_window_layers", 0, (int64_t)1 << 40, &before));
    if (!windows) c->window = TG_NONE;
    TG_TRY(read_types(j, c, kinds));
    if (*kinds) return TG_OK;
    for (int64_t i = 0; i < c->layers; i++) kinds[i] = c->window != TG_NONE && i >= before ? 'w' : 'f';
    return TG_OK;
}

int tg_qwen_write(json_t *root, const tg_lm_config *c) {
    int64_t before = 0;
    while (before < c->layers && !tg_lm_layer_has_window(c, before)) before++;
    int failed = write_window(root, c);
    failed |= json_object_set_new(root, "use_sliding_window", json_boolean(c->window != TG_NONE));
    failed |= json_object_set_new(root, "max_window_layers", json_integer(before));
    return failed | write_types(root, c);
}

/* ---- Windows that alternate ---- */

const char *const tg_gemma_members[] = {"sliding_window", "layer_types", "sliding_window_pattern",
                                        "_sliding_window_pattern", NULL};

/* Reads which layers have windows: without layer_types, all but each `pattern`-th one. sliding_window_pattern takes the
 * place of `pattern`. */
static tg_status read_pattern(const tg_json *j, tg_lm_config *c, char *kinds, int64_t pattern) {
    TG_TRY(read_window(j, c, 4096));
    TG_TRY(read_types(j, c, kinds));
    if (*kinds) return TG_OK;
    TG_TRY(tg_member_size(j, "sliding_window_pattern", &pattern));
    for (int64_t i = 0; i < c->layers; i++) kinds[i] = (i + 1) % pattern ? 'w' : 'f';
    return TG_OK;
}

tg_status tg_gemma2_read(const tg_json *j, tg_lm_config *c, char *kinds) { return read_pattern(j, c, kinds, 2); }
tg_status tg_gemma3_read(const tg_json *j, tg_lm_config *c, char *kinds) { return read_pattern(j, c, kinds, 6); }

int tg_gemma_write(json_t *root, const tg_lm_config *c) { return write_window(root, c) | write_types(root, c); }

/* ---- Layers without positions ---- */

const char *const tg_smollm3_members[] = {"sliding_window", "use_sliding_window", "layer_types",
                                          "no_rope_layers", "no_rope_layer_interval", NULL};

/* Makes the letters of layers without positions capital. In no_rope_layers 1 (or true) stands for a layer that has
 * them. */
static tg_status read_positions(const tg_json *j, const tg_lm_config *c, char *kinds) {
    json_t *list;
    int64_t interval = 4;
    TG_TRY(read_list(j, "no_rope_layers", c, &list));
    TG_TRY(tg_member_size(j, "no_rope_layer_interval", &interval));
    for (int64_t i = 0; i < c->layers; i++) {
        const json_t *is = list ? json_array_get(list, (size_t)i) : NULL;
        if (is && !json_is_integer(is) && !json_is_boolean(is))
            return tg_fail(j->ctx, TG_ERR_FORMAT, "'%s': element %lld of \"no_rope_layers\" is neither 0 nor 1",
                           j->path, (long long)i);
        bool rotates = is ? json_is_true(is) || json_integer_value(is) != 0 : (i + 1) % interval != 0;
        if (!rotates) kinds[i] = (char)toupper(kinds[i]);
    }
    return TG_OK;
}

tg_status tg_smollm3_read(const tg_json *j, tg_lm_config *c, char *kinds) {
    bool windows = false;
    TG_TRY(read_window(j, c, TG_NONE));
    TG_TRY(tg_member_bool(j, "use_sliding_window", &windows));
    if (!windows) c->window = TG_NONE;
    TG_TRY(read_types(j, c, kinds));
    bool listed = *kinds;
    for (int64_t i = 0; !listed && i < c->layers; i++) kinds[i] = 'f';
    TG_TRY(read_positions(j, c, kinds));
    for (int64_t i = 0; !listed && c->window != TG_NONE && i < c->layers; i++)
        if (kinds[i] == 'F') kinds[i] = 'W';
    return TG_OK;
}

int tg_smollm3_write(json_t *root, const tg_lm_config *c) {
    json_t *list = json_array();
    int failed = write_window(root, c);
    for (int64_t i = 0; i < c->layers && !failed; i++)
        failed = json_array_append_new(list, json_integer(tg_lm_layer_has_positions(c, i)));
    failed |= json_object_set_new(root, "no_rope_layers", list);
    failed |= json_object_set_new(root, "use_sliding_window", json_boolean(c->window != TG_NONE));
    return failed | write_types(root, c);
}
