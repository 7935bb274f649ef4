/* The structs of modules and the functions that the library's own layers use on them. */
#ifndef TG_MODULE_H
#define TG_MODULE_H

#include <tapegrad/nn.h>

#include "core/context.h"

/* A parameter, a buffer or a child of a module. Entries are linked in the order of adding.
 *
 * A wrapper is a module that holds one other module, as its child with the name "". That name adds nothing to paths. A
 * search for a name in a wrapper continues in the module that it holds. */
typedef struct tg_module_entry {
    struct tg_module_entry *next;
    char *name;
    tg_tensor *tensor; /* the parameter or buffer; NULL for a child */
    tg_module *child;
    bool buffer, transient; /* whether `tensor` is a buffer, and whether the buffer is in no checkpoint */
} tg_module_entry;

/* The lists of tensors in a module and in the modules in it. */
typedef enum tg_state_list { TG_STATE_PARAMS, TG_STATE_BUFFERS, TG_STATE_SAVED_BUFFERS, TG_STATE_LISTS } tg_state_list;

/* A position in a list. It is kept between calls, so that a loop over all tensors visits every entry once. */
typedef struct tg_module_cursor {
    const tg_module_entry *at; /* NULL means at the beginning */
    const tg_module *of;       /* the module that has this entry */
    int i;                     /* number of tensors of the list before it */
} tg_module_cursor;

typedef struct tg_call_hook tg_call_hook;

struct tg_module {
    tg_ctx *ctx;
    const tg_module_ops *ops; /* read its later fields with TG_MODULE_OP */
    void *state;
    tg_module_entry *first, *last;
    tg_module *parent;      /* the module that frees this one; NULL if the caller does */
    tg_module_entry *entry; /* its entry in the parent */
    tg_call_hook *hooks;
    uint64_t last_hook; /* the number of the hook that was added last */
    int running;        /* number of runs of its forward that have not returned */
    tg_mode mode;
    uint32_t settings; /* incremented by tg_float16_set_output, tg_lora_merge and tg_lora_unmerge */
    tg_module_cursor cursor[TG_STATE_LISTS]; /* at the tensors that were returned last */
    char *path; /* the last path that was returned, in memory of path_size bytes; NULL if none was */
    size_t path_size;
    uint64_t serial; /* from ctx->serial. A module that is made later at the same address has another one. */
};

/* A field of m's table; 0 or NULL if the table is of a version that had no such field. */
#define TG_MODULE_OP(m, field)                                                                                         \
    (offsetof(tg_module_ops, field) + sizeof(m)->ops->field <= (m)->ops->size ? (m)->ops->field : 0)

bool tg_module_ok(const tg_module *m); /* whether m is not inert and its context has no error */
bool tg_module_is_running(const tg_module *m); /* whether m or a module in it runs its forward */
/* Removes m from its parent, which no longer owns it. Does nothing if m has no parent. */
void tg_module_leave_parent(tg_module *m);
/* Fails unless m can get an entry of that name. `who` is the function that the caller called. */
tg_status tg_module_check_name(const tg_module *m, const char *name, const char *who);
/* Adds an empty entry to m. Returns NULL after recording an error. */
tg_module_entry *tg_module_add_entry(tg_module *m, const char *name);
/* Return whether m was made by tg_nn_linear or tg_nn_embedding and has no hooks. The forward of m's parent may then use
 * m's parameters in an op of its own instead of calling m. Any other module must be called. */
bool tg_is_own_linear(const tg_module *m);
bool tg_is_own_embedding(const tg_module *m);
bool tg_is_linear(const tg_module *m); /* whether m was made by tg_nn_linear; it may have hooks */
/* Creates a module with these ops and the parameters of tg_nn_linear. ops->free releases state. On error
 * returns an inert module. */
tg_module *tg_linear_module(tg_ctx *ctx, const tg_module_ops *ops, void *state, int64_t in, int64_t out, bool bias,
                            double std);
size_t tg_linear_describe(const tg_module *m, char *buf, size_t n); /* `describe` of such a module */

/* ---- module_children.c ---- */

/* Returns the entry of m, or of the module that m wraps, whose name is the first n bytes of `name`; NULL if there is
 * none. */
