/* Families of published language models: a row for each model_type of Hugging Face transformers, with the names of
 * parameters, the members of config.json and what is the same in all models of the family. To add a family, add a row
 * to families.c. */
#ifndef TG_FAMILIES_H
#define TG_FAMILIES_H

#include "io/json.h"
#include "models/lm/lm.h"

/* How a member of config.json and a field of tg_lm_config correspond. */
typedef enum tg_member_kind {
    TG_MEMBER_SIZE,   /* an int64 from 1 on */
    TG_MEMBER_REAL,   /* a double above 0 */
    TG_MEMBER_RATE,   /* a double from 0 on: a probability */
    TG_MEMBER_RSQRT,  /* a number s above 0; the field is 1 / sqrt(s) */
    TG_MEMBER_BOOL,   /* a bool */
    TG_MEMBER_TEXT,   /* no field: must be `text`, or one of two other texts; any other is not supported */
    TG_MEMBER_NUMBER, /* no field: must be `usual`, as a number or bool; any other is not supported */
} tg_member_kind;

typedef struct tg_member {
    const char *name;
    tg_member_kind kind;
    size_t offset;          /* of the field in tg_lm_config */
    double usual;           /* what a missing member means. null means TG_AUTO or TG_NONE, but 0 for a RATE, and `usual`
                             * for a BOOL or NUMBER */
    bool required;          /* a missing member is an error */
    int64_t most;           /* largest SIZE; 0 means 2^40 */
    const char *text, *also[2]; /* TEXT: what is written, and what means the same */
} tg_member;

struct tg_lm_family_row {
    const char *type, *architecture; /* model_type, and the class in `architectures` */
    const tg_lm_name_table *names;
    bool transposed; /* see tg_lm_is_transposed */
    tg_lm_config fixed;
    const tg_member *members;
    int n_members;
    double rotated; /* usual part of a head that is rotated (partial_rotary_factor) */
    const char *kinds; /* tg_lm_config.attention_kinds of new models; NULL: all layers are alike */
    bool windowed;     /* new models have a window */
    bool pads;         /* transformers gives the family a padding token, if config.json does not say null */
    /* Read and write the kinds of the layers. read_layers sets *kinds to the letters of tg_lm_config.attention_kinds,
     * one for each layer, or leaves it empty; it may also set the window. NULL: all layers are alike. */
    tg_status (*read_layers)(const tg_json *j, tg_lm_config *c, char *kinds);
    int (*write_layers)(json_t *root, const tg_lm_config *c);
    /* The members that these functions read or write, or that say the same as others. They are not kept (extra). NULL
     * ends the list; NULL: no list. */
    const char *const *layer_members;
    void (*finish)(tg_lm_config *c);  /* sets fields that follow from others, after all are read; NULL: none */
};

static inline const tg_lm_family_row *tg_lm_family_of(const tg_lm_config *c) { return tg_lm_family_find(c->family); }

/* ---- config_members.c ---- */

/* Read the members of a family into *c, and write them to root. Writing returns -1 if there is no memory. */
tg_status tg_members_read(const tg_json *j, const tg_lm_family_row *f, tg_lm_config *c);
int tg_members_write(json_t *root, const tg_lm_family_row *f, const tg_lm_config *c);
/* Fails if j has a member that is not of the family and that changes numbers in published models. */
tg_status tg_members_check_others(const tg_json *j, const tg_lm_family_row *f);
/* Returns whether the library reads or writes this member of the family's config.json itself. */
bool tg_members_know(const tg_lm_family_row *f, const char *name);

/* Read optional members: *out is unchanged if the member is missing or null. */
tg_status tg_member_size(const tg_json *j, const char *name, int64_t *out);
tg_status tg_member_positive(const tg_json *j, const char *name, double *out);
tg_status tg_member_bool(const tg_json *j, const char *name, bool *out);
/* Sets a number, which becomes null if it is `none`, and an integer if it is whole and `whole` is true. */
int tg_member_set(json_t *root, const char *name, double v, double none, bool whole);

/* ---- config_rope.c ---- */

tg_status tg_rope_read(const tg_json *j, const tg_lm_family_row *f, tg_lm_config *c);
int tg_rope_write(json_t *root, const tg_lm_family_row *f, const tg_lm_config *c);
bool tg_rope_knows(const char *name); /* whether it is one of the members that these functions read and write */

/* ---- config_layers.c: the read_layers and write_layers of families ---- */

extern const char *const tg_window_members[], *const tg_qwen_members[], *const tg_gemma_members[],
    *const tg_smollm3_members[];
tg_status tg_window_read(const tg_json *j, tg_lm_config *c, char *kinds);
int tg_window_write(json_t *root, const tg_lm_config *c);
tg_status tg_qwen_read(const tg_json *j, tg_lm_config *c, char *kinds);
int tg_qwen_write(json_t *root, const tg_lm_config *c);
tg_status tg_gemma2_read(const tg_json *j, tg_lm_config *c, char *kinds);
tg_status tg_gemma3_read(const tg_json *j, tg_lm_config *c, char *kinds);
int tg_gemma_write(json_t *root, const tg_lm_config *c);
tg_status tg_smollm3_read(const tg_json *j, tg_lm_config *c, char *kinds);
int tg_smollm3_write(json_t *root, const tg_lm_config *c);

#endif
