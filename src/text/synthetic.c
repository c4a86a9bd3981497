/* Writing the synthetic corpus, and reading what is known of it. */
#include "sluice/text.h"

#include "core/philox.h"
#include "core/replace_file.h"
#include "text/grammar.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DEFAULT_TRAIN_TOKENS = 500000, TRAIN_TO_EVAL = 10 };

static const char facts_name[] = "grammar.json";

static sl_status path_in(const char *directory, const char *name, const char *suffix, char **out)
{
    size_t bytes = strlen(directory) + strlen(name) + strlen(suffix) + 2;
    *out = malloc(bytes);
    if (!*out)
        return sl_error(SL_ERR_MEMORY, "%s: no memory for the name of a file", directory);
    snprintf(*out, bytes, "%s/%s%s", directory, name, suffix);
    return SL_OK;
}

static sl_status write_whole(const char *path, const char *text, size_t bytes)
{
    sli_replace_file *file = NULL;
    sl_status status = sli_replace_file_create(path, &file);
    if (status == SL_OK)
        status = sli_replace_file_write(file, 0, text, bytes);
    if (status == SL_OK)
        status = sli_replace_file_commit(file);
    sli_replace_file_destroy(&file);
    return status;
}

/* ---- Sentences --------------------------------------------------------------------------- */

/* Maps 32 random bits to 0 … total - 1. */
static uint32_t pick(uint32_t bits, uint32_t total)
{
    return (uint32_t)((uint64_t)bits * total >> 32);
}

static const sli_grammar_edge *pick_edge(const sli_grammar *grammar, int state, uint32_t bits)
{
    const sli_grammar_edge *edge = grammar->edges + grammar->first_edge[state];
    const sli_grammar_edge *end = grammar->edges + grammar->first_edge[state + 1];
    uint32_t total = 0;
    for (const sli_grammar_edge *each = edge; each < end; each++)
        total += each->weight;
    uint32_t left = pick(bits, total);
    for (; left >= edge->weight; edge++)
        left -= edge->weight;
    return edge;
}

static int pick_word(int group, uint32_t bits)
{
    int count = sli_grammar_word_count(group), word = 0;
    uint32_t total = 0;
    for (int i = 0; i < count; i++)
        total += sli_grammar_word_weight(i);
    uint32_t left = pick(bits, total);
    for (; left >= sli_grammar_word_weight(word); word++)
        left -= sli_grammar_word_weight(word);
    return word;
}

/* Writes one sentence as a line, as people write it; returns how many tokens it has. */
static int64_t write_sentence(const sli_grammar *grammar, uint64_t seed, sl_split split,
                              uint32_t sentence, FILE *to)
{
    sli_philox_key key = sli_philox_key_make(seed, SLI_RANDOM_SAMPLE);
    char word[SLI_GRAMMAR_WORD_BYTES];
    int64_t count = 0;
    int state = SLI_GRAMMAR_START;
    do {
        uint32_t random[4] = {(uint32_t)count, sentence, (uint32_t)split, 0};
        sli_philox(key, random);
        const sli_grammar_edge *edge = pick_edge(grammar, state, random[0]);
        sli_grammar_word(edge->group, pick_word(edge->group, random[1]), word);
        if (count == 0)
            word[0] = (char)(word[0] - 'a' + 'A');
        else if (edge->group != SLI_GRAMMAR_FULL_STOP)
            fputc(' ', to);
        fputs(word, to);
        state = edge->next;
        count++;
    } while (state != SLI_GRAMMAR_START);
    fputc('\n', to);
    return count;
}

static sl_status write_split(const sli_grammar *grammar, const char *directory, uint64_t seed,
                             sl_split split, int64_t wanted)
{
    char *path = NULL, *text = NULL;
    size_t bytes = 0;
    SL_TRY(path_in(directory, sl_split_name(split), ".txt", &path));
    sl_status status = SL_OK;
    FILE *memory = open_memstream(&text, &bytes);
    int64_t written = 0;
    for (uint32_t sentence = 0; memory && written < wanted; sentence++)
        written += write_sentence(grammar, seed, split, sentence, memory);
    bool complete = memory && !ferror(memory);
    if (memory && fclose(memory) != 0)
        complete = false;
    status = complete ? write_whole(path, text, bytes)
                      : sl_error(SL_ERR_MEMORY, "%s: no memory for a text of %lld tokens", path,
                                 (long long)wanted);
    free(text);
    free(path);
    return status;
}

