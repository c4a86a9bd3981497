#include "device/cpu/isa/isa.h"

#define SLI_TEXT_(name) #name
#define SLI_TEXT(name)  SLI_TEXT_(name)

const sli_cpu_kernels SLI_OF_ISA(sli_cpu_kernels) = {
    .isa = SLI_TEXT(SLI_ISA),
    .epilogue = SLI_OF_ISA(sli_epilogue),
    .epilogue_backward = SLI_OF_ISA(sli_epilogue_backward),
    .embedding = SLI_OF_ISA(sli_embedding),
    .embedding_backward = SLI_OF_ISA(sli_embedding_backward),
    .add_dropout = SLI_OF_ISA(sli_add_dropout),
    .add_norm = SLI_OF_ISA(sli_add_norm),
    .add_norm_backward = SLI_OF_ISA(sli_add_norm_backward),
    .swiglu = SLI_OF_ISA(sli_swiglu),
    .swiglu_backward = SLI_OF_ISA(sli_swiglu_backward),
    .rotary = SLI_OF_ISA(sli_rotary),
    .softmax = SLI_OF_ISA(sli_softmax),
    .softmax_backward = SLI_OF_ISA(sli_softmax_backward),
    .row_products = SLI_OF_ISA(sli_row_products),
    .softmax_tile = SLI_OF_ISA(sli_softmax_tile),
    .softmax_tile_backward = SLI_OF_ISA(sli_softmax_tile_backward),
    .multipliers = SLI_OF_ISA(sli_multipliers),
    .scale_rows = SLI_OF_ISA(sli_scale_rows),
    .small_product = SLI_OF_ISA(sli_small_product),
    .transpose = SLI_OF_ISA(sli_transpose),
    .cross_entropy = SLI_OF_ISA(sli_cross_entropy),
    .convert = SLI_OF_ISA(sli_convert),
    .add = SLI_OF_ISA(sli_add),
    .sgd = SLI_OF_ISA(sli_sgd),
    .adamw = SLI_OF_ISA(sli_adamw),
    .norm_term = SLI_OF_ISA(sli_norm_term),
    .initialize = SLI_OF_ISA(sli_initialize),
};
