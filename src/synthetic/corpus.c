/* A corpus is four files: three texts, and grammar.json with the facts about them. Such a file is
 * recognized by its content: a line that says what it is, and the checksums of the texts that it is
 * true of. A file of that name without the line is another program's, and texts with other
 * checksums are not the corpus. */
#include "synthetic/corpus.h"

#include "core/checksum.h"
#include "core/error.h"
#include "core/file.h"
#include "core/philox.h"
#include "core/replace.h"
#include "sluice/app/text.h"
#include "synthetic/grammar.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { DEFAULT_TRAIN_TOKENS = 500000, TRAIN_TO_EVAL = 10, MAX_FACTS_BYTES = 1 << 16 };

static const char facts_name[] = "grammar.json", format[] = "sluice synthetic corpus 1",
                  checksums_key[] = "xxh128", rate_key[] = "entropy_rate",
                  entropies_key[] = "entropy_by_known_tokens";

typedef struct facts {
    char checksums[SL_SPLITS][SLI_CHECKSUM_BYTES]; /* of train.txt, valid.txt, test.txt */
    double entropy_rate;                           /* nats per token */
    double entropies[SLI_GRAMMAR_LONGEST]; /* [t] with t tokens known; later ones: the rate */
} facts;

/* A corpus before it is written. */
typedef struct corpus {
    char *texts[SL_SPLITS];
    size_t bytes[SL_SPLITS];
    facts facts;
} corpus;

static sl_status write_in(const char *directory, const char *name, const char *text, size_t bytes)
{
    char *path;
    SL_TRY(sli_path_join(directory, name, &path));
    sl_status status = sli_file_write(path, text, bytes);
    free(path);
    return status;
}

/* ---- Sentences --------------------------------------------------------------------------- */

/* Maps 32 random bits to 0 … total - 1. */
static uint32_t scale_bits(uint32_t bits, uint32_t total)
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
    uint32_t left = scale_bits(bits, total);
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
    uint32_t left = scale_bits(bits, total);
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

static sl_status make_text(const sli_grammar *grammar, uint64_t seed, sl_split split,
                           int64_t wanted, corpus *to)
{
    FILE *memory = open_memstream(&to->texts[split], &to->bytes[split]);
    int64_t written = 0;
    for (uint32_t sentence = 0; memory && written < wanted; sentence++)
        written += write_sentence(grammar, seed, split, sentence, memory);
    bool complete = memory && !ferror(memory);
    if (memory && fclose(memory) != 0)
        complete = false;
    if (!complete)
        return sl_error(SL_ERR_MEMORY, "no memory for a text of %lld tokens", (long long)wanted);
    sli_checksum_of(to->texts[split], to->bytes[split], to->facts.checksums[split]);
    return SL_OK;
}

static sl_status make_corpus(uint64_t seed, const int64_t wanted[SL_SPLITS], corpus *to)
{
    sli_grammar *grammar;
    SL_TRY(sli_grammar_create(&grammar));
    sl_status status = sli_grammar_entropy_rate(grammar, &to->facts.entropy_rate);
    if (status == SL_OK)
        status = sli_grammar_context_entropies(grammar, to->facts.entropies, SLI_GRAMMAR_LONGEST);
    for (int split = 0; split < SL_SPLITS && status == SL_OK; split++)
        status = make_text(grammar, seed, (sl_split)split, wanted[split], to);
    sli_grammar_destroy(&grammar);
    return status;
}

/* ---- The facts --------------------------------------------------------------------------- */

/* The file's text, or NULL where there is no memory. */
static char *print_facts(const facts *of, uint64_t seed, const int64_t *tokens)
{
    char seed_text[24]; /* a string: JSON readers keep 53 bits of a number */
    snprintf(seed_text, sizeof seed_text, "%llu", (unsigned long long)seed);
    json_t *entropies = json_array(), *counts = json_object(), *checksums = json_object();
    for (int t = 0; t < SLI_GRAMMAR_LONGEST; t++)
        json_array_append_new(entropies, json_real(of->entropies[t]));
    for (int split = 0; split < SL_SPLITS; split++) {
        const char *name = sl_split_name((sl_split)split);
        json_object_set_new(counts, name, json_integer(tokens[split]));
        json_object_set_new(checksums, name, json_string(of->checksums[split]));
    }
    json_t *root =
        json_pack("{s:s, s:s, s:s, s:o, s:o, s:f, s:f, s:o}", "format", format, "about",
                  "entropies are in nats per token, checksums those of the texts", "seed",
                  seed_text, "tokens", counts, checksums_key, checksums, "best_perplexity",
                  exp(of->entropy_rate), rate_key, of->entropy_rate, entropies_key, entropies);
    char *text = root ? json_dumps(root, JSON_INDENT(2)) : NULL;
    json_decref(root);
    return text;
}

