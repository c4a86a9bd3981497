#include "synthetic/grammar.h"

#include <assert.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Words ------------------------------------------------------------------------------ */

enum kind { PERSON, ANIMAL, FOOD, THING, KINDS };
enum number { SINGULAR, PLURAL, NUMBERS, EITHER = NUMBERS }; /* EITHER: of "the", "my", … */

/* Groups, by what they depend on; the last of each range is given by the next one's first. */
enum group {
    FULL_STOP = SLI_GRAMMAR_FULL_STOP,
    AND,
    PREPOSITION,
    ADVERB,
    DETERMINER,                           /* + number or EITHER */
    ADJECTIVE = DETERMINER + NUMBERS + 1, /* + kind */
    PLACE_NOUN = ADJECTIVE + KINDS,       /* + number */
    NOUN = PLACE_NOUN + NUMBERS,          /* + NUMBERS * kind + number */
    VERB = NOUN + NUMBERS * KINDS,        /* + NUMBERS * the object's kind + number */
    GROUPS = VERB + NUMBERS * KINDS,
};
_Static_assert((int)GROUPS == (int)SLI_GRAMMAR_GROUPS, "the header says how many there are");

/* Stems, separated by blanks. */
static const char *const small_words[] = {
    [FULL_STOP] = ".",
    [AND] = "and",
    [PREPOSITION] = "near behind beside under above past",
    [ADVERB] = "today often again soon quietly slowly gladly twice",
    [DETERMINER + SINGULAR] = "this that every each one",
    [DETERMINER + PLURAL] = "these those many few several",
    [DETERMINER + EITHER] = "the my your our their",
    [ADJECTIVE + PERSON] = "clever polite famous lazy brave honest busy jealous",
    [ADJECTIVE + ANIMAL] = "wild furry hungry tame swift noisy spotted shy",
    [ADJECTIVE + FOOD] = "sweet ripe fresh sour salty juicy crisp bitter",
    [ADJECTIVE + THING] = "wooden broken heavy shiny rusty painted hollow dusty",
};
static const char place_nouns[] = "house river garden bridge barn tower hill market road field";
static const char *const nouns[KINDS] = {
    [PERSON] = "teacher farmer sailor doctor singer baker hunter painter driver writer soldier "
               "dancer king queen neighbor gardener student pilot judge tailor",
    [ANIMAL] = "dog cat horse bird cow goat duck lion bear rabbit tiger monkey camel eagle spider "
               "beetle turtle frog whale crow",
    [FOOD] = "apple cake carrot egg melon cookie pear onion lemon biscuit plum nut bean banana "
             "pumpkin sausage pie muffin olive turnip",
    [THING] = "hammer lamp basket wagon drum ladder bucket mirror table kettle clock blanket hat "
              "chair bottle pencil saddle wheel rope candle",
};
static const char *const verbs[KINDS] = {
    [PERSON] = "greet thank help visit follow invite warn praise trust obey",
    [ANIMAL] = "feed chase ride train hunt rescue frighten shelter groom stroke",
    [FOOD] = "eat cook taste peel slice chew bake share swallow nibble",
    [THING] = "build repair lift drop borrow own move clean hide sell",
};

/* Words in the plural (nouns) or in the singular (verbs) have an s. */
static const char *stems_of(int group, bool *with_s)
{
    *with_s = false;
    if (group < PLACE_NOUN)
        return small_words[group];
    if (group < NOUN) {
        *with_s = group - PLACE_NOUN == PLURAL;
        return place_nouns;
    }
    int first = group < VERB ? NOUN : VERB;
    int kind = (group - first) / NUMBERS, number = (group - first) % NUMBERS;
    *with_s = number == (first == NOUN ? PLURAL : SINGULAR);
    return first == NOUN ? nouns[kind] : verbs[kind];
}

int sli_grammar_word_count(int group)
{
    bool with_s;
    int count = 1;
    for (const char *at = stems_of(group, &with_s); (at = strchr(at, ' ')); at++)
        count++;
    return count;
}

/* Zipf's law: the second word is half as frequent as the first, … */
uint32_t sli_grammar_word_weight(int word)
{
    return 60u / (uint32_t)(word + 1);
}

void sli_grammar_word(int group, int word, char text[SLI_GRAMMAR_WORD_BYTES])
{
    bool with_s;
    const char *stem = stems_of(group, &with_s);
    for (; word > 0; word--)
        stem = strchr(stem, ' ') + 1;
    snprintf(text, SLI_GRAMMAR_WORD_BYTES, "%.*s%s", (int)strcspn(stem, " "), stem,
             with_s ? "s" : "");
}

