/* The op table: one row an op, TG_OP(name) for the `const tg_op tg_op_name` of its block. No include guard: define
 * TG_OP, include, undefine. The order is that of `tapegrad ops` and of the documentation. */

/* Unary */
TG_OP(neg)
TG_OP(abs)
TG_OP(exp)
TG_OP(log)
TG_OP(sqrt)
TG_OP(rsqrt)
TG_OP(reciprocal)
TG_OP(square)
TG_OP(sin)
TG_OP(cos)
TG_OP(tanh)
TG_OP(sigmoid)
TG_OP(relu)
TG_OP(silu)
TG_OP(gelu)
TG_OP(gelu_tanh)
TG_OP(pow_scalar)
TG_OP(clamp)
TG_OP(scale)
TG_OP(add_scalar)
TG_OP(cast)
TG_OP(detach)

/* Binary */
TG_OP(add)
TG_OP(sub)
TG_OP(mul)
TG_OP(div)
TG_OP(pow)
TG_OP(maximum)
TG_OP(minimum)
TG_OP(eq)
TG_OP(ne)
TG_OP(lt)
TG_OP(le)
TG_OP(gt)
TG_OP(ge)
TG_OP(where)
TG_OP(masked_fill)

/* In place */
TG_OP(add_)
TG_OP(sub_)
TG_OP(mul_)
TG_OP(relu_)
TG_OP(copy_)

/* Reductions */
TG_OP(sum)
TG_OP(mean)
TG_OP(var)
TG_OP(max)
TG_OP(min)
TG_OP(logsumexp)
TG_OP(argmax)

/* Linear algebra */
TG_OP(matmul)
TG_OP(linear)
TG_OP(linear_relu)
TG_OP(linear_gelu)
TG_OP(linear_gelu_tanh)
TG_OP(linear_silu)
TG_OP(LinearWithGradAccumulationAndAsyncCommunication)

/* Shape */
TG_OP(reshape)
TG_OP(view)
TG_OP(permute)
TG_OP(transpose)
TG_OP(expand)
TG_OP(squeeze)
TG_OP(unsqueeze)
TG_OP(slice)
TG_OP(select)
TG_OP(contiguous)
TG_OP(concat)
TG_OP(stack)
TG_OP(split)
TG_OP(pad)

/* Indexing */
TG_OP(gather)
TG_OP(scatter_add)
TG_OP(index_select)
TG_OP(embedding)

/* Makers */
TG_OP(arange)
TG_OP(full)

/* Networks */
TG_OP(softmax)
TG_OP(log_softmax)
TG_OP(layer_norm)
TG_OP(rms_norm)
TG_OP(residual_rms_norm)
TG_OP(dropout)
TG_OP(rope)
TG_OP(swiglu)
TG_OP(attention)

/* Losses */
TG_OP(cross_entropy)
TG_OP(linear_cross_entropy)
TG_OP(mse)

/* Ranks */
TG_OP(assume_placement)
