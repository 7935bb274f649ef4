/* Plans of products. A plan holds cuBLASLt's description and algorithm, and is made once for each distinct product. The
 * algorithm is the first that the heuristic returns, never one that was timed, so that two runs give the same bits. */
#include "kernels/cuda/gemm_plans.h"

#include <string.h>

#include "base/memory/host_memory.h"
#include "base/runtime.h"

/* A hash table with open addressing. When it holds MOST_PLANS plans, all are dropped: a program with that many shapes
 * repeats few of them. */
enum { SLOTS = 2048, MOST_PLANS = 1024 };

struct tg_cuda_plan {
    tg_cuda_product of;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algo;
    size_t space; /* bytes of workspace */
    bool works;   /* false: cuBLASLt has no algorithm, or has refused it */
};

struct tg_cuda_plans {
    tg_cuda_plan *slot[SLOTS];
    int n;
};

static void plan_free(tg_ctx *ctx, tg_cuda_plan *p) {
    if (p->a) cublasLtMatrixLayoutDestroy(p->a);
    if (p->b) cublasLtMatrixLayoutDestroy(p->b);
    if (p->d) cublasLtMatrixLayoutDestroy(p->d);
    if (p->desc) cublasLtMatmulDescDestroy(p->desc);
    tg_host_free(ctx, p, sizeof *p);
}

static void forget_all(tg_cuda *c) {
    for (int i = 0; i < SLOTS; i++)
        if (c->plans->slot[i]) plan_free(c->ctx, c->plans->slot[i]);
    memset(c->plans, 0, sizeof *c->plans);
}

static tg_status blas_check(tg_ctx *ctx, cublasStatus_t s, const char *call) {
    if (TG_LIKELY(s == CUBLAS_STATUS_SUCCESS)) return TG_OK;
    cudaGetLastError();
    return tg_fail(ctx, s == CUBLAS_STATUS_ALLOC_FAILED ? TG_ERR_MEMORY : TG_ERR_DEVICE, "%s: %s", call,
                   cublasLtGetStatusString(s));
}

tg_status tg_cuda_plans_open(tg_cuda *c) {
    TG_TRY(blas_check(c->ctx, cublasLtCreate(&c->lt), "cublasLtCreate"));
    c->plans = tg_host_alloc(c->ctx, sizeof *c->plans);
    return c->plans ? TG_OK : tg_runtime_of(c->ctx)->status;
}

void tg_cuda_plans_close(tg_cuda *c) {
    if (c->plans) {
        forget_all(c);
        tg_host_free(c->ctx, c->plans, sizeof *c->plans);
        c->plans = NULL;
    }
    if (c->lt) cublasLtDestroy(c->lt);
}

/* ---- Descriptions ---- */

static cudaDataType_t type_of(tg_dtype d) {
    return d == TG_F64 ? CUDA_R_64F : d == TG_BF16 ? CUDA_R_16BF : d == TG_F16 ? CUDA_R_16F : CUDA_R_32F;
}

static tg_status layout(tg_ctx *ctx, cublasLtMatrixLayout_t *l, tg_dtype d, int64_t rows, int64_t cols, int64_t ld,
                        int64_t batch, int64_t step) {
    int32_t count = (int32_t)batch;
    TG_TRY(blas_check(ctx, cublasLtMatrixLayoutCreate(l, type_of(d), (uint64_t)rows, (uint64_t)cols, ld),
                              "cublasLtMatrixLayoutCreate"));
    if (batch == 1) return TG_OK;
    TG_TRY(blas_check(
        ctx, cublasLtMatrixLayoutSetAttribute(*l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count),
        "cublasLtMatrixLayoutSetAttribute"));
    return blas_check(
        ctx, cublasLtMatrixLayoutSetAttribute(*l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step, sizeof step),
        "cublasLtMatrixLayoutSetAttribute");
}

static tg_status set(tg_ctx *ctx, cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t what, const void *value,
                     size_t size) {
    return blas_check(ctx, cublasLtMatmulDescSetAttribute(desc, what, value, size),
                              "cublasLtMatmulDescSetAttribute");
}

