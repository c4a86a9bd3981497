#define _GNU_SOURCE /* asprintf */

#include "synthetic/facts.h"

#include "core/replace.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_BYTES = 1 << 16, BLOCK_BYTES = 1 << 16 };

static const char format[] = "sluice synthetic corpus 1", checksums_key[] = "xxh128",
                  rate_key[] = "entropy_rate", entropies_key[] = "entropy_by_known_tokens";

static sl_status path_in(const char *directory, char **out)
{
    if (asprintf(out, "%s/grammar.json", directory) >= 0)
        return SL_OK;
    *out = NULL;
    return sl_error(SL_ERR_MEMORY, "%s: no memory for the name of a file", directory);
}

/* ---- Writing ---------------------------------------------------------------------------- */

/* The file's text, or NULL where there is no memory. */
static char *print(const sli_synthetic_facts *facts, uint64_t seed, const int64_t *tokens)
{
    char seed_text[24]; /* a string: JSON readers keep 53 bits of a number */
    snprintf(seed_text, sizeof seed_text, "%llu", (unsigned long long)seed);
    json_t *entropies = json_array(), *counts = json_object(), *checksums = json_object();
    for (int t = 0; t < SLI_GRAMMAR_LONGEST; t++)
        json_array_append_new(entropies, json_real(facts->entropies[t]));
    for (int split = 0; split < SL_SPLITS; split++) {
        const char *name = sl_split_name((sl_split)split);
        json_object_set_new(counts, name, json_integer(tokens[split]));
        json_object_set_new(checksums, name, json_string(facts->checksums[split]));
    }
    json_t *root = json_pack("{s:s, s:s, s:s, s:o, s:o, s:f, s:f, s:o}", "format", format, "about",
                             "entropies are in nats per token, checksums those of the texts",
                             "seed", seed_text, "tokens", counts, checksums_key, checksums,
                             "best_perplexity", exp(facts->entropy_rate), rate_key,
                             facts->entropy_rate, entropies_key, entropies);
    char *text = root ? json_dumps(root, JSON_INDENT(2)) : NULL;
    json_decref(root);
    return text;
}

sl_status sli_synthetic_facts_write(const char *directory, const sli_synthetic_facts *facts,
                                    uint64_t seed, const int64_t tokens[SL_SPLITS])
{
    char *path, *text = print(facts, seed, tokens);
    sli_replace_file *file = NULL;
    sl_status status = path_in(directory, &path);
    if (status == SL_OK && !text)
        status = sl_error(SL_ERR_MEMORY, "%s: no memory for its text", path);
    if (status == SL_OK)
        status = sli_replace_file_create(path, &file);
    if (status == SL_OK)
        status = sli_replace_file_write(file, 0, text, strlen(text));
    if (status == SL_OK)
        status = sli_replace_file_commit(file);
    sli_replace_file_destroy(&file);
    free(text);
    free(path);
    return status;
}

/* ---- Reading ---------------------------------------------------------------------------- */

/* The text of a small regular file, or no bytes where it is none or cannot be read. */
static size_t read_text(const char *path, char text[MOST_BYTES])
{
    struct stat about;
    size_t bytes = 0;
    ssize_t got = 1;
    int descriptor = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (descriptor < 0)
        return 0;
    bool small =
        fstat(descriptor, &about) == 0 && S_ISREG(about.st_mode) && about.st_size <= MOST_BYTES;
    for (; small && got > 0 && bytes<MOST_BYTES; bytes += got> 0 ? (size_t)got : 0)
        got = read(descriptor, text + bytes, MOST_BYTES - bytes);
    close(descriptor);
    return got < 0 ? 0 : bytes;
}

static bool parse_entropy(const json_t *value, double *out)
{
    *out = json_number_value(value);
    return json_is_number(value) && *out >= 0 && *out < 100; /* e^100 tokens exist nowhere */
}

static bool parse(const json_t *root, sli_synthetic_facts *out)
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

