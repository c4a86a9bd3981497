/* Exact entropies of the synthetic corpus.
 *
 * A token is its group and then its word in the group. The word's distribution in its group is the
 * same wherever the group occurs, and a word is in one group only: so all that a text says about
 * the automaton's state, its groups say; and a token's entropy is its group's entropy plus the
 * mean entropy of the words inside it.
 *
 * Where all the text is known the state is known, and the entropy rate is the mean of the states'
 * entropies over how often each is visited. A model that sees only the last t tokens knows less: a
 * distribution over states, its belief. Before the first token that is how often each is visited;
 * each token turns it into another by Bayes' rule. Beliefs after equally many tokens, each with its
 * probability, make up out[t]. There are a few hundred of them, for most tokens leave little doubt,
 * and equal ones are merged. */
#include "synthetic/grammar.h"

#include "core/memory.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* ---- Entropies of words, edges and states ------------------------------------------------ */

static double entropy_term(double probability)
{
    return probability > 0 ? -probability * log(probability) : 0;
}

static double word_entropy(int group)
{
    int count = sli_grammar_word_count(group);
    double total = 0, entropy = 0;
    for (int i = 0; i < count; i++)
        total += sli_grammar_word_weight(i);
    for (int i = 0; i < count; i++)
        entropy += entropy_term(sli_grammar_word_weight(i) / total);
    return entropy;
}

static double state_weight(const sli_grammar *grammar, int state)
{
    double total = 0;
    for (int e = grammar->first_edge[state]; e < grammar->first_edge[state + 1]; e++)
        total += grammar->edges[e].weight;
    return total;
}

/* Adds to[next] += from[state] * probability over all edges of all states, but those that end a
 * sentence; and groups[group] += the same over all edges. Either may be NULL. */
static void follow_edges(const sli_grammar *grammar, const double *from, double *to, double *groups)
{
    for (int state = 0; state < grammar->state_count; state++) {
        if (from[state] == 0)
            continue;
        double each = from[state] / state_weight(grammar, state);
        for (int e = grammar->first_edge[state]; e < grammar->first_edge[state + 1]; e++) {
            const sli_grammar_edge *edge = &grammar->edges[e];
            if (to && edge->group != SLI_GRAMMAR_FULL_STOP)
                to[edge->next] += each * edge->weight;
            if (groups)
                groups[edge->group] += each * edge->weight;
        }
    }
}

/* The entropy of the next token where the state has distribution `belief`. */
static double belief_entropy(const sli_grammar *grammar, const double *belief)
{
    double groups[SLI_GRAMMAR_GROUPS] = {0}, entropy = 0;
    follow_edges(grammar, belief, NULL, groups);
    for (int group = 0; group < SLI_GRAMMAR_GROUPS; group++)
        if (groups[group] > 0)
            entropy += entropy_term(groups[group]) + groups[group] * word_entropy(group);
    return entropy;
}

/* How often each state occurs in the text: the sum, over k, of its probability after k words
 * of a sentence, over the mean length of sentences. */
static sl_status state_frequencies(const sli_grammar *grammar, double *frequencies)
{
    size_t count = (size_t)grammar->state_count, bytes = count * sizeof(double);
    double *both = calloc(2 * count, sizeof(double)), length = 0, alive = 1;
    if (!both)
        return sl_error(SL_ERR_MEMORY, "no memory for the grammar's states");
    double *now = both, *next = both + count;
    memset(frequencies, 0, bytes);
    now[SLI_GRAMMAR_START] = 1;
    while (alive > 0) { /* exactly 0 after the longest sentence's length */
        double *spare = now;
        alive = 0;
        for (size_t i = 0; i < count; i++) {
            frequencies[i] += now[i];
            alive += now[i];
        }
        length += alive;
        memset(next, 0, bytes);
        follow_edges(grammar, now, next, NULL);
        now = next;
        next = spare;
    }
    for (size_t i = 0; i < count; i++)
        frequencies[i] /= length;
    free(both);
    return SL_OK;
}

