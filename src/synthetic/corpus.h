/* The synthetic corpus: texts of random sentences whose entropy is known exactly, for trying things
 * out without a download. The program's own, not the library's. */
#ifndef SLI_SYNTHETIC_CORPUS_H
#define SLI_SYNTHETIC_CORPUS_H

#include "sluice/status.h"

#include <stdint.h>

typedef struct sli_synthetic_options {
    uint64_t seed;
    int64_t train_tokens; /* 0: 500,000 */
    int64_t eval_tokens;  /* in valid and in test; 0: a tenth of train_tokens */
} sli_synthetic_options;

/* Writes train.txt, valid.txt and test.txt into `directory` (made where it does not exist), and
 * grammar.json with what the best possible model reaches on them and the texts' checksums. An older
 * synthetic corpus, known by its grammar.json, is replaced; a directory with another grammar.json
 * or other text, a changed one included, is refused. The sentences come from a small grammar whose
 * state follows from the words since the last full stop, so that the entropy of the next word is
 * known exactly: see grammar.h. Every split ends with the first sentence that makes it as long as
 * asked. Same seed, same text, on every machine. Errors: SL_ERR_INVALID (negative counts, other
 * text), SL_ERR_NOT_FOUND (no directory around it), SL_ERR_IO, SL_ERR_MEMORY. */
sl_status sli_synthetic_write(const char *directory, const sli_synthetic_options *options);

/* The best possible perplexity on the synthetic corpus in `directory`, from its grammar.json, for
 * models that see a block's tokens and no earlier ones: exp of the mean over t = 1 … bptt of the
 * entropy of a token of which the t before it are known. bptt 0: for models that see all the past,
 * exp of the entropy rate. `*out` is 0 where the corpus is not a synthetic one: there is no such
 * file, it is not sluice's or cannot be read, or its checksums are those of other texts. Errors:
 * SL_ERR_FORMAT (it is sluice's, but lacks a number), SL_ERR_INVALID (bptt below 0), those of
 * sl_split_path and of reading the texts. */
sl_status sli_synthetic_best_perplexity(const char *directory, int64_t bptt, double *out);

/* Refuses `path` where writing it would overwrite the directory's grammar.json. Errors:
 * SL_ERR_INVALID, SL_ERR_MEMORY. */
sl_status sli_synthetic_check_output(const char *directory, const char *path);

#endif
