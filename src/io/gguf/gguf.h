/* Writing a GGUF file of version 3, as llama.cpp and its relatives read them (ggml's docs/gguf.md):
 *
 *   "GGUF", 3, numbers of tensors and of values      the head
 *   key, type, value …
 *   name, dimensions (the fastest first), type, place …
 *   tensors, each at a multiple of 32 bytes
 *
 * Values come first, then the tensors' names and shapes, and then their numbers, in any order. The
 * first error of adding is what sli_gguf_begin returns. */
#ifndef SLI_IO_GGUF_GGUF_H
#define SLI_IO_GGUF_GGUF_H

#include "sluice/tensor.h"

typedef enum sli_gguf_type {
    SLI_GGUF_F32 = 0,
    SLI_GGUF_F16 = 1,
    SLI_GGUF_Q8_0 = 8, /* 32 numbers of a row as 8-bit multiples of an f16 */
    SLI_GGUF_BF16 = 30
} sli_gguf_type;

enum { SLI_GGUF_BLOCK = 32 }; /* of Q8_0: rows have a multiple of it */

typedef struct sli_gguf sli_gguf;

/* Errors: those of sli_replace_file_create. */
sl_status sli_gguf_create(const char *path, sli_gguf **out);
void sli_gguf_destroy(sli_gguf **file); /* removes it where it is not committed; NULL is allowed */

void sli_gguf_add_number(sli_gguf *file, const char *key, uint32_t value);
void sli_gguf_add_float(sli_gguf *file, const char *key, float value);
void sli_gguf_add_flag(sli_gguf *file, const char *key, bool value);
void sli_gguf_add_text(sli_gguf *file, const char *key, const char *value);

/* An array: begun, and then exactly `count` elements of one kind. */
void sli_gguf_begin_texts(sli_gguf *file, const char *key, uint64_t count);
void sli_gguf_put_text(sli_gguf *file, const char *text, size_t bytes);
void sli_gguf_begin_integers(sli_gguf *file, const char *key, uint64_t count);
void sli_gguf_put_integer(sli_gguf *file, int32_t value);
void sli_gguf_begin_floats(sli_gguf *file, const char *key, uint64_t count);
void sli_gguf_put_float(sli_gguf *file, float value);

/* The next tensor. A shape of Q8_0 whose rows are no multiple of a block is an error of ours. */
void sli_gguf_add_tensor(sli_gguf *file, const char *name, const sl_shape *shape,
                         sli_gguf_type type);

/* Writes the head. Errors: SL_ERR_MEMORY, SL_ERR_IO. */
sl_status sli_gguf_begin(sli_gguf *file);

/* Writes the numbers of tensor `index`, rounded to its type. Errors: SL_ERR_NUMERIC for a number
 * that the type cannot hold, which is what of Q8_0 is not finite as well; SL_ERR_MEMORY, SL_ERR_IO.
 */
sl_status sli_gguf_write(sli_gguf *file, size_t index, const float *values);

sl_status sli_gguf_commit(sli_gguf *file);

#endif