static bool has_bias(const tg_cuda_product *p) {
    return p->epilogue != CUBLASLT_EPILOGUE_DEFAULT && (p->epilogue & CUBLASLT_EPILOGUE_BIAS);
}
static bool has_aux(const tg_cuda_product *p) {
    return p->epilogue == CUBLASLT_EPILOGUE_GELU_AUX || p->epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}

/* Makes cuBLASLt's descriptors of the product. Sums run in float32, without TF32, or in float64 for float64. */
static tg_status describe(tg_ctx *ctx, tg_cuda_plan *plan) {
    const tg_cuda_product *p = &plan->of;
    bool f64 = p->in == TG_F64, ta = p->op_a == CUBLAS_OP_T, tb = p->op_b == CUBLAS_OP_T;
    cudaDataType_t type = type_of(p->out);
    /* A pointer that is never followed: the heuristic looks only at its alignment. */
    const void *some = (const void *)(uintptr_t)TG_CUDA_EPILOGUE_ALIGN;
    TG_TRY(blas_check(ctx,
                              cublasLtMatmulDescCreate(&plan->desc, f64 ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                                                       f64 ? CUDA_R_64F : CUDA_R_32F),
                              "cublasLtMatmulDescCreate"));
    TG_TRY(set(ctx, plan->desc, CUBLASLT_MATMUL_DESC_TRANSA, &p->op_a, sizeof p->op_a));
    TG_TRY(set(ctx, plan->desc, CUBLASLT_MATMUL_DESC_TRANSB, &p->op_b, sizeof p->op_b));
    TG_TRY(set(ctx, plan->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &p->epilogue, sizeof p->epilogue));
    if (has_bias(p)) {
        TG_TRY(set(ctx, plan->desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, sizeof type));
        TG_TRY(set(ctx, plan->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &some, sizeof some));
    }
    if (has_aux(p)) {
        TG_TRY(set(ctx, plan->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &some, sizeof some));
        TG_TRY(set(ctx, plan->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &p->ld_aux, sizeof p->ld_aux));
        TG_TRY(set(ctx, plan->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE, &p->step_aux, sizeof p->step_aux));
    }
    TG_TRY(layout(ctx, &plan->a, p->in, ta ? p->k : p->m, ta ? p->m : p->k, p->lda, p->batch, p->step_a));
    TG_TRY(layout(ctx, &plan->b, p->in, tb ? p->n : p->k, tb ? p->k : p->n, p->ldb, p->batch, p->step_b));
    return layout(ctx, &plan->d, p->out, p->m, p->n, p->ldd, p->batch, p->step_d);
}

/* Sets what an algorithm may use. If it splits k, it must add the parts in the compute type, in a fixed order; schemes
 * that add in the type of D are excluded. */
static tg_status prefer(tg_ctx *ctx, cublasLtMatmulPreference_t want, const tg_cuda_product *p) {
    uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    uint64_t space = tg_cuda_of(ctx)->lt_bytes;
    const struct {
        cublasLtMatmulPreferenceAttributes_t what;
        const void *value;
        size_t size;
    } all[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &space, sizeof space},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &p->align_a, sizeof p->align_a},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &p->align_b, sizeof p->align_b},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &p->align_d, sizeof p->align_d},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &p->align_d, sizeof p->align_d},
    };
    for (int i = 0; i < TG_LEN(all); i++)
        TG_TRY(blas_check(
            ctx, cublasLtMatmulPreferenceSetAttribute(want, all[i].what, all[i].value, all[i].size),
            "cublasLtMatmulPreferenceSetAttribute"));
    return TG_OK;
}

