/* Small products by AMX, whose tiles multiply pairs of bf16 numbers and add in f32. */
#ifndef SLI_DEVICE_CPU_AMX_H
#define SLI_DEVICE_CPU_AMX_H

#include "device/cpu/kernels.h"

/* Whether this build has the kernel, and the system lets this process use AMX. */
bool sli_amx_is_usable(void);

enum { SLI_AMX_ROWS = 16, SLI_AMX_MOST = 256 };

/* As the kernels' small_product, of elements rounded to bf16, with p->m at most SLI_TILE, n a
 * multiple of SLI_SMALL_LEAST, one of n and k at most SLI_TILE and the other SLI_AMX_MOST. c has
 * room for whole SLI_AMX_ROWS rows, and those beyond m may be written. */
void sli_amx_product(const sli_small_product *p);

#endif