/* ---- What is known of the corpus ---------------------------------------------------------- */

typedef struct facts {
    double entropy_rate;
    double entropies[SLI_GRAMMAR_LONGEST]; /* [t] with t tokens known; later ones: the rate */
} facts;

static sl_status compute_facts(const sli_grammar *grammar, facts *out)
{
    SL_TRY(sli_grammar_entropy_rate(grammar, &out->entropy_rate));
    return sli_grammar_context_entropies(grammar, out->entropies, SLI_GRAMMAR_LONGEST);
}

/* The text of grammar.json, or NULL where there is no memory. */
static char *facts_text(const facts *known, uint64_t seed, const int64_t tokens[SL_SPLITS])
{
    char seed_text[24]; /* a string: JSON readers keep 53 bits of a number */
    snprintf(seed_text, sizeof seed_text, "%llu", (unsigned long long)seed);
    json_t *entropies = json_array();
    for (int t = 0; t < SLI_GRAMMAR_LONGEST; t++)
        json_array_append_new(entropies, json_real(known->entropies[t]));
    json_t *root =
        json_pack("{s:s, s:s, s:{s:I, s:I, s:I}, s:f, s:f, s:o}", "about",
                  "a synthetic corpus of sluice; entropies are in nats per token", "seed",
                  seed_text, "tokens", "train", (json_int_t)tokens[SL_SPLIT_TRAIN], "valid",
                  (json_int_t)tokens[SL_SPLIT_VALID], "test", (json_int_t)tokens[SL_SPLIT_TEST],
                  "best_perplexity", exp(known->entropy_rate), "entropy_rate", known->entropy_rate,
                  "entropy_by_known_tokens", entropies);
    char *text = root ? json_dumps(root, JSON_INDENT(2)) : NULL;
    json_decref(root);
    return text;
}

static sl_status write_facts(const char *directory, const facts *known, uint64_t seed,
                             const int64_t tokens[SL_SPLITS])
{
    char *path = NULL, *text = facts_text(known, seed, tokens);
    sl_status status =
        text ? path_in(directory, facts_name, "", &path)
             : sl_error(SL_ERR_MEMORY, "%s: no memory for its %s", directory, facts_name);
    if (status == SL_OK)
        status = write_whole(path, text, strlen(text));
    free(text);
    free(path);
    return status;
}

static bool read_entropy(const json_t *value, double *out)
{
    *out = json_number_value(value);
    return json_is_number(value) && *out >= 0 && *out < 100; /* e^100 tokens exist nowhere */
}

static sl_status parse_facts(const json_t *root, const char *path, facts *out)
{
    const json_t *entropies = json_object_get(root, "entropy_by_known_tokens");
    bool good = json_array_size(entropies) == SLI_GRAMMAR_LONGEST &&
                read_entropy(json_object_get(root, "entropy_rate"), &out->entropy_rate);
    for (size_t t = 0; good && t < SLI_GRAMMAR_LONGEST; t++)
        good = read_entropy(json_array_get(entropies, t), &out->entropies[t]);
    if (good)
        return SL_OK;
    return sl_error(SL_ERR_FORMAT,
                    "%s: expected \"entropy_rate\" and %d numbers \"entropy_by_known_tokens\", as "
                    "the writer of synthetic corpora leaves them",
                    path, (int)SLI_GRAMMAR_LONGEST);
}

/* *exists is false, and nothing is read, where there is no such file. */
static sl_status read_facts(const char *path, facts *out, bool *exists)
{
    json_error_t error;
    FILE *file = fopen(path, "rb");
    *out = (facts){0};
    *exists = file != NULL || errno != ENOENT;
    if (!file)
        return *exists ? sl_error(SL_ERR_IO, "%s: cannot be opened: %s", path, strerror(errno))
                       : SL_OK;
    json_t *root = json_loadf(file, JSON_REJECT_DUPLICATES, &error);
    sl_status status =
        root ? parse_facts(root, path, out)
             : sl_error(SL_ERR_FORMAT, "%s: line %d: %s", path, error.line, error.text);
    json_decref(root);
    fclose(file);
    return status;
}

