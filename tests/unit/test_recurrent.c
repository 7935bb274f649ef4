/* GRU and LSTM: PyTorch's results and gradients, absent states, dropout between layers, calls that are refused, and
 * steps that allocate nothing. tests/reference/recurrent.py prints the tables. */
#include <math.h>

#include <tapegrad/gradcheck.h>
#include <tapegrad/nn.h>

#include "world.h"

enum { S = 3, B = 2, IN = 3, H = 2, LAYERS = 2, D = 2, Y = S * B * D * H, STATE = LAYERS * D * B * H, PARAMS = 16 };

typedef tg_module *(*maker)(tg_ctx *ctx, int64_t in, int64_t hidden, int layers, const tg_rnn_opts *opts);
static const maker makers[2] = {tg_nn_gru, tg_nn_lstm};

/* Element i of tensor k is cos(0.3 i + k). */
static tg_tensor *wave(tg_shape shape, int k) {
    double v[64];
    int64_t n = 1;
    for (int d = 0; d < shape.ndim; d++) n *= shape.dim[d];
    for (int i = 0; i < n; i++) v[i] = cos(0.3 * i + k);
    return tg_from_host(ctx, TG_F64, shape, v);
}

/* Element i of parameter k is sin(0.7 i + k) / 2. */
static tg_module *waves(tg_module *m) {
    double v[64];
    for (int k = 0, n = tg_module_param_count(m); k < n; k++) {
        tg_tensor *p = tg_module_param(m, k, NULL);
        for (int i = 0; i < tg_numel(p); i++) v[i] = 0.5 * sin(0.7 * i + k);
        tg_write_f64(p, v, tg_numel(p));
    }
    return m;
}

static tg_tensor *total(tg_tensor *x) { return tg_sum(t, x, TG_ALL_DIMS, false); }

static void near(double got, double want, const char *what, int i) {
    ck_assert_msg(fabs(got - want) <= 1e-12, "%s, element %d: %.15g, expected %.15g", what, i, got, want);
}

/* ---- PyTorch's numbers ---- */

typedef struct expectation {
    double loss, y[Y], state[2][STATE], grad[PARAMS];
} expectation;

static const expectation expected[2] = {
    {-1.58001306914433,
     {-0.298840412375132,  0.28651502715552,   -0.27046496157059,  -0.741921520338431, -0.0229189790694923,
      0.575491501815156,   -0.158368044772334, -0.761556510308168, -0.100326533256311, 0.442559296459014,
      -0.292569480594672,  -0.483773348267375, 0.032494624974117,  0.556575921964258,  -0.0729132715328725,
      -0.565326780889447,  -0.152354593179657, 0.534618129781634,  0.0778211259988726, -0.176234327500707,
      -0.0809832102188996, 0.582618097680824,  0.259415232486184,  -0.192208091622418},
     {{-0.591228789845303, -0.162835137484159, -0.486320510857705, -0.306104359826581, 0.0175562048601376,
       -0.409432937179872, -0.17349839559401, -0.253415556683495, -0.152354593179657, 0.534618129781634,
       -0.0809832102188996, 0.582618097680824, -0.27046496157059, -0.741921520338431, -0.158368044772334,
       -0.761556510308168}},
     {-1.52684454594998, 0.700606717440639, -1.16806998191785, -0.641904045374054, -0.536483859249982,
      0.181133786045793, -0.019236056019372, 0.00449785136256197, 2.39265424791668, 0.176244561246803,
      0.960314604135116, 0.154429500700722, 0.685033170609853, 0.450730567911241, 0.491727194876892,
      0.319304599101537}},
    {-2.6612537334468,
     {0.142321792530332,  0.379686380833567,  -0.266445215213757,  -0.298548325113226,  0.22103914025229,
      0.412029103917382,  -0.285007953017764, -0.309060844686368,  0.135748661171329,   0.351828554507395,
      -0.20373323255967,  -0.208038650063143, 0.183706325045673,   0.331039136563904,   -0.217802577992235,
      -0.214814320630158, 0.129825775875454,  0.30785762904607,    0.00178355184641505, 0.0286105333172983,
      0.136211203095541,  0.300153735501533,  -0.0542255265283087, 0.0114939065612938},
     {{-0.410492227864006, -0.144907038142019, -0.363730736750306, -0.331993572379008, -0.00709295273265313,
       -0.13739469063336, -0.0937709505330166, -0.104688720437898, 0.129825775875454, 0.30785762904607,
       0.136211203095541, 0.300153735501533, -0.266445215213757, -0.298548325113226, -0.285007953017764,
       -0.309060844686368},
      {-0.737257849887694, -0.212510525051172, -0.522887476511264, -0.461498089515343, -0.0323569660805107,
       -0.493978642496804, -0.203795789820639, -0.537736486937378, 0.205919076220518, 0.60784121800276,
       0.214373880568178, 0.614038333888517, -0.524539704843805, -0.565335019522848, -0.607088935645301,
       -0.564315962852654}},
     {-0.57292885460357, 1.26970538112794, -1.91400089507948, -1.91400089507948, 0.4447089014802, 0.0944376887299985,
      -0.35637335900923, -0.35637335900923, 0.455796120079376, 0.979967258640789, 0.253871769825656, 0.253871769825656,
      1.66210513266479, 0.722697556057882, 1.49277629633982, 1.49277629633982}},
};