/* Finds the plan's algorithm. There may be none, which is not an error. */
static tg_status choose(tg_ctx *ctx, tg_cuda_plan *plan) {
    cublasLtMatmulPreference_t want = NULL;
    cublasLtMatmulHeuristicResult_t found;
    int n = 0;
    TG_TRY(blas_check(ctx, cublasLtMatmulPreferenceCreate(&want), "cublasLtMatmulPreferenceCreate"));
    tg_status s = prefer(ctx, want, &plan->of);
    if (s == TG_OK) {
        cublasStatus_t e = cublasLtMatmulAlgoGetHeuristic(tg_cuda_of(ctx)->lt, plan->desc, plan->a, plan->b, plan->d,
                                                          plan->d, want, 1, &found, &n);
        bool none = e == CUBLAS_STATUS_NOT_SUPPORTED || e == CUBLAS_STATUS_INVALID_VALUE;
        s = none ? TG_OK : blas_check(ctx, e, "cublasLtMatmulAlgoGetHeuristic");
        plan->works = !none && n > 0 && found.state == CUBLAS_STATUS_SUCCESS;
    }
    if (plan->works) {
        plan->algo = found.algo;
        plan->space = found.workspaceSize;
    }
    cublasLtMatmulPreferenceDestroy(want);
    return s;
}

/* ---- The table ---- */

static uint64_t hash(const tg_cuda_product *p) {
    const unsigned char *at = (const unsigned char *)p;
    uint64_t h = 0xcbf29ce484222325u, word;
    for (size_t i = 0; i + sizeof word <= sizeof *p; i += sizeof word) {
        memcpy(&word, at + i, sizeof word);
        h = (h ^ word) * 0x9e3779b97f4a7c15u;
        h ^= h >> 32;
    }
    return h;
}
_Static_assert(sizeof(tg_cuda_product) % sizeof(uint64_t) == 0, "the hash takes whole words");

static tg_cuda_plan **slot_of(struct tg_cuda_plans *plans, const tg_cuda_product *p) {
    uint64_t i = hash(p) % SLOTS;
    while (plans->slot[i] && memcmp(&plans->slot[i]->of, p, sizeof *p)) i = (i + 1) % SLOTS;
    return &plans->slot[i];
}

tg_status tg_cuda_plan_of(tg_ctx *ctx, const tg_cuda_product *p, tg_cuda_plan **plan) {
    tg_cuda *c = tg_cuda_of(ctx);
    tg_cuda_plan **slot = slot_of(c->plans, p), *made = *slot;
    if (TG_UNLIKELY(!made)) {
        if (c->plans->n == MOST_PLANS) {
            forget_all(c);
            slot = slot_of(c->plans, p);
        }
        made = tg_host_alloc(ctx, sizeof *made);
        if (!made) return tg_runtime_of(ctx)->status;
        made->of = *p;
        tg_status s = describe(ctx, made);
        if (s == TG_OK) s = choose(ctx, made);
        if (s != TG_OK) {
            plan_free(ctx, made);
            return s;
        }
        *slot = made;
        c->plans->n++;
    }
    *plan = made->works ? made : NULL;
    return TG_OK;
}

tg_status tg_cuda_plan_run(tg_ctx *ctx, tg_cuda_plan *p, const tg_cuda_operands *o, bool *refused) {
    tg_cuda *c = tg_cuda_of(ctx);
    bool f64 = p->of.in == TG_F64;
    float alpha = (float)o->alpha, beta = (float)o->beta;
    const void *by = f64 ? (const void *)&o->alpha : &alpha, *plus = f64 ? (const void *)&o->beta : &beta;
    if (has_bias(&p->of)) TG_TRY(set(ctx, p->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &o->bias, sizeof o->bias));
    if (has_aux(&p->of)) TG_TRY(set(ctx, p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &o->aux, sizeof o->aux));
    cublasStatus_t s = cublasLtMatmul(c->lt, p->desc, by, o->a, p->a, o->b, p->b, plus, o->d, p->d, o->d, p->d,
                                      &p->algo, c->lt_space, p->space, c->compute);
    *refused = s == CUBLAS_STATUS_NOT_SUPPORTED;
    p->works &= !*refused;
    return *refused ? TG_OK : blas_check(ctx, s, "cublasLtMatmul");
}