/* `seed` and `tokens` are for people who read it. */
static sl_status write_facts(const char *directory, const facts *of, uint64_t seed,
                             const int64_t tokens[SL_SPLITS])
{
    char *text = print_facts(of, seed, tokens);
    if (!text)
        return sl_error(SL_ERR_MEMORY, "%s: no memory for its %s", directory, facts_name);
    sl_status status = write_in(directory, facts_name, text, strlen(text));
    free(text);
    return status;
}

static bool parse_entropy(const json_t *value, double *out)
{
    *out = json_number_value(value);
    return json_is_number(value) && *out >= 0 && *out < 100; /* e^100 tokens exist nowhere */
}

static bool parse_facts(const json_t *root, facts *out)
{
    const json_t *entropies = json_object_get(root, entropies_key);
    bool good = json_array_size(entropies) == SLI_GRAMMAR_LONGEST &&
                parse_entropy(json_object_get(root, rate_key), &out->entropy_rate);
    for (size_t t = 0; good && t < SLI_GRAMMAR_LONGEST; t++)
        good = parse_entropy(json_array_get(entropies, t), &out->entropies[t]);
    for (int split = 0; good && split < SL_SPLITS; split++) {
        const char *checksum = json_string_value(
            json_object_get(json_object_get(root, checksums_key), sl_split_name((sl_split)split)));
        good = checksum && strlen(checksum) == SLI_CHECKSUM_BYTES - 1;
        if (good)
            memcpy(out->checksums[split], checksum, SLI_CHECKSUM_BYTES);
    }
    return good;
}

/* *found is false where there is no such file, or one that cannot be read or is another program's.
 * Errors: SL_ERR_FORMAT where it says that it is a synthetic corpus's, but lacks a fact. */
static sl_status read_facts(const char *directory, facts *out, bool *found)
{
    char *path, *text;
    size_t bytes;
    *out = (facts){0};
    *found = false;
    SL_TRY(sli_path_join(directory, facts_name, &path));
    sl_status status = sli_file_read(path, MAX_FACTS_BYTES, &text, &bytes);
    if (status != SL_OK) {
        free(path);
        return status == SL_ERR_MEMORY ? status : SL_OK;
    }
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, NULL);
    const char *says = json_string_value(json_object_get(root, "format"));
    *found = says && strcmp(says, format) == 0;
    if (*found && !parse_facts(root, out))
        status = sl_error(SL_ERR_FORMAT,
                          "%s: it says \"%s\", but lacks \"%s\", \"%s\" or \"%s\" as such a "
                          "corpus has them: remove it",
                          path, format, checksums_key, rate_key, entropies_key);
    json_decref(root);
    free(text);
    free(path);
    return status;
}

/* Whether the file at `path` is the split that the facts are of. */
static sl_status compare_text(const facts *of, sl_split split, const char *path, bool *same)
{
    char *text, checksum[SLI_CHECKSUM_BYTES];
    size_t bytes;
    *same = false;
    SL_TRY(sli_file_read(path, INT64_MAX, &text, &bytes));
    *same = strcmp(sli_checksum_of(text, bytes, checksum), of->checksums[split]) == 0;
    free(text);
    return SL_OK;
}

/* ---- Where it goes ----------------------------------------------------------------------- */

static sl_status make_directory(const char *directory)
{
    struct stat about;
    if (mkdir(directory, 0777) == 0)
        return SL_OK;
    if (errno == EEXIST && stat(directory, &about) == 0 && S_ISDIR(about.st_mode))
        return SL_OK;
    return sli_io_error(directory, "cannot be made a directory");
}

/* Removes one text of an older corpus; any other text is an error, and stays. */
static sl_status check_text(const char *path, const facts *older, bool found, sl_split split,
                            bool remove)
{
    if (found)
        SL_TRY(compare_text(older, split, path, &found));
    if (!found)
        return sl_error(SL_ERR_INVALID,
                        "a synthetic corpus goes where no other text is, got %s: name another "
                        "directory",
                        path);
    return remove ? sli_directory_remove_path(path) : SL_OK;
}

static sl_status check_texts(const char *directory, const facts *older, bool found, bool remove)
{
    for (int split = 0; split < SL_SPLITS; split++) {
        char *path;
        if (sl_split_path(directory, (sl_split)split, &path) != SL_OK)
            continue;
        sl_status status = check_text(path, older, found, (sl_split)split, remove);
        free(path);
        SL_TRY(status);
    }
    return SL_OK;
}

