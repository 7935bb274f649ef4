/* Fine-tuning: adapters, parameters and groups by patterns, and mapped files. */
#include <tapegrad/io.h>
#include <tapegrad/lm.h>
#include <tapegrad/lora.h>

#include "misuse/misuse.h"

static void applying(misuse_world *b) {
    tg_module *m = tg_nn_sequential(b->ctx), *far = tg_nn_linear(b->far, 3, 2, true, 1);
    tg_lora_opts zero = {0}, later = {TG_LORA_DEFAULTS};
    later.size += 8;
    QUIET(tg_lora_apply, tg_lora_apply(NULL, NULL) == TG_ERR_ARGUMENT);
    QUIET(tg_lora_count, tg_lora_count(NULL) == 0 && tg_lora_count(m) == 0 && tg_lora_count(far) == 0);
    FAILS(tg_lora_apply, ARGUMENT, "has no linear layer to adapt", tg_lora_apply(m, NULL));
    FAILS(tg_lora_apply, ARGUMENT, "targets is \",\", which has no pattern", tg_lora_apply(m, TG_LORA(.targets = ",")));
    tg_sequential_add(m, tg_nn_linear(b->ctx, 3, 2, true, 1));
    FAILS(tg_lora_apply, ARGUMENT, "size is 0", tg_lora_apply(m, &zero));
    FAILS(tg_lora_apply, ARGUMENT, "this library knows", tg_lora_apply(m, &later));
    FAILS(tg_lora_apply, ARGUMENT, "rank is 0, expected 1 or more", tg_lora_apply(m, TG_LORA(.rank = 0)));
    FAILS(tg_lora_apply, ARGUMENT, "alpha is 0, expected a number above 0", tg_lora_apply(m, TG_LORA(.alpha = 0)));
    FAILS(tg_lora_apply, ARGUMENT, "alpha is nan", tg_lora_apply(m, TG_LORA(.alpha = NAN)));
    FAILS(tg_lora_apply, ARGUMENT, "dropout is 1, expected 0 or more", tg_lora_apply(m, TG_LORA(.dropout = 1)));
    FAILS(tg_lora_apply, ARGUMENT,
          "the target \"1\" matches no linear layer of the \"sequential\"; its first linear "
          "layer is \"0\"",
          tg_lora_apply(m, TG_LORA(.targets = "0,1")));
    FAILS(tg_lora_merge, STATE, "the \"sequential\" has no adapters; call tg_lora_apply", tg_lora_merge(m));
    FAILS(tg_lora_unmerge, STATE, "has no adapters", tg_lora_unmerge(m));
    FAILS(tg_lora_remove, STATE, "has no adapters", tg_lora_remove(m));
    FAILS(tg_lora_save, STATE, "has no adapters", tg_lora_save(m, b->dir, NULL));
    QUIET(tg_lora_merge, tg_lora_merge(NULL) == TG_ERR_ARGUMENT && tg_lora_unmerge(NULL) == TG_ERR_ARGUMENT);
    QUIET(tg_lora_remove, tg_lora_remove(NULL) == TG_ERR_ARGUMENT);
    tg_lora_apply(m, NULL);
    FAILS(tg_lora_apply, STATE, "has 1 adapter already; call tg_lora_remove first", tg_lora_apply(m, NULL));
    tg_module_free(m);
    tg_module_free(far);
}

static void files(misuse_world *b) {
    tg_module *m = tg_nn_sequential(b->ctx),
              *lm =
                  tg_lm_new(b->ctx, TG_LM(.vocab = 5, .layers = 2, .heads = 2, .hidden = 4, .positions = 8, .key = 91));
    char nowhere[512];
    snprintf(nowhere, sizeof nowhere, "%s/no/such", b->dir);
    tg_sequential_add(m, tg_nn_linear(b->ctx, 3, 2, true, 1));
    QUIET(tg_lora_load, tg_lora_load(NULL, b->dir) == TG_ERR_ARGUMENT);
    FAILS(tg_lora_load, ARGUMENT, "dir is NULL", tg_lora_load(m, NULL));
    FAILS(tg_lora_load, IO, "no/such/adapter_config.json", tg_lora_load(m, nowhere));
    tg_lora_apply(m, NULL);
    QUIET(tg_lora_save, tg_lora_save(NULL, b->dir, NULL) == TG_ERR_ARGUMENT);
    FAILS(tg_lora_save, ARGUMENT, "dir is NULL", tg_lora_save(m, NULL, NULL));
    FAILS(tg_lora_save, ARGUMENT, "base is not UTF-8", tg_lora_save(m, nowhere, "\xff"));
    FAILS(tg_lora_save, IO, "no/such/adapter_model.safetensors", tg_lora_save(m, nowhere, NULL));
    FAILS(tg_lora_load, STATE, "has 1 adapter already", tg_lora_load(m, b->dir));
    QUIET(tg_lm_map, tg_lm_map(NULL, 1, b->dir) == TG_ERR_ARGUMENT);
    FAILS(tg_lm_map, ARGUMENT, "tg_lm_map: module 0 is not a language model", tg_lm_map(&m, 1, b->dir));
    FAILS(tg_lm_map, ARGUMENT, "tg_lm_map: dir is NULL", tg_lm_map(&lm, 1, NULL));
    FAILS(tg_lm_map, IO, "no/such/model.safetensors", tg_lm_map(&lm, 1, nowhere));
    QUIET(tg_mapping_fault,
          !tg_mapping_fault(NULL, b) && !tg_mapping_fault(b->ctx, b) && !tg_mapping_fault(b->ctx, NULL));
    tg_module_free(m);
    tg_module_free(lm);
}

static void patterns(misuse_world *b) {
    tg_module *m = tg_nn_linear(b->ctx, 3, 2, true, 1);
    tg_tensor *p[2];
    tg_module_params(m, p, 2);
    tg_optim *o = tg_sgd_new(b->ctx, p, 2, TG_SGD(.lr = 1));
    QUIET(tg_module_train, tg_module_train(NULL, "weight", true) < 0);
    GIVES(tg_module_train, ARGUMENT, "patterns is \"(NULL)\"", tg_module_train(m, NULL, true) < 0);
    GIVES(tg_module_train, ARGUMENT, "patterns is \"\"", tg_module_train(m, "", true) < 0);
    GIVES(tg_module_train, ARGUMENT,
          "the pattern \"wight\" matches no parameter of the \"linear\"; parameters have names "
          "such as \"weight\"",
          tg_module_train(m, "bias,wight", false) < 0);
    QUIET(tg_module_train, tg_requires_grad(p[1]));
    QUIET(tg_optim_assign_named, tg_optim_assign_named(NULL, 0, "weight") < 0);
    GIVES(tg_optim_assign_named, ARGUMENT, "group is 1, expected 0 to 0", tg_optim_assign_named(o, 1, "weight") < 0);
    GIVES(tg_optim_assign_named, ARGUMENT, "patterns is \"(NULL)\"", tg_optim_assign_named(o, 0, NULL) < 0);
    GIVES(tg_optim_assign_named, ARGUMENT,
          "the pattern \"wight\" matches no parameter of the optimizer; the first one has "
          "the name \"weight\"",
          tg_optim_assign_named(o, 0, "wight") < 0);
    tg_optim_free(o);
    tg_module_free(m);
}

void misuse_lora(misuse_world *b) {
    applying(b);
    files(b);
    patterns(b);
}
