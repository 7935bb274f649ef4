/* The structs of options of pipelines. */
#include <tapegrad/pipe.h>

#include "base/options.h"

static const tg_enum_value pipe_kind_values[] = {TG_ENUM_VALUE(TG_PIPE_GPIPE),       TG_ENUM_VALUE(TG_PIPE_1F1B),
                                                 TG_ENUM_VALUE(TG_PIPE_INTERLEAVED), TG_ENUM_VALUE(TG_PIPE_ZB_H1),
                                                 TG_ENUM_VALUE(TG_PIPE_FORWARD),     TG_ENUM_VALUE(TG_PIPE_CUSTOM)};
const tg_enum tg_pipe_kind_enum = TG_ENUM(tg_pipe_kind, "TG_PIPE_", pipe_kind_values);

static const tg_field pipe_plan_fields[] = {
    TG_FIELD_OF(tg_pipe_plan_opts, kind, ENUM, "tg_pipe_kind", "The schedule."),
    TG_FIELD(tg_pipe_plan_opts, stages, INT, "Number of stages, 1 or more."),
    TG_FIELD(tg_pipe_plan_opts, chunks, INT, "Number of chunks of each stage, 1 to 256."),
    TG_FIELD(tg_pipe_plan_opts, micros, INT, "Number of micro-batches in a step, 1 or more."),
    TG_FIELD(tg_pipe_plan_opts, group, INT, "Number of micro-batches in a turn, `stages` or more; TG_AUTO: stages."),
    TG_FIELD_OF(tg_pipe_plan_opts, f, POINTER, "double", "Time of the forward of each part; NULL: 1 / chunks."),
    TG_FIELD_OF(tg_pipe_plan_opts, b, POINTER, "double",
                "Time of the backward for activations of each part; NULL: 1 / chunks."),
    TG_FIELD_OF(tg_pipe_plan_opts, w, POINTER, "double",
                "Time of the backward for weights of each part; NULL: 1 / chunks."),
    TG_FIELD(tg_pipe_plan_opts, hop, DOUBLE, "Time of a message to another stage, 0 or more."),
    TG_FIELD_OF(tg_pipe_plan_opts, items, POINTER, "tg_pipe_item*", "TG_PIPE_CUSTOM: the items of each stage."),
    TG_FIELD_OF(tg_pipe_plan_opts, n_items, POINTER, "int", "TG_PIPE_CUSTOM: the numbers of items."),
};
const tg_struct tg_pipe_plan_opts_struct =
    TG_STRUCT(tg_pipe_plan_opts, PIPE_PLAN, pipe_plan_fields, "A plan of a pipeline.");

static const tg_field pipe_fields[] = {
    TG_FIELD_OF(tg_pipe_opts, edge, POINTER, "tg_pipe_edge", "The tensors that go from each part to the next."),
    TG_FIELD(tg_pipe_opts, n_edge, INT, "Number of these tensors."),
    TG_FIELD(tg_pipe_opts, shape, FUNCTION, "Gives the shapes of a micro-batch; NULL: those of edge."),
    TG_FIELD_OF(tg_pipe_opts, scale, POINTER, "tg_optim",
                "The optimizer whose loss scale multiplies the loss; NULL: none."),
    TG_FIELD(tg_pipe_opts, ahead, INT, "Number of items by which receives are posted in advance, 1 or more."),
};
const tg_struct tg_pipe_opts_struct = TG_STRUCT(tg_pipe_opts, PIPE, pipe_fields, "Options of tg_pipe_new.");
