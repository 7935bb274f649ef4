/* The list of all structs of options, and of the tables of functions that have a macro like them. It is in a header of
 * its own, because every file that includes the list must be compiled again when a struct is added. This header
 * includes no other. */
#ifndef TAPEGRAD_OPTIONS_LIST_H
#define TAPEGRAD_OPTIONS_LIST_H

/* Calls X(struct, MACRO) for each struct. In C, TG_MACRO(...) makes the struct with its defaults (types.h). */
#define TG_OPTIONS_LIST(X)                      \
    X(tg_config, CONFIG)                        \
    X(tg_file_ops, FILE_OPS)                    \
    X(tg_ranks_opts, RANKS)                     \
    X(tg_tcp_opts, TCP)                         \
    X(tg_pack_ops, PACK_OPS)                    \
    X(tg_backward_opts, BACKWARD)               \
    X(tg_grad_opts, GRAD)                       \
    X(tg_print_opts, PRINT)                     \
    X(tg_recompute_opts, RECOMPUTE)             \
    X(tg_solve_opts, SOLVE)                     \
    X(tg_attention_opts, ATTENTION)             \
    X(tg_rope_opts, ROPE)                       \
    X(tg_conv_opts, CONV)                       \
    X(tg_pool_opts, POOL)                       \
    X(tg_upsample_opts, UPSAMPLE)               \
    X(tg_grid_opts, GRID)                       \
    X(tg_bag_opts, BAG)                         \
    X(tg_cross_entropy_opts, CROSS_ENTROPY)     \
    X(tg_loss_opts, LOSS)                       \
    X(tg_buffer_opts, BUFFER)                   \
    X(tg_init, INIT)                            \
    X(tg_rnn_opts, RNN)                         \
    X(tg_sgd_opts, SGD)                         \
    X(tg_adamw_opts, ADAMW)                     \
    X(tg_rmsprop_opts, RMSPROP)                 \
    X(tg_adagrad_opts, ADAGRAD)                 \
    X(tg_lion_opts, LION)                       \
    X(tg_muon_opts, MUON)                       \
    X(tg_lbfgs_opts, LBFGS)                     \
    X(tg_group_opts, GROUP)                     \
    X(tg_loss_scale, LOSS_SCALE)                \
    X(tg_schedule, SCHEDULE)                    \
    X(tg_loader_opts, LOADER)                   \
    X(tg_data_ops, DATA_OPS)                    \
    X(tg_parallel_opts, PARALLEL)               \
    X(tg_sp_opts, SP)                           \
    X(tg_inference_opts, INFERENCE)             \
    X(tg_vocab_opts, VOCAB)                     \
    X(tg_linear_grad_opts, LINEAR_GRAD)         \
    X(tg_linear_all_reduce_opts, LINEAR_ALL_REDUCE) \
    X(tg_norm_linear_opts, NORM_LINEAR)         \
    X(tg_norm_mlp_opts, NORM_MLP)               \
    X(tg_parallel_linear_opts, PARALLEL_LINEAR) \
    X(tg_vocab_embedding_opts, VOCAB_EMBEDDING) \
    X(tg_finalize_opts, FINALIZE)               \
    X(tg_flat_opts, FLAT)                       \
    X(tg_context_attention_opts, CONTEXT_ATTENTION) \
    X(tg_self_attention_opts, SELF_ATTENTION)   \
    X(tg_pipe_plan_opts, PIPE_PLAN)             \
    X(tg_pipe_opts, PIPE)                       \
    X(tg_load_opts, LOAD)                       \
    X(tg_save_opts, SAVE)                       \
    X(tg_shards_load_opts, SHARDS_LOAD)         \
    X(tg_gpt_config, GPT)                       \
    X(tg_lm_config, LM)                         \
    X(tg_lm_rates, LM_RATES)                    \
    X(tg_lm_save_opts, LM_SAVE)                 \
    X(tg_encode_opts, ENCODE)                   \
    X(tg_bpe_opts, BPE)                         \
    X(tg_lora_opts, LORA)                       \
    X(tg_sampling_opts, SAMPLING)               \
    X(tg_generator_opts, GENERATOR)             \
    X(tg_generate_opts, GENERATE)               \
    X(tg_render_opts, RENDER)                   \
    X(tg_chat_opts, CHAT)                       \
    X(tg_gradcheck_opts, GRADCHECK)

#endif