sl_status sli_grammar_entropy_rate(const sli_grammar *grammar, double *out)
{
    size_t count = (size_t)grammar->state_count;
    double *frequencies = calloc(2 * count, sizeof *frequencies);
    *out = 0;
    if (!frequencies)
        return sl_error(SL_ERR_MEMORY, "no memory for the grammar's states");
    double *one = frequencies + count;
    sl_status status = state_frequencies(grammar, frequencies);
    for (size_t i = 0; status == SL_OK && i < count; i++) {
        one[i] = 1;
        *out += frequencies[i] * belief_entropy(grammar, one);
        one[i] = 0;
    }
    free(frequencies);
    return status;
}

/* ---- Beliefs ----------------------------------------------------------------------------- */

enum { MAX_BELIEFS = 100000 };

typedef struct beliefs {
    int state_count, count;
    size_t room, state_room;
    double *probabilities; /* [count] */
    double *states;        /* [count, state_count], each row sums to 1 */
} beliefs;

static void free_beliefs(beliefs *set)
{
    free(set->probabilities);
    free(set->states);
    *set = (beliefs){0};
}

static bool same_belief(const double *a, const double *b, int count)
{
    for (int i = 0; i < count; i++)
        if (fabs(a[i] - b[i]) > 1e-12)
            return false;
    return true;
}

static sl_status add_belief(beliefs *set, double probability, const double *states)
{
    size_t width = (size_t)set->state_count;
    for (int i = 0; i < set->count; i++) {
        if (same_belief(set->states + (size_t)i * width, states, set->state_count)) {
            set->probabilities[i] += probability;
            return SL_OK;
        }
    }
    SL_TRY(sli_array_reserve(&set->probabilities, &set->room, (size_t)set->count + 1,
                             sizeof *set->probabilities, MAX_BELIEFS, "beliefs"));
    SL_TRY(sli_array_reserve(&set->states, &set->state_room, ((size_t)set->count + 1) * width,
                             sizeof *set->states, MAX_BELIEFS * width, "states of beliefs"));
    memcpy(set->states + (size_t)set->count * width, states, width * sizeof(double));
    set->probabilities[set->count++] = probability;
    return SL_OK;
}

/* Adds what a belief becomes by a word of `group`, where that can come. `work` holds a belief. */
static sl_status add_successor(const sli_grammar *grammar, double probability, const double *belief,
                               int group, double *work, beliefs *to)
{
    double likelihood = 0;
    memset(work, 0, (size_t)grammar->state_count * sizeof *work);
    for (int state = 0; state < grammar->state_count; state++) {
        if (belief[state] == 0)
            continue;
        double each = belief[state] / state_weight(grammar, state);
        for (int e = grammar->first_edge[state]; e < grammar->first_edge[state + 1]; e++) {
            if (grammar->edges[e].group != group)
                continue;
            work[grammar->edges[e].next] += each * grammar->edges[e].weight;
            likelihood += each * grammar->edges[e].weight;
        }
    }
    if (likelihood == 0)
        return SL_OK;
    for (int state = 0; state < grammar->state_count; state++)
        work[state] /= likelihood;
    return add_belief(to, probability * likelihood, work);
}

static sl_status add_successors(const sli_grammar *grammar, const beliefs *from, double *work,
                                beliefs *to)
{
    for (int i = 0; i < from->count; i++)
        for (int group = 0; group < SLI_GRAMMAR_GROUPS; group++)
            SL_TRY(add_successor(grammar, from->probabilities[i],
                                 from->states + (size_t)i * (size_t)from->state_count, group, work,
                                 to));
    return SL_OK;
}

sl_status sli_grammar_context_entropies(const sli_grammar *grammar, double *out, int count)
{
    beliefs now = {.state_count = grammar->state_count}, next = now;
    double *work = calloc((size_t)grammar->state_count, sizeof *work);
    sl_status status = work ? state_frequencies(grammar, work)
                            : sl_error(SL_ERR_MEMORY, "no memory for the grammar's states");
    if (status == SL_OK)
        status = add_belief(&now, 1, work);
    for (int t = 0; status == SL_OK && t < count; t++) {
        out[t] = 0;
        for (int i = 0; i < now.count; i++)
            out[t] += now.probabilities[i] *
                      belief_entropy(grammar, now.states + (size_t)i * (size_t)now.state_count);
        next = (beliefs){.state_count = grammar->state_count};
        status = add_successors(grammar, &now, work, &next);
        free_beliefs(&now);
        now = next;
    }
    free_beliefs(&now);
    free(work);
    return status;
}