/* What is there must be a synthetic corpus as it was written, of which texts may be missing: no
 * other text or grammar.json is overwritten, or hidden by the new one. */
static sl_status remove_older(const char *directory)
{
    facts older;
    bool found;
    struct stat about;
    char *path;
    SL_TRY(read_facts(directory, &older, &found));
    SL_TRY(sli_path_join(directory, facts_name, &path));
    bool other = !found && lstat(path, &about) == 0;
    free(path);
    if (other)
        return sl_error(SL_ERR_INVALID,
                        "%s: its grammar.json is not a synthetic corpus's, which would replace it: "
                        "name another directory",
                        directory);
    SL_TRY(check_texts(directory, &older, found, false));
    return check_texts(directory, &older, found, true);
}

static sl_status write_text(const char *directory, sl_split split, const corpus *from)
{
    char name[16];
    snprintf(name, sizeof name, "%s.txt", sl_split_name(split));
    return write_in(directory, name, from->texts[split], from->bytes[split]);
}

/* An older corpus's texts go before its facts do, and the new ones come after theirs: at any moment
 * each text that is there fits the facts, so that an interrupted corpus can be written again. */
static sl_status write_corpus(const char *directory, uint64_t seed, const int64_t wanted[SL_SPLITS],
                              const corpus *from)
{
    SL_TRY(make_directory(directory));
    SL_TRY(remove_older(directory));
    SL_TRY(write_facts(directory, &from->facts, seed, wanted));
    for (int split = 0; split < SL_SPLITS; split++)
        SL_TRY(write_text(directory, (sl_split)split, from));
    return SL_OK;
}

sl_status sli_synthetic_write(const char *directory, const sli_synthetic_options *options)
{
    if (options->train_tokens < 0 || options->eval_tokens < 0)
        return sl_error(SL_ERR_INVALID,
                        "a synthetic corpus's numbers of tokens must not be negative, got "
                        "%lld and %lld",
                        (long long)options->train_tokens, (long long)options->eval_tokens);
    int64_t train = options->train_tokens ? options->train_tokens : DEFAULT_TRAIN_TOKENS;
    int64_t eval =
        options->eval_tokens ? options->eval_tokens : (train + TRAIN_TO_EVAL - 1) / TRAIN_TO_EVAL;
    const int64_t wanted[SL_SPLITS] = {train, eval, eval};
    corpus made = {0};
    sl_status status =
        sl_error_context(make_corpus(options->seed, wanted, &made), "%s: ", directory);
    if (status == SL_OK)
        status = write_corpus(directory, options->seed, wanted, &made);
    for (int split = 0; split < SL_SPLITS; split++)
        free(made.texts[split]);
    return status;
}

/* ---- The best possible model ------------------------------------------------------------- */

static sl_status compare_texts(const facts *of, const char *directory, bool *same)
{
    *same = true;
    for (int split = 0; split < SL_SPLITS && *same; split++) {
        char *path;
        SL_TRY(sl_split_path(directory, (sl_split)split, &path));
        sl_status status = compare_text(of, (sl_split)split, path, same);
        free(path);
        SL_TRY(status);
    }
    return SL_OK;
}

/* The mean over a block's positions; that of a block without end is the rate. */
static double best_loss(const facts *of, int64_t bptt)
{
    double excess = 0;
    for (int64_t t = 1; t <= bptt && t < SLI_GRAMMAR_LONGEST; t++)
        excess += of->entropies[t] - of->entropy_rate;
    return of->entropy_rate + (bptt ? excess / (double)bptt : 0);
}

sl_status sli_synthetic_best_perplexity(const char *directory, int64_t bptt, double *out)
{
    facts of;
    bool found;
    *out = 0;
    if (bptt < 0)
        return sl_error(SL_ERR_INVALID, "the best perplexity: bptt must be at least 0, got %lld",
                        (long long)bptt);
    SL_TRY(read_facts(directory, &of, &found));
    if (found)
        SL_TRY(compare_texts(&of, directory, &found));
    if (found)
        *out = exp(best_loss(&of, bptt));
    return SL_OK;
}

/* ---- What must not be overwritten -------------------------------------------------------- */

sl_status sli_synthetic_check_output(const char *directory, const char *path)
{
    char *grammar;
    sl_status status = SL_OK;
    SL_TRY(sli_path_join(directory, facts_name, &grammar));
    if (sli_path_same_file(path, grammar))
        status = sl_error(SL_ERR_INVALID, "%s is an input and must not be overwritten", grammar);
    free(grammar);
    return status;
}
