/* llm.c's file of a GPT-2 (write_model of its train_gpt2.py, gpt2_write_to_checkpoint of its
 * train_gpt2.cu), little-endian:
 *
 *   int32 [256]    20240326, version, max_seq_len, vocab_size, num_layers, num_heads, channels,
 *                  padded_vocab_size, zeros
 *   wte, wpe, then each kind of a layer's tensors of all layers, ln_f
 *
 * Version 3 has numbers of f32, version 5 of bf16. Weights are [out, in], where GPT-2's published
 * files have [in, out]. Rows of wte from vocab_size on fill it up to padded_vocab_size, a multiple
 * of 128 where llm.c has written it. */
#ifndef SLI_IO_LLMC_LLMC_H
#define SLI_IO_LLMC_LLMC_H

#include "io/safetensors/format.h"

typedef struct sli_llmc_sizes {
    int64_t positions, vocab, layers, heads, channels, padded_vocab;
    sl_dtype dtype; /* SL_F32 or SL_BF16 */
} sli_llmc_sizes;

/* The kinds of tensors, in the file's order. */
enum { SLI_LLMC_KINDS = 16, SLI_LLMC_HEADER_BYTES = 1024, SLI_LLMC_NAME_BYTES = 64 };

/* How many tensors of a kind there are: one, or one of each layer. */
int64_t sli_llmc_count(const sli_llmc_sizes *sizes, int kind);

/* The published name of tensor `index` of a kind, with "transformer.". */
void sli_llmc_name(int kind, int64_t index, char name[SLI_LLMC_NAME_BYTES]);

/* Its shape in the file: of wte with the rows that fill it up. */
sl_shape sli_llmc_shape(const sli_llmc_sizes *sizes, int kind);

/* Whether a published file has the transpose of it. */
bool sli_llmc_is_transposed(const char *name);

/* Writes the head of a file to `header`. */
void sli_llmc_print_header(const sli_llmc_sizes *sizes, int32_t header[SLI_LLMC_HEADER_BYTES / 4]);

/* Whether a regular file begins as one of llm.c's models. Sets no error text. */
bool sli_llmc_is_file(const char *path);

/* Opens one: its tensors by their published names, in the file's shapes, and the rows that fill up
 * wte as transformer.wte.padding. *config, malloc'ed, says its sizes as a config.json. Errors:
 * those of sli_safetensors_open. */
sl_status sli_llmc_open(const char *path, sli_safetensors_reader **out, char **config);

#endif
