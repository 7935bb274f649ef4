/* Descriptions of structs and enums: the name, type and place of every field. Bindings for other languages and tools
 * read them; most C programs do not need this header. C++ programs fill structs of options with tg_make. The
 * descriptions of the library are constant and need no free. */
#ifndef TAPEGRAD_FIELDS_H
#define TAPEGRAD_FIELDS_H

#include <tapegrad/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Fields ---- */

/* The type of a field, or of the elements of a field that is an array. */
typedef enum tg_field_kind {
    TG_FIELD_BOOL,
    TG_FIELD_INT,      /* int */
    TG_FIELD_INT64,    /* int64_t */
    TG_FIELD_UINT64,   /* uint64_t */
    TG_FIELD_SIZE,     /* size_t */
    TG_FIELD_DOUBLE,   /* double */
    TG_FIELD_DTYPE,    /* tg_dtype */
    TG_FIELD_ENUM,     /* an int that has a value of the enum with the name in `of` (tg_enum_find) */
    TG_FIELD_TEXT,     /* const char *, terminated by 0 */
    TG_FIELD_TENSOR,   /* tg_tensor * */
    TG_FIELD_STRUCT,   /* a struct within this one, of the type with the name in `of` */
    TG_FIELD_FUNCTION, /* a pointer to a function */
    TG_FIELD_POINTER,  /* any other pointer; `of` is the type that it points to, such as "tg_comm" */
    TG_FIELD_SHAPE,    /* tg_shape */
    TG_FIELD_DIMS,     /* tg_dims */
    TG_FIELD_LIST,     /* const int64_t *; the number of its elements is in the int at length_at */
} tg_field_kind;

/* One field of a struct. Its default is at `offset` in tg_struct.defaults. If the field is an argument of an op (op.h),
 * its default is at `offset` in tg_op.preset, and is 0 if preset is NULL. */
typedef struct tg_field {
    const char *name;
    tg_field_kind kind;
    int count;       /* number of elements of an array; 1 for any other field */
    size_t offset;   /* bytes from the start of the struct */
    size_t bytes;    /* bytes of the whole field */
    const char *of;  /* name of the type, for the kinds ENUM, STRUCT and POINTER; NULL for the others */
    const char *doc; /* one line: what the field means, or which values it takes, or both */
    bool required;   /* only for arguments of ops: the argument has no default */
    /* Only for kind TG_FIELD_LIST, which only arguments of ops have: bytes from the start of the struct to the int with
     * the length. */
    size_t length_at;
} tg_field;

/* Initializers of a tg_field. S is the struct, and KIND a tg_field_kind without its prefix:
 * - TG_FIELD(tg_adamw_opts, lr, DOUBLE, "learning rate"): a field of a kind that does not use `of`.
 * - TG_FIELD_OF(tg_loss_opts, reduction, ENUM, "tg_loss_reduction", "..."): a field of a kind that uses `of`.
 * - TG_FIELD_ARRAY(tg_conv_opts, stride, INT64, "..."): a field that is an array. */
#define TG_FIELD(S, member, KIND, doc_) TG_FIELD_OF(S, member, KIND, NULL, doc_)
#define TG_FIELD_OF(S, member, KIND, of_, doc_) TG_FIELD_N_(S, member, KIND, 1, of_, doc_)
#define TG_FIELD_ARRAY(S, member, KIND, doc_) \
    TG_FIELD_N_(S, member, KIND, (int)(sizeof(((S *)0)->member) / sizeof(((S *)0)->member[0])), NULL, doc_)
#define TG_FIELD_N_(S, member, KIND, n_, of_, doc_)                                         \
    {.name = #member, .kind = TG_FIELD_##KIND, .count = n_, .offset = offsetof(S, member),  \
     .bytes = sizeof(((S *)0)->member), .of = of_, .doc = doc_}

/* ---- Enums ---- */

typedef struct tg_enum_value {
    const char *name; /* as in C, such as "TG_LOSS_MEAN" */
    int value;
} tg_enum_value;

typedef struct tg_enum {
    const char *name;   /* such as "tg_loss_reduction" */
    const char *prefix; /* what the names of all values begin with, such as "TG_LOSS_" */
    int n_values;
    const tg_enum_value *values;
} tg_enum;

#define TG_ENUM_VALUE(v) {.name = #v, .value = v} /* initializes a tg_enum_value */

/* ---- Structs of options ---- */

typedef struct tg_struct {
    const char *name; /* such as "tg_adamw_opts" */
    size_t size;      /* bytes */
    int n_fields;     /* number of `fields`; without the first field, which is sizeof the struct */
    const tg_field *fields;
    const void *defaults; /* a struct of this type with its defaults */
    const char *doc;      /* one line: what the struct is for */
} tg_struct;

TG_API int tg_struct_count(void); /* Returns the number of structs of options. */
/* Returns the i-th struct of TG_OPTIONS_LIST (options_list.h); NULL if i is out of range. */
TG_API const tg_struct *tg_struct_at(int i);
/* Returns the struct of options with this name; NULL if there is none. */
TG_API const tg_struct *tg_struct_find(const char *name);
/* Writes the defaults to the struct of options at s. `name` is the name of its type, such as "tg_adamw_opts". `size` is
 * sizeof the struct in the program; it may be smaller than in the library, and becomes the value of the struct's first
 * field. Writes nothing and returns TG_ERR_ARGUMENT if there is no struct of this name, if s is NULL, or if `size` is
 * larger than in the library or too small for the first field. Needs no context and records no error. */
TG_API tg_status tg_struct_fill(const char *name, void *s, size_t size);

TG_API int tg_enum_count(void); /* Returns the number of enums that are types of fields or of arguments of ops. */
/* Returns the i-th of these enums; NULL if i is out of range. */
TG_API const tg_enum *tg_enum_at(int i);
/* Returns the enum with this name; NULL if there is none. */
TG_API const tg_enum *tg_enum_find(const char *name);

#ifdef __cplusplus
}

#include <tapegrad/options_list.h>

/* The name of a struct of options, for tg_make; NULL for any other struct. */
template <class S> struct tg_name_of {
    static const char *name() { return nullptr; }
};
#define TG_X(S, MACRO)                                                                                                 \
    struct S;                                                                                                          \
    template <> struct tg_name_of<S> {                                                                                 \
        static const char *name() { return #S; }                                                                       \
    };
TG_OPTIONS_LIST(TG_X)
#undef TG_X

/* Returns a struct of options with its defaults. If the library is older than the headers and does not know the struct,
 * or knows a smaller one, all fields but the size are 0. For any other struct that begins with its size, such as
 * tg_memory_info, returns it with this size and all other fields 0. In C++, tg_make replaces the macros that make such
 * structs in C: auto c = tg_make<tg_config>(); c.seed = 1; tg_ctx_new(&c) */
template <class S> inline S tg_make() {
    S s;
    tg_struct_init(&s, sizeof s);
    if (tg_name_of<S>::name()) tg_struct_fill(tg_name_of<S>::name(), &s, sizeof s);
    return s;
}
#endif

#endif
