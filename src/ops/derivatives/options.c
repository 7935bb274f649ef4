/* The struct of options of tg_grad. */
#include <tapegrad/backward.h>

#include "base/options.h"

static const tg_field grad_fields[] = {
    TG_FIELD_OF(tg_grad_opts, seeds, POINTER, "tg_tensor*",
                "One gradient for each root, with which backward starts; NULL: the default seeds."),
    TG_FIELD(tg_grad_opts, retain, BOOL, "Keeps the saved tensors, so that backward can run again."),
    TG_FIELD(tg_grad_opts, create_graph, BOOL,
             "Records how the gradients are computed, so that they can be differentiated again."),
    TG_FIELD(tg_grad_opts, allow_unused, BOOL, "An input on which no root depends gets zeros instead of an error."),
};
const tg_struct tg_grad_opts_struct = TG_STRUCT(tg_grad_opts, GRAD, grad_fields, "Options of tg_grad.");