/* ---- States ----------------------------------------------------------------------------- */

/* What comes next. Every edge but those to START leads to a later position: so sentences end. */
enum position {
    START,
    SUBJECT,           /* an adjective or the noun */
    SUBJECT_ADJECTIVE, /* another adjective or the noun; the noun's kind is known */
    SUBJECT_NOUN,
    AFTER_SUBJECT, /* a preposition or the verb */
    PLACE_DETERMINER,
    PLACE,
    FIRST_VERB,
    FIRST_DETERMINER,
    FIRST_OBJECT, /* an adjective or the noun */
    FIRST_NOUN,
    AFTER_FIRST, /* an adverb, "and" or the full stop */
    SECOND_VERB,
    SECOND_DETERMINER,
    SECOND_OBJECT,
    SECOND_NOUN,
    AFTER_SECOND, /* an adverb or the full stop */
    BEFORE_STOP,
};

/* Fields that do not matter at a position are 0, so that equal states have equal fields. */
typedef struct state {
    unsigned char position;
    unsigned char determiner; /* number, or EITHER, of the noun that is to come */
    unsigned char number;     /* of the subject */
    unsigned char kind;       /* of the subject */
    unsigned char object;     /* kind */
} state;

enum { STATES_MAX = 1024, EDGES_MAX = 8 * STATES_MAX };

typedef struct builder {
    sli_grammar *grammar;
    state states[STATES_MAX]; /* those found so far; the first `expanded` have their edges */
} builder;

static int number_of(builder *build, state wanted)
{
    sli_grammar *grammar = build->grammar;
    for (int i = 0; i < grammar->state_count; i++)
        if (memcmp(&build->states[i], &wanted, sizeof wanted) == 0)
            return i;
    assert(grammar->state_count < STATES_MAX);
    build->states[grammar->state_count] = wanted;
    return grammar->state_count++;
}

static void add_edge(builder *build, int group, uint32_t weight, state next)
{
    sli_grammar *grammar = build->grammar;
    if (weight == 0)
        return;
    assert(grammar->edge_count < EDGES_MAX);
    int to = number_of(build, next);
    grammar->edges[grammar->edge_count++] = (sli_grammar_edge){group, to, weight};
}

static void add_determiners(builder *build, state next)
{
    static const uint32_t weights[] = {[SINGULAR] = 35, [PLURAL] = 25, [EITHER] = 40};
    for (int number = SINGULAR; number <= EITHER; number++) {
        next.determiner = (unsigned char)number;
        add_edge(build, DETERMINER + number, weights[number], next);
    }
}

/* A noun of either number where the determiner leaves it open: 55 to 45. */
static uint32_t number_weight(int determiner, int number)
{
    if (determiner == EITHER)
        return number == SINGULAR ? 55 : 45;
    return number == determiner ? 100 : 0;
}

static void add_subject_nouns(builder *build, const state *from, int kind, uint32_t weight)
{
    for (int number = 0; number < NUMBERS; number++)
        add_edge(build, NOUN + NUMBERS * kind + number,
                 weight * number_weight(from->determiner, number),
                 (state){.position = AFTER_SUBJECT,
                         .number = (unsigned char)number,
                         .kind = (unsigned char)kind});
}

/* At first the subject's kind is open; an adjective gives it away. */
static void expand_subject(builder *build, const state *from)
{
    static const uint32_t kind_weights[KINDS] = {[PERSON] = 55, [ANIMAL] = 45};
    state next = *from;
    if (from->position != SUBJECT) {
        next.position = SUBJECT_NOUN;
        if (from->position == SUBJECT_ADJECTIVE)
            add_edge(build, ADJECTIVE + from->kind, 25 * 100, next);
        add_subject_nouns(build, from, from->kind, 75);
        return;
    }
    next.position = SUBJECT_ADJECTIVE;
    for (int kind = 0; kind < KINDS; kind++) {
        next.kind = (unsigned char)kind;
        add_edge(build, ADJECTIVE + kind, 40 * kind_weights[kind] * 100, next);
        add_subject_nouns(build, from, kind, 60 * kind_weights[kind]);
    }
}

