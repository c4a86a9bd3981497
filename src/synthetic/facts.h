/* What is known of a synthetic corpus: the file grammar.json beside its texts. It is recognised by
 * its content: a line that says what it is, and the checksums of the texts that it is true of. A
 * file of that name without the line is somebody else's, and texts with other checksums are not
 * the corpus. */
#ifndef SLI_SYNTHETIC_FACTS_H
#define SLI_SYNTHETIC_FACTS_H

#include "core/checksum.h"
#include "sluice/text.h"
#include "synthetic/grammar.h"

typedef struct sli_synthetic_facts {
    char checksums[SL_SPLITS][SLI_CHECKSUM_BYTES]; /* of train.txt, valid.txt, test.txt */
    double entropy_rate;                           /* nats per token */
    double entropies[SLI_GRAMMAR_LONGEST]; /* [t] with t tokens known; later ones: the rate */
} sli_synthetic_facts;

/* Replaces the file. `seed` and `tokens` are for people who read it. */
sl_status sli_synthetic_facts_write(const char *directory, const sli_synthetic_facts *facts,
                                    uint64_t seed, const int64_t tokens[SL_SPLITS]);

/* *found is false where there is no such file, or one that cannot be read or is somebody else's.
 * Errors: SL_ERR_FORMAT where it says that it is a synthetic corpus's, but lacks a fact. */
sl_status sli_synthetic_facts_read(const char *directory, sli_synthetic_facts *out, bool *found);

/* Whether the file at `path` is the split that the facts are of. Errors: SL_ERR_IO, SL_ERR_MEMORY.
 */
sl_status sli_synthetic_facts_fit(const sli_synthetic_facts *facts, sl_split split,
                                  const char *path, bool *fit);

/* sl_synthetic_corpus_best_perplexity of `count` lengths of blocks, of which each is at least 0,
 * into out [count]; the texts are read once. */
sl_status sli_synthetic_best_perplexities(const char *directory, const int64_t *bptt, int count,
                                          double *out);

#endif