static const char *const names[] = {"weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"};

START_TEST(results_and_gradients_are_pytorchs) {
    begin();
    for (int k = 0; k < 2; k++) {
        const expectation *want = &expected[k];
        tg_module *m = waves(makers[k](ctx, IN, H, LAYERS, TG_RNN(.bidirectional = true)));
        tg_tensor *in[3] = {wave(TG_SHAPE(S, B, IN), 1), wave(TG_SHAPE(LAYERS * D, B, H), 2),
                            wave(TG_SHAPE(LAYERS * D, B, H), 3)};
        tg_tensor *out[3];
        ck_assert_int_eq(tg_module_param_count(m), PARAMS);
        tg_module_call(m, t, in, 2 + k, out, 2 + k);
        tg_tensor *loss = total(tg_mul(t, out[0], wave(TG_SHAPE(S, B, D * H), 5)));
        double v[Y];
        tg_read_f64(out[0], v, Y);
        for (int i = 0; i < Y; i++) near(v[i], want->y[i], tg_module_kind(m), i);
        for (int j = 0; j <= k; j++) {
            loss = tg_add(t, loss, total(tg_mul(t, out[1 + j], wave(TG_SHAPE(LAYERS * D, B, H), 6))));
            tg_read_f64(out[1 + j], v, STATE);
            for (int i = 0; i < STATE; i++) near(v[i], want->state[j][i], "state", i);
        }
        near(tg_item(loss), want->loss, "loss", 0);
        tg_backward(t, loss);
        for (int i = 0; i < PARAMS; i++) {
            const char *path;
            tg_tensor *p = tg_module_param(m, i, &path);
            if (i < 4) ck_assert_str_eq(path, names[i]);
            near(tg_item(total(tg_mul(t, tg_grad_of(p), wave(tg_shape_of(p), 7)))), want->grad[i], path, i);
        }
        ck_assert(tg_module_find(m, "bias_hh_l1_reverse") == tg_module_param(m, PARAMS - 1, NULL));
        tg_tape_reset(t);
        tg_module_free(m);
    }
    end();
}
END_TEST

/* ---- Differences ---- */

static tg_status call(void *state, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    int states = strcmp(tg_module_kind(state), "lstm") ? 1 : 2;
    (void)n_in;
    return tg_module_call(state, tape, in, 1 + states, out, n_out);
}