/* The second clause does not need the subject any more. */
static void add_verbs(builder *build, const state *from, uint32_t weight)
{
    static const uint32_t object_weights[KINDS][KINDS] = {
        [PERSON] = {[PERSON] = 30, [ANIMAL] = 15, [FOOD] = 20, [THING] = 35},
        [ANIMAL] = {[PERSON] = 15, [ANIMAL] = 35, [FOOD] = 45, [THING] = 5},
    };
    state next = {.position = SECOND_DETERMINER};
    if (from->position != SECOND_VERB) {
        next = *from;
        next.position = FIRST_DETERMINER;
    }
    for (int kind = 0; kind < KINDS; kind++) {
        next.object = (unsigned char)kind;
        add_edge(build, VERB + NUMBERS * kind + from->number,
                 weight * object_weights[from->kind][kind], next);
    }
}

static void expand_place(builder *build, const state *from)
{
    for (int number = 0; number < NUMBERS; number++)
        add_edge(build, PLACE_NOUN + number, number_weight(from->determiner, number),
                 (state){.position = FIRST_VERB, .number = from->number, .kind = from->kind});
}

static void expand_object(builder *build, const state *from)
{
    bool first = from->position == FIRST_OBJECT || from->position == FIRST_NOUN;
    state next = *from;
    next.position = first ? FIRST_NOUN : SECOND_NOUN;
    if (from->position != next.position)
        add_edge(build, ADJECTIVE + from->object, 30 * 100, next);
    next.position = first ? AFTER_FIRST : AFTER_SECOND;
    next.determiner = next.object = 0;
    for (int number = 0; number < NUMBERS; number++)
        add_edge(build, NOUN + NUMBERS * from->object + number,
                 (from->position == FIRST_OBJECT || from->position == SECOND_OBJECT ? 70 : 100) *
                     number_weight(from->determiner, number),
                 next);
}

/* The edges of a state at any position. */
static void expand_state(builder *build, state from)
{
    state next = from;
    next.position++;
    switch ((enum position)from.position) {
    case START:
    case PLACE_DETERMINER:
    case FIRST_DETERMINER:
    case SECOND_DETERMINER:
        add_determiners(build, next);
        break;
    case SUBJECT:
    case SUBJECT_ADJECTIVE:
    case SUBJECT_NOUN:
        expand_subject(build, &from);
        break;
    case AFTER_SUBJECT:
        add_edge(build, PREPOSITION, 35 * 100, next);
        add_verbs(build, &from, 65);
        break;
    case PLACE:
        expand_place(build, &from);
        break;
    case FIRST_VERB:
    case SECOND_VERB:
        add_verbs(build, &from, 1);
        break;
    case FIRST_OBJECT:
    case FIRST_NOUN:
    case SECOND_OBJECT:
    case SECOND_NOUN:
        expand_object(build, &from);
        break;
    case AFTER_FIRST:
        add_edge(build, AND, 30, next);
        add_edge(build, ADVERB, 20, (state){.position = BEFORE_STOP});
        add_edge(build, FULL_STOP, 50, (state){.position = START});
        break;
    case AFTER_SECOND:
        add_edge(build, ADVERB, 25, (state){.position = BEFORE_STOP});
        add_edge(build, FULL_STOP, 75, (state){.position = START});
        break;
    case BEFORE_STOP:
        add_edge(build, FULL_STOP, 1, (state){.position = START});
        break;
    }
}

sl_status sli_grammar_create(sli_grammar **out)
{
    *out = NULL;
    sli_grammar *grammar = calloc(1, sizeof *grammar);
    builder *build = calloc(1, sizeof *build);
    if (grammar) {
        grammar->first_edge = calloc(STATES_MAX + 1, sizeof *grammar->first_edge);
        grammar->edges = calloc(EDGES_MAX, sizeof *grammar->edges);
    }
    if (!build || !grammar || !grammar->first_edge || !grammar->edges) {
        free(build);
        sli_grammar_destroy(&grammar);
        return sl_error(SL_ERR_MEMORY, "no memory for the synthetic corpus's grammar");
    }
    build->grammar = grammar;
    number_of(build, (state){.position = START});
    for (int i = 0; i < grammar->state_count; i++) {
        expand_state(build, build->states[i]);
        grammar->first_edge[i + 1] = grammar->edge_count;
    }
    free(build);
    *out = grammar;
    return SL_OK;
}

void sli_grammar_destroy(sli_grammar **grammar)
{
    if (!grammar || !*grammar)
        return;
    free((*grammar)->first_edge);
    free((*grammar)->edges);
    free(*grammar);
    *grammar = NULL;
}
