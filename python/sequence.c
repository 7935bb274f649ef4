/* Records calls of ops and runs them again (sequence.h). A sequence has slots for tensors: first its inputs, then
 * constants and results in the order in which they occur. */
#include "sequence.h"

#include <stdlib.h>
#include <string.h>

enum { ABSENT = -1 };

typedef struct slot {
    tgpy_box *constant; /* the box of a constant, which the sequence owns; NULL for inputs and results */
    tg_tensor *x;       /* the tensor: that of the recording, or that of the current run */
    int last;           /* the last step that reads or makes x; n_steps if x is a result of the sequence */
    bool own;           /* in a run: the run made x, and has to release it */
} slot;

typedef struct step {
    tg_op_binding op;
    int n_in, n_out;
    int *in;          /* slots of the inputs, then of the values (ABSENT if not a tensor), then of the outputs */
    tg_value *values; /* texts and lists are copies */
    bool training;
    int n_ended, *ended; /* slots that no later step reads */
} step;

struct tgpy_sequence {
    tgpy_world *world;
    step *steps;
    slot *slots;
    tg_tensor **operands; /* inputs, values and outputs of the step that runs: at most `widest` tensors */
    int *out;             /* slots of the results of the sequence */
    int n_steps, n_slots, n_in, n_out, widest;
    bool broken; /* it cannot be run: see tgpy_sequence_end */
};

static int *values_of(const step *s) { return s->in + s->n_in; }
static int *outputs_of(const step *s) { return s->in + s->n_in + s->op.n; }

/* Returns calloc's memory for n elements, at least one. Marks the sequence broken if there is none. */
static void *made(tgpy_sequence *s, int n, size_t size) {
    void *p = calloc((size_t)n + 1, size);
    if (!p) s->broken = true;
    return p;
}

/* Makes room for one more element of an array of n, whose capacity is n if that is a power of 2, else the next one.
 * Returns the array; NULL, with the sequence marked broken, if there is no memory. */
static void *room(tgpy_sequence *s, void *array, int n, size_t size) {
    if (n & (n - 1)) return array;
    void *p = realloc(array, (n ? 2 * (size_t)n : 1) * size);
    if (!p) s->broken = true;
    return p;
}

/* ---- Recording ---- */

/* Adds a slot. Its handle is held while the sequence is recorded, so that no other tensor can get the same one. */
static int add(tgpy_sequence *s, tg_tensor *x, tgpy_box *constant) {
    slot *slots = room(s, s->slots, s->n_slots, sizeof *slots);
    if (!slots) return ABSENT;
    s->slots = slots;
    slots[s->n_slots] = (slot){.constant = constant ? tgpy_box_share(constant) : NULL, .x = x};
    tg_hold(x);
    return s->n_slots++;
}

static int find(const tgpy_sequence *s, const tg_tensor *x) {
    for (int i = s->n_slots - 1; i >= 0; i--)
        if (s->slots[i].x == x) return i;
    return ABSENT;
}

/* Returns the slot of an operand. An unknown one becomes a constant; if it is on a tape, a call that was not recorded
 * made it. */
static int operand(tgpy_sequence *s, tgpy_box *b) {
    tg_tensor *x = tgpy_tensor(b);
    if (!x) return ABSENT;
    int at = find(s, x);
    if (at != ABSENT) return at;
    if (tgpy_tape_of_box(b)) s->broken = true;
    return add(s, x, b);
}

static void *copied(tgpy_sequence *s, const void *bytes, size_t n) {
    void *p = made(s, (int)n, 1);
    return p ? memcpy(p, bytes, n) : NULL;
}

static tg_value copy_value(tgpy_sequence *s, tg_value v) {
    if (v.kind == TG_VALUE_TEXT)
        v.text = copied(s, v.text, strlen(v.text) + 1);
    else if (v.kind == TG_VALUE_LIST)
        v.list = copied(s, v.list, (size_t)v.n * sizeof *v.list);
    else if (v.kind == TG_VALUE_POINTER)
        s->broken = true;
    return v;
}