/* With respect to x, the states and all parameters; in first and second order. */
START_TEST(gradients_are_those_of_differences) {
    begin();
    for (int k = 0; k < 2; k++) {
        tg_module *m = waves(makers[k](ctx, 2, 2, 2, TG_RNN(.bidirectional = k == 0)));
        tg_tensor *in[3 + PARAMS] = {wave(TG_SHAPE(2, 1, 2), 1)};
        int n = 1, states = 1 + k;
        for (int i = 0; i < states; i++) in[n++] = wave(TG_SHAPE(k ? 2 : 4, 1, 2), 2 + i);
        for (int i = 0; i < n; i++) tg_set_requires_grad(in[i], true);
        n += tg_module_params(m, in + n, PARAMS);
        ck_assert_msg(tg_gradcheck(t, call, m, in, n, 1 + states, NULL,
                                   TG_GRADCHECK(.strict = true, .second_order = true, .projections = 2)) == TG_OK,
                      "%s", tg_ctx_message(ctx));
        tg_module_free(m);
    }
    end();
}
END_TEST

/* ---- Absent states and biases ---- */

START_TEST(absent_states_and_biases_are_zeros) {
    begin();
    for (int k = 0; k < 2; k++) {
        tg_module *with = waves(makers[k](ctx, IN, H, 1, NULL)),
                  *without = makers[k](ctx, IN, H, 1, TG_RNN(.no_bias = true));
        ck_assert_int_eq(tg_module_param_count(without), 2);
        tg_tensor *zero = tg_zeros(ctx, TG_F64, TG_SHAPE(1, B, H)), *x = wave(TG_SHAPE(S, B, IN), 1), *y[2], *out[3];
        double v[2][S * B * H];
        for (int bias = 1; bias >= 0; bias--) {
            tg_module *m = bias ? with : without;
            for (int i = 0; !bias && i < 2; i++) /* the same weights; the biases of `with` become 0 */
                tg_write_f64(tg_module_param(with, 2 + i, NULL), (double[4 * H]){0},
                             tg_numel(tg_module_param(with, 2, NULL)));
            if (!bias) waves(without);
            y[0] = tg_module_forward(m, t, x);
            tg_module_call(bias ? m : with, t, (tg_tensor *[]){x, zero, zero}, 2 + k, out, 1);
            y[1] = out[0];
            for (int i = 0; i < 2; i++) tg_read_f64(y[i], v[i], S * B * H);
            for (int i = 0; i < S * B * H; i++) near(v[0][i], v[1][i], tg_module_kind(m), i);
        }
        tg_module_call(with, t, (tg_tensor *[]){x, NULL, zero}, 2 + k, out, 2 + k); /* only one of two is there */
        tg_read_f64(out[0], v[0], S * B * H);
        for (int i = 0; i < S * B * H; i++) near(v[0][i], v[1][i], "one state", i);
        tg_tape_reset(t);
        tg_module_free(with);
        tg_module_free(without);
    }
    end();
}
END_TEST

/* ---- Dropout ---- */

/* Returns whether the two tensors have the same bits. */
static bool same(tg_tensor *a, tg_tensor *b) {
    double v[2][Y];
    tg_read_f64(a, v[0], tg_numel(a));
    tg_read_f64(b, v[1], tg_numel(b));
    return !memcmp(v[0], v[1], (size_t)tg_numel(a) * sizeof **v);
}