sl_status sli_synthetic_facts_read(const char *directory, sli_synthetic_facts *out, bool *found)
{
    char *path, *text = malloc(MOST_BYTES);
    *out = (sli_synthetic_facts){0};
    *found = false;
    sl_status status = path_in(directory, &path);
    if (status == SL_OK && !text)
        status = sl_error(SL_ERR_MEMORY, "%s: no memory for its text", path);
    if (status == SL_OK) {
        json_t *root = json_loadb(text, read_text(path, text), JSON_REJECT_DUPLICATES, NULL);
        const char *says = json_string_value(json_object_get(root, "format"));
        *found = says && strcmp(says, format) == 0;
        if (*found && !parse(root, out))
            status = sl_error(SL_ERR_FORMAT,
                              "%s: it says \"%s\", but lacks \"%s\", \"%s\" or \"%s\" as such a "
                              "corpus has them: remove it",
                              path, format, checksums_key, rate_key, entropies_key);
        json_decref(root);
    }
    free(text);
    free(path);
    return status;
}

static sl_status add_file(const char *path, sli_checksum *sum)
{
    char block[BLOCK_BYTES];
    FILE *file = fopen(path, "rb");
    if (!file)
        return sl_error(SL_ERR_IO, "%s: cannot be opened: %s", path, strerror(errno));
    for (size_t got; (got = fread(block, 1, sizeof block, file)) > 0;)
        sli_checksum_add(sum, block, got);
    sl_status status = SL_OK;
    if (ferror(file))
        status = sl_error(SL_ERR_IO, "%s: cannot be read: %s", path, strerror(errno));
    fclose(file);
    return status;
}

sl_status sli_synthetic_facts_fit(const sli_synthetic_facts *facts, sl_split split,
                                  const char *path, bool *fit)
{
    sli_checksum *sum;
    char text[SLI_CHECKSUM_BYTES];
    *fit = false;
    SL_TRY(sli_checksum_create(&sum));
    sl_status status = add_file(path, sum);
    *fit = status == SL_OK && strcmp(sli_checksum_text(sum, text), facts->checksums[split]) == 0;
    sli_checksum_destroy(&sum);
    return status;
}

/* ---- The best possible model ------------------------------------------------------------- */

static sl_status fit_all(const sli_synthetic_facts *facts, const char *directory, bool *fit)
{
    *fit = true;
    for (int split = 0; split < SL_SPLITS && *fit; split++) {
        char *path;
        SL_TRY(sl_split_path(directory, (sl_split)split, &path));
        sl_status status = sli_synthetic_facts_fit(facts, (sl_split)split, path, fit);
        free(path);
        SL_TRY(status);
    }
    return SL_OK;
}

/* The mean over a block's positions; that of a block without end is the rate. */
static double best_loss(const sli_synthetic_facts *facts, int64_t bptt)
{
    double excess = 0;
    for (int64_t t = 1; t <= bptt && t < SLI_GRAMMAR_LONGEST; t++)
        excess += facts->entropies[t] - facts->entropy_rate;
    return facts->entropy_rate + (bptt ? excess / (double)bptt : 0);
}

sl_status sli_synthetic_best_perplexities(const char *directory, const int64_t *bptt, int count,
                                          double *out)
{
    sli_synthetic_facts facts;
    bool found;
    for (int i = 0; i < count; i++)
        out[i] = 0;
    SL_TRY(sli_synthetic_facts_read(directory, &facts, &found));
    if (found)
        SL_TRY(fit_all(&facts, directory, &found));
    for (int i = 0; found && i < count; i++)
        out[i] = exp(best_loss(&facts, bptt[i]));
    return SL_OK;
}

sl_status sl_synthetic_corpus_best_perplexity(const char *directory, int64_t bptt, double *out)
{
    *out = 0;
    if (bptt < 0)
        return sl_error(SL_ERR_INVALID,
                        "sl_synthetic_corpus_best_perplexity: bptt must be at least 0, got %lld",
                        (long long)bptt);
    return sli_synthetic_best_perplexities(directory, &bptt, 1, out);
}
