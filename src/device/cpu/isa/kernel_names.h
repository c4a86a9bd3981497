/* The external names of one instruction set's kernels; table.c puts them into its table. */
#ifndef SLI_DEVICE_CPU_ISA_KERNEL_NAMES_H
#define SLI_DEVICE_CPU_ISA_KERNEL_NAMES_H

#include "device/cpu/isa/isa.h"

void SLI_OF_ISA(sli_epilogue)(const sli_gemm *gemm, const float *from, int64_t ld,
                              int64_t first_row, int64_t rows, int64_t first_column,
                              int64_t columns);
void SLI_OF_ISA(sli_epilogue_backward)(const sli_epilogue_backward *arguments, int64_t first_row,
                                       int64_t rows, float *sums);
void SLI_OF_ISA(sli_embedding)(const sli_embedding *arguments, int64_t first_row, int64_t rows);
void SLI_OF_ISA(sli_embedding_backward)(const sli_embedding_backward *arguments,
                                        int64_t first_column, int64_t columns);
void SLI_OF_ISA(sli_add_dropout)(const sli_add_dropout *arguments, int64_t first_row, int64_t rows);
void SLI_OF_ISA(sli_add_norm)(const sli_add_norm *arguments, int64_t first_row, int64_t rows);
void SLI_OF_ISA(sli_add_norm_backward)(const sli_add_norm_backward *arguments, int64_t first_row,
                                       int64_t rows, float *weight_sums, float *bias_sums);
void SLI_OF_ISA(sli_softmax)(const sli_score_block *block, float *scores);
void SLI_OF_ISA(sli_softmax_backward)(const sli_score_block *block, float *scores, float *grads,
                                      const float *inner);
void SLI_OF_ISA(sli_row_products)(int64_t rows, int64_t width, int64_t ld, const float *a,
                                  const float *b, float *inner);
void SLI_OF_ISA(sli_small_product)(const sli_small_product *p);
void SLI_OF_ISA(sli_transpose)(int64_t rows, int64_t columns, const float *from, int64_t ld,
                               float *to);
void SLI_OF_ISA(sli_cross_entropy)(const sli_cross_entropy *arguments, int64_t first_row,
                                   int64_t rows);
void SLI_OF_ISA(sli_add)(int64_t count, float *to, const float *from);
void SLI_OF_ISA(sli_sgd)(const sli_sgd *arguments, int64_t first, int64_t count);
void SLI_OF_ISA(sli_adamw)(const sli_adamw *arguments, int64_t first, int64_t count);
double SLI_OF_ISA(sli_norm_term)(sli_norm_kind kind, int64_t count, const float *x);
void SLI_OF_ISA(sli_initialize)(const sli_init *init, sli_philox_key key, uint32_t site,
                                int64_t first, int64_t count, float *to);

#endif