START_TEST(dropout_is_between_layers_and_in_training) {
    begin();
    tg_module *m = waves(tg_nn_lstm(ctx, IN, H, 2, TG_RNN(.dropout = 0.5))),
              *plain = waves(tg_nn_lstm(ctx, IN, H, 2, NULL));
    tg_tensor *x = wave(TG_SHAPE(S, B, IN), 1), *y[4], *in[1] = {x}, *out[3], *h;
    tg_module_call(plain, t, in, 1, out, 3);
    y[0] = out[0], h = out[1];
    for (int i = 1; i < 3; i++) {
        tg_draws_step(ctx, 1);
        tg_key_open(ctx, 7);
        tg_module_call(m, t, in, 1, out, 3);
        tg_key_close(ctx);
        y[i] = out[0];
    }
    ck_assert(!same(y[0], y[1]) && same(y[1], y[2]));                   /* the draws of a step are the same again */
    ck_assert(same(tg_select(t, h, 0, 0), tg_select(t, out[1], 0, 0))); /* the first layer has none */
    tg_module_set_mode(m, TG_MODE_EVAL);
    ck_assert(same(y[0], tg_module_forward(m, t, x)));
    tg_tape_reset(t);
    tg_module_free(m);
    tg_module_free(plain);
    end();
}
END_TEST

/* ---- Refused calls, printing and allocations ---- */

static void refused(tg_module *m, tg_tensor **in, int n_in, int n_out, const char *says) {
    tg_tensor *out[4];
    ck_assert(tg_module_call(m, t, in, n_in, out, n_out) == TG_ERR_SHAPE);
    ck_says(says);
    ck_assert(!tg_is_alive(out[0]));
    tg_ctx_clear(ctx);
}

START_TEST(other_shapes_are_refused) {
    begin();
    char text[256];
    tg_module *m = tg_nn_gru(ctx, IN, H, 1, TG_RNN(.bidirectional = true));
    tg_tensor *x = wave(TG_SHAPE(S, B, IN), 1), *h = wave(TG_SHAPE(1, B, H), 1), *flat = wave(TG_SHAPE(S, IN), 1),
              *empty = tg_zeros(ctx, TG_F64, TG_SHAPE(0, B, IN));
    refused(m, (tg_tensor *[]){flat}, 1, 1, "gru: input 0 is f64[3, 3], expected [sequence, batch, 3]");
    refused(m, (tg_tensor *[]){empty}, 1, 1,
            "gru: input 0 is f64[0, 2, 3], expected [sequence, batch, 3], none of them 0");
    refused(m, (tg_tensor *[]){x, h}, 2, 1,
            "gru: input 1 is f64[1, 2, 2], expected [2, 2, 2]: layers and directions, batch, hidden");
    refused(m, (tg_tensor *[]){x, h, h}, 3, 1,
            "\"gru\" takes 1 to 2 inputs and gives 1 to 2 outputs, but the call has 3 and 1");
    refused(m, (tg_tensor *[]){x}, 1, 3, "but the call has 1 and 3");
    tg_module_print(m, text, sizeof text);
    ck_assert(strstr(text, "gru (in 3, hidden 2, 1 layer, bidirectional)\n  weight_ih_l0: f64[6, 3]\n"));
    tg_module_free(m);
    end();
}
END_TEST

static int64_t allocations(void) {
    tg_memory_info info = TG_MEMORY_INFO();
    tg_memory_query(ctx, &info);
    return info.host_allocations;
}

START_TEST(a_steady_step_allocates_nothing) {
    begin();
    tg_module *m = tg_nn_lstm(ctx, IN, H, LAYERS, TG_RNN(.bidirectional = true, .dropout = 0.1));
    tg_tensor *x = wave(TG_SHAPE(S, B, IN), 1);
    int64_t before = 0;
    for (int step = 1; step <= 6; step++) {
        tg_draws_step(ctx, (uint64_t)step);
        if (step == 4) before = allocations();
        tg_backward(t, total(tg_module_forward(m, t, x)));
        tg_tape_reset(t);
    }
    ck_assert_int_eq(allocations(), before);
    tg_module_free(m);
    end();
}
END_TEST

int main(void) {
    const TTest *const tests[] = {results_and_gradients_are_pytorchs, gradients_are_those_of_differences,
                                  absent_states_and_biases_are_zeros, dropout_is_between_layers_and_in_training,
                                  other_shapes_are_refused,           a_steady_step_allocates_nothing};
    return tg_check_main("recurrent", tests, sizeof tests / sizeof *tests);
}