tg_module_entry *tg_module_entry_of(const tg_module *m, const char *name, size_t n);
/* Returns the parameter or buffer of that name that m itself has or, if m is a wrapper, that the module in it has. NULL
 * if there is none. */
tg_tensor *tg_module_own(const tg_module *m, const char *name);
/* Adds m as the child "" of a wrapper, which owns it from then on. Errors are as for tg_module_add_child; who: the
 * public function, for errors. */
tg_status tg_module_wrap(tg_module *wrapper, tg_module *m, const char *who);
/* Does the same for an m that may be the child of a module: the wrapper takes its place there. On an error m is where
 * it was. */
tg_status tg_module_wrap_in_place(tg_module *wrapper, tg_module *m);
/* Undoes tg_module_wrap_in_place: the module that the wrapper holds takes the wrapper's place again. The caller then
 * owns the wrapper. Works after an error of the context too. */
void tg_module_unwrap(tg_module *wrapper);
/* Writes to out[] the modules in m, in the order of the state dict, for which is(user, module) returns true. Returns
 * their number. out may be NULL. */
int tg_module_collect(const tg_module *m, bool (*is)(const void *user, const tg_module *m), const void *user,
                      tg_module **out);
/* Returns the module that a wrapper holds. NULL if m is no wrapper, or if that module was freed. */
tg_module *tg_module_wrapped(const tg_module *m);

/* ---- captured.c ---- */

bool tg_is_captured(const tg_module *m); /* whether m was made by tg_captured_new */

/* ---- state_dict.c ---- */

/* Returns tensor i of a list, and sets *path as tg_module_param does. `who` is the function that the caller called. */
tg_tensor *tg_state_at(const tg_module *m, tg_state_list list, int i, const char **path, const char *who);
int tg_state_count(const tg_module *m, tg_state_list list);
/* Resets the cursors of m and of every module that contains m. Must be called when the entries of m change. */
void tg_module_reset_cursors(tg_module *m);
/* Writes the path from root to entry e of m, and returns its length. Components that do not fit are left out; the
 * length is that of the whole path. */
size_t tg_module_path(const tg_module *root, const tg_module *m, const tg_module_entry *e, char *buf, size_t size);

/* ---- forward.c ---- */

/* Sets the tape to the mode that m runs in. Returns whether the tape was in training mode before. */
bool tg_module_use_mode(const tg_module *m, tg_tape *t);
/* Begin and end a run of m, for functions that run a module without its `forward` or `call`. tg_module_enter sets the
 * tape to m's mode and calls the hooks on the inputs, which may replace x[]. tg_module_leave must follow, even after
 * an error. It calls the hooks on the outputs, unless there was an error, and restores the mode. Both return the
 * context's status. */
tg_status tg_module_enter(tg_module *m, tg_tape *t, tg_tensor **x, int n, bool *training);
tg_status tg_module_leave(tg_module *m, tg_tape *t, tg_tensor **x, int n, bool training);
/* Returns a child that m's forward needs. If it was freed, records the error and returns NULL. Returns NULL if m is
 * NULL. */
tg_module *tg_module_part(const tg_module *m, const char *name);
/* Runs the forward of m's child of that name. Returns an inert tensor on an error, such as a child that is missing. */
tg_tensor *tg_module_run(const tg_module *m, const char *child, tg_tape *t, tg_tensor *x);
/* Does what tg_module_call does, without a scope and without the checks of the tape and the tensors. Hooks may replace
 * in[]. On an error out[] is undefined. */
tg_status tg_module_run_call(tg_module *m, tg_tape *t, tg_tensor **in, int n_in, tg_tensor **out, int n_out);

/* ---- module_hooks.c ---- */

tg_status tg_call_hooks_run(tg_module *m, tg_module_when when, tg_tape *t, tg_tensor **x, int n);
/* Removes a hook, also after an error of the context. Returns false if m has no hook of this number. */
bool tg_call_hook_drop(tg_module *m, uint64_t id);
void tg_call_hooks_sweep(tg_module *m); /* frees the hooks that were removed, unless m is running */
void tg_call_hooks_free(tg_module *m);

#endif
