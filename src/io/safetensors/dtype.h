/* The data types of the safetensors format, and which of them sluice has. */
#ifndef SLI_IO_SAFETENSORS_DTYPE_H
#define SLI_IO_SAFETENSORS_DTYPE_H

#include "sluice/tensor.h"

typedef struct sli_safetensors_dtype {
    const char *name;
    unsigned bits; /* of one element */
    bool readable; /* sluice has it, as `dtype` */
    sl_dtype dtype;
} sli_safetensors_dtype;

/* The data type of that name, or NULL where the format has none. */
const sli_safetensors_dtype *sli_safetensors_dtype_find(const char *name);

/* How the format names one of sluice's data types; NULL where `dtype` is none. */
const sli_safetensors_dtype *sli_safetensors_dtype_of(sl_dtype dtype);

/* How many elements of `bits` each a shape asks for, in bytes. False where the last byte is not
 * full, where the elements' bits are beyond 64 bits, or where sizes beside one that is 0 have a
 * product beyond int64_t: what is accepted can be counted in any order. */
bool sli_safetensors_bytes(int dims, const int64_t *size, unsigned bits, uint64_t *bytes);

#endif
