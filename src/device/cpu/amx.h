/* Small products by AMX, whose tiles multiply pairs of bf16 numbers and add in f32. */
#ifndef SLI_DEVICE_CPU_AMX_H
#define SLI_DEVICE_CPU_AMX_H

#include "device/cpu/kernels.h"

/* Asks the system to let this process use AMX. Returns whether it does, and this build has the
 * kernel. For processors with AVX-512 alone. */
bool sli_amx_request(void);

enum { SLI_AMX_ROWS = 16, SLI_AMX_MOST = 256 };

/* As the kernels' small_product, of elements rounded to bf16, subnormal ones to 0. p->m is at most
 * SLI_TILE, n a multiple of SLI_SMALL_LEAST, one of n and k at most SLI_TILE and the other
 * SLI_AMX_MOST. b is finite where a is 0. c has whole SLI_AMX_ROWS rows: those beyond m get zeros
 * added where the product `adds`, and else are undefined. */
void sli_amx_product(const sli_small_product *p);

#endif