/* ---- Public functions -------------------------------------------------------------------- */

static sl_status make_directory(const char *directory)
{
    struct stat about;
    if (mkdir(directory, 0777) == 0)
        return SL_OK;
    if (errno == EEXIST && stat(directory, &about) == 0 && S_ISDIR(about.st_mode))
        return SL_OK;
    return sl_error(SL_ERR_IO, "%s: cannot be made a directory: %s", directory, strerror(errno));
}

/* Nobody's own text is overwritten, nor hidden behind: what is there must be a synthetic corpus. */
static sl_status check_replaceable(const char *directory)
{
    struct stat about;
    char *path;
    SL_TRY(path_in(directory, facts_name, "", &path));
    bool synthetic = stat(path, &about) == 0;
    free(path);
    for (int split = 0; split < SL_SPLITS && !synthetic; split++) {
        if (sl_split_path(directory, (sl_split)split, &path) != SL_OK)
            continue;
        sl_status status =
            sl_error(SL_ERR_INVALID, "%s: a synthetic corpus goes where no other text is, got %s",
                     directory, path);
        free(path);
        return status;
    }
    return SL_OK;
}

/* The facts first: so an interrupted corpus can be written again. */
static sl_status write_corpus(const sli_grammar *grammar, const char *directory, uint64_t seed,
                              const int64_t wanted[SL_SPLITS])
{
    facts known;
    SL_TRY(compute_facts(grammar, &known));
    SL_TRY(make_directory(directory));
    SL_TRY(check_replaceable(directory));
    SL_TRY(write_facts(directory, &known, seed, wanted));
    for (int split = 0; split < SL_SPLITS; split++)
        SL_TRY(write_split(grammar, directory, seed, (sl_split)split, wanted[split]));
    return SL_OK;
}

sl_status sl_synthetic_corpus_write(const char *directory, const sl_synthetic_options *options)
{
    if (options->train_tokens < 0 || options->eval_tokens < 0)
        return sl_error(SL_ERR_INVALID,
                        "sl_synthetic_corpus_write: numbers of tokens must not be negative, got "
                        "%lld and %lld",
                        (long long)options->train_tokens, (long long)options->eval_tokens);
    int64_t train = options->train_tokens ? options->train_tokens : DEFAULT_TRAIN_TOKENS;
    int64_t eval =
        options->eval_tokens ? options->eval_tokens : (train + TRAIN_TO_EVAL - 1) / TRAIN_TO_EVAL;
    const int64_t wanted[SL_SPLITS] = {train, eval, eval};
    sli_grammar *grammar;
    SL_TRY(sli_grammar_create(&grammar));
    sl_status status = write_corpus(grammar, directory, options->seed, wanted);
    sli_grammar_destroy(&grammar);
    return status;
}

/* The mean over a block's positions; that of a block without end is the rate. */
static double best_loss(const facts *known, int64_t bptt)
{
    double excess = 0;
    for (int64_t t = 1; t <= bptt && t < SLI_GRAMMAR_LONGEST; t++)
        excess += known->entropies[t] - known->entropy_rate;
    return known->entropy_rate + (bptt ? excess / (double)bptt : 0);
}

sl_status sl_synthetic_corpus_best_perplexity(const char *directory, int64_t bptt, double *out)
{
    facts known;
    char *path;
    bool exists;
    *out = 0;
    if (bptt < 0)
        return sl_error(SL_ERR_INVALID,
                        "sl_synthetic_corpus_best_perplexity: bptt must be at least 0, got %lld",
                        (long long)bptt);
    SL_TRY(path_in(directory, facts_name, "", &path));
    sl_status status = read_facts(path, &known, &exists);
    if (status == SL_OK && exists)
        *out = exp(best_loss(&known, bptt));
    free(path);
    return status;
}
