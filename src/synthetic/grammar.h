/* The grammar of the synthetic corpus: an automaton that emits words.
 *
 *   sentence  = subject [place] verb object ["and" verb object] [adverb] "."
 *   subject   = determiner {adjective} noun        object = determiner [adjective] noun
 *   place     = preposition determiner place-noun
 *
 *   These clever dogs behind the house chase your cats and eat every sweet apple today.
 *
 * What must agree: a noun and its verbs (number: dogs … chase … eat), however much stands between
 * them; a determiner and its noun (number: these … dogs); adjectives and their noun (kind); a verb
 * and its object (kind: one eats food); and subjects of different kinds prefer different verbs. So
 * the last word alone says little about the next one.
 *
 * The automaton's state is what of the sentence so far matters for its rest. A word belongs to one
 * group only, and a state never has two edges with one group: so the words since the last full stop
 * determine the state, and a reader who knows the grammar knows the next word's distribution
 * exactly. That makes the entropy rate a plain sum over states (Shannon 1948; such a source is
 * called unifilar). Within a sentence no state comes twice, so sentences have a longest length. */
#ifndef SLI_SYNTHETIC_GRAMMAR_H
#define SLI_SYNTHETIC_GRAMMAR_H

#include "sluice/status.h"

#include <stdint.h>

enum {
    SLI_GRAMMAR_GROUPS = 29,
    SLI_GRAMMAR_START = 0,       /* the state at a sentence's beginning */
    SLI_GRAMMAR_FULL_STOP = 0,   /* the group whose only word ends a sentence */
    SLI_GRAMMAR_WORD_BYTES = 24, /* room for any word and its 0 */
    SLI_GRAMMAR_LONGEST = 18,    /* tokens in the longest sentence */
};

/* From a state, with probability weight / (sum of the state's weights): a word of `group`, then
 * state `next`. */
typedef struct sli_grammar_edge {
    int group, next;
    uint32_t weight;
} sli_grammar_edge;

typedef struct sli_grammar {
    int state_count, edge_count;
    int *first_edge; /* [state_count + 1] */
    sli_grammar_edge *edges;
} sli_grammar;

/* Builds the automaton. Errors: SL_ERR_MEMORY. */
sl_status sli_grammar_create(sli_grammar **out);
void sli_grammar_destroy(sli_grammar **grammar);

/* A group's words: how many; each one's weight against the others'; and its letters, written to
 * `text`. */
int sli_grammar_word_count(int group);
uint32_t sli_grammar_word_weight(int word);
void sli_grammar_word(int group, int word, char text[SLI_GRAMMAR_WORD_BYTES]);

/* The entropy rate: nats per token, where all the text before the token is known.
 * Errors: SL_ERR_MEMORY. */
sl_status sli_grammar_entropy_rate(const sli_grammar *grammar, double *out);

/* out[t], t = 0 … count - 1: the entropy in nats of a token at a random place of the text, where
 * the t tokens before it are known and nothing else. It falls with t, and is the entropy rate from
 * t = SLI_GRAMMAR_LONGEST on, for then a full stop is known. Errors: SL_ERR_MEMORY. */
sl_status sli_grammar_context_entropies(const sli_grammar *grammar, double *out, int count);

#endif