tgpy_sequence *tgpy_sequence_begin(tgpy_world *w, tgpy_box *const *in, int n) {
    tgpy_sequence *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    tgpy_world_keep(w);
    s->world = w;
    for (int i = 0; i < n; i++) add(s, tgpy_tensor(in[i]), NULL);
    s->n_in = n;
    tgpy_set_recording(w, s);
    return s;
}

void tgpy_sequence_note(tgpy_sequence *s, const tg_op_binding *op, tgpy_box *const *in, int n_in,
                        const tg_value *values, int n_out) {
    step *steps = s->broken ? NULL : room(s, s->steps, s->n_steps, sizeof *steps);
    if (!steps) return;
    s->steps = steps;
    step *now = &steps[s->n_steps++];
    *now = (step){.op = *op, .n_in = n_in, .n_out = n_out, .training = tgpy_training(s->world)};
    int n = n_in + op->n + n_out;
    now->in = made(s, n, sizeof *now->in);
    now->values = made(s, op->n, sizeof *now->values);
    if (s->broken) return;
    if (n > s->widest) s->widest = n;
    for (int i = 0; i < n_in; i++) now->in[i] = operand(s, in[i]);
    for (int i = 0; i < op->n; i++) {
        bool tensor = values[i].kind == TG_VALUE_TENSOR;
        values_of(now)[i] = tensor ? operand(s, (tgpy_box *)values[i].pointer) : ABSENT;
        now->values[i] = tensor ? values[i] : copy_value(s, values[i]);
    }
}

void tgpy_sequence_note_results(tgpy_sequence *s, tg_tensor *const *y) {
    if (!y) s->broken = true;
    if (s->broken) return;
    step *now = &s->steps[s->n_steps - 1];
    for (int i = 0; i < now->n_out; i++) {
        int at = find(s, y[i]); /* the result may be an operand */
        outputs_of(now)[i] = at == ABSENT ? add(s, y[i], NULL) : at;
    }
}

/* Finds for each step the slots that no later step uses. */
static void find_ends(tgpy_sequence *s) {
    for (int i = 0; i < s->n_steps; i++)
        for (int k = 0, n = s->steps[i].n_in + s->steps[i].op.n + s->steps[i].n_out; k < n; k++)
            if (s->steps[i].in[k] != ABSENT) s->slots[s->steps[i].in[k]].last = i;
    for (int i = 0; i < s->n_out; i++) s->slots[s->out[i]].last = s->n_steps;
    for (int i = s->n_in; i < s->n_slots; i++) {
        const slot *ending = &s->slots[i];
        if (ending->constant || ending->last == s->n_steps) continue;
        step *at = &s->steps[ending->last];
        int *ended = room(s, at->ended, at->n_ended, sizeof *ended);
        if (!ended) return;
        at->ended = ended;
        ended[at->n_ended++] = i;
    }
}

bool tgpy_sequence_end(tgpy_sequence *s, tgpy_box *const *out, int n) {
    tgpy_set_recording(s->world, NULL);
    s->out = made(s, n, sizeof *s->out);
    s->operands = made(s, s->widest, sizeof *s->operands);
    for (s->n_out = 0; !s->broken && s->n_out < n; s->n_out++) s->out[s->n_out] = operand(s, out[s->n_out]);
    if (!s->broken) find_ends(s);
    for (int i = 0; i < s->n_slots; i++) {
        tg_unhold(s->slots[i].x);
        s->slots[i].x = tgpy_tensor(s->slots[i].constant);
    }
    return !s->broken;
}

void tgpy_sequence_free(tgpy_sequence *s) {
    if (!s) return;
    for (int i = 0; i < s->n_slots; i++)
        if (s->slots[i].constant) tgpy_box_drop(s->slots[i].constant);
    for (int i = 0; i < s->n_steps; i++) {
        step *at = &s->steps[i];
        for (int k = 0; at->values && k < at->op.n; k++)
            if (at->values[k].kind == TG_VALUE_TEXT || at->values[k].kind == TG_VALUE_LIST)
                free((void *)at->values[k].pointer);
        free(at->in);
        free(at->values);
        free(at->ended);
    }
    free(s->steps);
    free(s->slots);
    free(s->operands);
    free(s->out);
    tgpy_world_drop(s->world);
    free(s);
}

/* ---- Runs ---- */

