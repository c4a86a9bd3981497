/* Writing the synthetic corpus. */
#define _GNU_SOURCE /* asprintf */

#include "core/file.h"
#include "core/philox.h"
#include "core/replace.h"
#include "synthetic/facts.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { DEFAULT_TRAIN_TOKENS = 500000, TRAIN_TO_EVAL = 10 };

/* A corpus before it is written. */
typedef struct corpus {
    char *texts[SL_SPLITS];
    size_t bytes[SL_SPLITS];
    sli_synthetic_facts facts;
} corpus;

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

/* ---- Where it goes ----------------------------------------------------------------------- */

static sl_status path_in(const char *directory, const char *name, char **out)
{
    if (asprintf(out, "%s/%s", directory, name) >= 0)
        return SL_OK;
    *out = NULL;
    return sl_error(SL_ERR_MEMORY, "%s: no memory for the name of a file", directory);
}

static sl_status make_directory(const char *directory)
{
    struct stat about;
    if (mkdir(directory, 0777) == 0)
        return SL_OK;
    if (errno == EEXIST && stat(directory, &about) == 0 && S_ISDIR(about.st_mode))
        return SL_OK;
    return sl_error(SL_ERR_IO, "%s: cannot be made a directory: %s", directory, strerror(errno));
}

/* Removes one text of an older corpus; any other text is an error, and stays. */
static sl_status check_text(const char *path, const sli_synthetic_facts *older, bool found,
                            sl_split split, bool remove)
{
    if (found)
        SL_TRY(sli_synthetic_facts_fit(older, split, path, &found));
    if (!found)
        return sl_error(SL_ERR_INVALID,
                        "a synthetic corpus goes where no other text is, got %s: name another "
                        "directory",
                        path);
    return remove ? sli_directory_remove_path(path) : SL_OK;
}

static sl_status check_texts(const char *directory, const sli_synthetic_facts *older, bool found,
                             bool remove)
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

/* Nobody's own text or grammar.json is overwritten, nor hidden behind: what is there must be a
 * synthetic corpus, as it was written, of which any text may be missing. */
static sl_status remove_older(const char *directory)
{
    sli_synthetic_facts older;
    bool found;
    struct stat about;
    char *path;
    SL_TRY(sli_synthetic_facts_read(directory, &older, &found));
    SL_TRY(path_in(directory, "grammar.json", &path));
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
    char *path, name[16];
    sli_replace_file *file;
    snprintf(name, sizeof name, "%s.txt", sl_split_name(split));
    SL_TRY(path_in(directory, name, &path));
    sl_status status = sli_replace_file_create(path, &file);
    if (status == SL_OK)
        status = sli_replace_file_write(file, 0, from->texts[split], from->bytes[split]);
    if (status == SL_OK)
        status = sli_replace_file_commit(file);
    sli_replace_file_destroy(&file);
    free(path);
    return status;
}

/* An older corpus's texts go before its facts do, and the new ones come after theirs: at any moment
 * each text that is there fits the facts, so that an interrupted corpus can be written again. */
static sl_status write_corpus(const char *directory, uint64_t seed, const int64_t wanted[SL_SPLITS],
                              const corpus *from)
{
    SL_TRY(make_directory(directory));
    SL_TRY(remove_older(directory));
    SL_TRY(sli_synthetic_facts_write(directory, &from->facts, seed, wanted));
    for (int split = 0; split < SL_SPLITS; split++)
        SL_TRY(write_text(directory, (sl_split)split, from));
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
    corpus made = {0};
    sl_status status =
        sl_error_context(make_corpus(options->seed, wanted, &made), "%s: ", directory);
    if (status == SL_OK)
        status = write_corpus(directory, options->seed, wanted, &made);
    for (int split = 0; split < SL_SPLITS; split++)
        free(made.texts[split]);
    return status;
}
