/* The structs of options of backward, and of the tables of functions of a packer. */
#include <tapegrad/backward.h>

#include "base/options.h"

static const tg_field backward_fields[] = {
    TG_FIELD_OF(tg_backward_opts, seeds, POINTER, "tg_tensor*",
                "One gradient for each root, with which backward starts; NULL: the default seeds."),
    TG_FIELD_OF(tg_backward_opts, inputs, POINTER, "tg_tensor*",
                "The leaves to whose gradients backward adds; NULL: all that require a gradient."),
    TG_FIELD(tg_backward_opts, n_inputs, INT, "Number of inputs."),
    TG_FIELD(tg_backward_opts, retain, BOOL, "Keeps the saved tensors, so that backward can run again."),
};
const tg_struct tg_backward_opts_struct =
    TG_STRUCT(tg_backward_opts, BACKWARD, backward_fields, "Options of tg_backward_with.");

static const tg_field pack_ops_fields[] = {
    TG_FIELD(tg_pack_ops, pack, FUNCTION, "Takes the bytes of a saved tensor."),
    TG_FIELD(tg_pack_ops, unpack, FUNCTION, "Gives the bytes back."),
    TG_FIELD(tg_pack_ops, drop, FUNCTION, "Frees what pack took; NULL: nothing to free."),
    TG_FIELD_OF(tg_pack_ops, user, POINTER, "void", "First argument of the functions."),
};
const tg_struct tg_pack_ops_struct =
    TG_STRUCT(tg_pack_ops, PACK_OPS, pack_ops_fields, "Functions that keep saved tensors in another place or form.");
