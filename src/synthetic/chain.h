/* The synthetic text: random sentences whose entropy is known in closed form, for trying things out
 * without a download. The program's own, not the library's.
 *
 *   Tired riders often gladly groom old goats beside barns.
 *
 * A sentence has four content words: subject, verb, object and place. Before each but the subject
 * comes a filler word of that link (often, the, near, …), and half the time another one (gladly,
 * old, quiet, …). The content words are a chain, from a sentence's place to the next subject too:
 * each is one of four that follow from the content word before, which stands two or three words
 * back. Fillers say nothing of content, so who sees the last word alone knows the next word's kind
 * and no more: predicting it takes attention.
 *
 * Per content word, with C content words of each kind and F fillers of each kind:
 *
 *   tokens    2.5: the content word, a filler or the full stop, and half a second filler
 *   entropy   E = H(8, 4, 2, 1) + log 2 + 1/2 log F, and log F for each filler: 3/4
 *   unknown   U = log C - H(8, 4, 2, 1), which a reader has to add where the content word before is
 *             not known: all content words are equally frequent
 *
 * The entropy rate is E / 2.5. A reader that sees a block's last t tokens misses the content word
 * before with t = 1 always and with t = 2 half the time (behind two fillers); never from t = 3 on.
 */
#ifndef SLI_SYNTHETIC_CHAIN_H
#define SLI_SYNTHETIC_CHAIN_H

#include "sluice/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct sli_synthetic_options {
    uint64_t seed;
    int64_t train_tokens; /* 0: 500,000 */
    int64_t eval_tokens;  /* in valid and in test; 0: a tenth of train_tokens */
} sli_synthetic_options;

/* Writes train.txt, valid.txt and test.txt into `directory` (made where it does not exist), one
 * sentence a line. Each ends with the first sentence that makes it as long as asked. An older
 * synthetic text is replaced; any other text, a changed one included, is refused. Same seed, same
 * text, on every machine. Errors: SL_ERR_INVALID (negative counts, other text), SL_ERR_NOT_FOUND
 * (no directory around it), SL_ERR_IO, SL_ERR_MEMORY. */
sl_status sli_synthetic_write(const char *directory, const sli_synthetic_options *options);

/* Whether all three texts of `data` (see sluice/app/text.h) are made of the chain's sentences
 * alone, in an order that it allows. False where they are not there or cannot be read. Reads up to
 * the first line that is none. */
bool sli_synthetic_is_text(const char *data);

/* The best possible perplexity for models that see a block's tokens and no earlier ones: exp of the
 * mean over t = 1 … bptt of the entropy of a token of which the t before it are known. bptt 0: for
 * models that see all the past, exp of the entropy rate. bptt 1: for those that see the last word.
 */
double sli_synthetic_best_perplexity(int64_t bptt);

#endif