/* Puts the results of a step into its slots. If a result is an operand that has another slot, two slots have the same
 * tensor, and the run releases it through neither. */
static void keep_results(tgpy_sequence *s, const step *now) {
    const int *out = outputs_of(now);
    tg_tensor *const *y = s->operands + now->n_in + now->op.n;
    for (int i = 0; i < now->n_out; i++) {
        slot *result = &s->slots[out[i]];
        bool own = true;
        for (int k = 0; k < now->n_in + now->op.n; k++)
            if (s->operands[k] == y[i] && now->in[k] != out[i])
                own = s->slots[now->in[k]].own = false;
            else if (s->operands[k] == y[i])
                own = result->own;
        result->x = y[i];
        result->own = own;
    }
}

static tg_status run_step(tgpy_sequence *s, step *now, tg_tape *t) {
    int n = now->n_in + now->op.n;
    for (int i = 0; i < n; i++) s->operands[i] = now->in[i] == ABSENT ? NULL : s->slots[now->in[i]].x;
    for (int i = 0; i < now->op.n; i++)
        if (now->values[i].kind == TG_VALUE_TENSOR) now->values[i].tensor = s->operands[now->n_in + i];
    tg_status status = tg_op_call_bound(t, &now->op, s->operands, now->n_in, now->values, s->operands + n, now->n_out);
    if (status == TG_OK) keep_results(s, now);
    return status;
}

static void end_slot(slot *ended) {
    if (ended->own) tg_release(ended->x);
    ended->own = false;
}

static void end_slots(tgpy_sequence *s, const step *now) {
    for (int i = 0; i < now->n_ended; i++) end_slot(&s->slots[now->ended[i]]);
}

/* Boxes the results. Inputs and constants have a box already. If there is no memory, sets no result. */
static tg_status give(tgpy_sequence *s, tgpy_tape *t, tgpy_box *const *in, tgpy_box **out) {
    for (int i = 0; i < s->n_out; i++) {
        slot *result = &s->slots[s->out[i]];
        tgpy_box *known = s->out[i] < s->n_in ? in[s->out[i]] : result->constant;
        for (int k = 0; !known && k < i; k++)
            if (s->out[k] == s->out[i]) known = out[k];
        out[i] = known ? tgpy_box_share(known) : tgpy_box_new(s->world, t, result->x, !result->own);
        if (!out[i]) {
            while (i--) {
                tgpy_box_drop(out[i]);
                out[i] = NULL;
            }
            return TG_ERR_MEMORY;
        }
        result->own = false;
    }
    return TG_OK;
}

/* Runs the steps in the mode, training or evaluation, that each was recorded in. */
static tg_status run_steps(tgpy_sequence *s, tgpy_box *const *in, tgpy_tape **t) {
    tg_status status = TG_OK;
    bool training = tgpy_training(s->world), mode = training;
    for (int i = 0; i < s->n_steps && status == TG_OK; i++) {
        if (s->steps[i].training != mode) {
            tgpy_set_training(s->world, mode = s->steps[i].training);
            *t = tgpy_ready(s->world, in, s->n_in);
        }
        status = run_step(s, &s->steps[i], tgpy_tape_of(*t));
        end_slots(s, &s->steps[i]);
    }
    tgpy_set_training(s->world, training);
    return status;
}

static tg_status run(tgpy_sequence *s, tgpy_box *const *in, tgpy_box **out) {
    tgpy_tape *t = tgpy_ready(s->world, in, s->n_in);
    if (!t) return TG_ERR_HANDLE;
    for (int i = 0; i < s->n_in; i++) s->slots[i].x = tgpy_tensor(in[i]);
    tg_status status = run_steps(s, in, &t);
    if (status == TG_OK) status = give(s, t, in, out);
    for (int i = s->n_in; status != TG_OK && i < s->n_slots; i++) end_slot(&s->slots[i]);
    return status;
}

tg_status tgpy_sequence_run(tgpy_sequence *s, tgpy_box *const *in, tgpy_box **out) {
    if (!tgpy_enter(s->world)) return TG_ERR_STATE;
    tg_status status = run(s, in, out);
    tgpy_leave(s->world);
    return status;
}
