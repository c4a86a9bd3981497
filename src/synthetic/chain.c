#include "synthetic/chain.h"

#include "core/error.h"
#include "core/file.h"
#include "core/philox.h"
#include "core/replace.h"
#include "sluice/app/text.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DEFAULT_TRAIN_TOKENS = 500000, TRAIN_TO_EVAL = 10, LINE_BYTES = 256 };

/* ---- The chain --------------------------------------------------------------------------- */

enum { LINKS = 4, CONTENTS = 16, FILLERS = 8, SUCCESSORS = 4 };

/* How one content word leads to the next: fillers, and the kind of word at the link's end. */
typedef struct chain_link {
    const char *first[FILLERS]; /* of the subject's link none: a full stop stands there */
    const char *second[FILLERS];
    const char *contents[CONTENTS];
} chain_link;

/* Content word i is followed by i, i + 1, i + 2 or i + 3 of the next link, counted in a circle.
 * Neighbors have to do with each other, so that sentences make some sense. */
static const chain_link links[LINKS] = {
    {.second = {"clever", "tired", "hungry", "young", "honest", "brave", "patient", "merry"},
     .contents = {"fishers", "sailors", "builders", "drivers", "riders", "farmers", "shepherds",
                  "hunters", "foresters", "gardeners", "pickers", "bakers", "cooks", "singers",
                  "painters", "jewelers"}},
    {.first = {"often", "always", "seldom", "usually", "sometimes", "never", "still", "rarely"},
     .second = {"gladly", "quietly", "quickly", "slowly", "proudly", "calmly", "eagerly", "gently"},
     .contents = {"mend", "paint", "repair", "wash", "groom", "feed", "count", "follow", "measure",
                  "water", "gather", "slice", "taste", "praise", "admire", "polish"}},
    {.first = {"the", "these", "those", "many", "some", "several", "few", "their"},
     .second = {"small", "large", "old", "new", "pretty", "heavy", "plain", "fine"},
     .contents = {"nets", "boats", "bridges", "wagons", "horses", "goats", "lambs", "bears",
                  "trees", "roses", "apples", "pies", "soups", "songs", "portraits", "pearls"}},
    {.first = {"near", "beside", "behind", "around", "beyond", "outside", "past", "between"},
     .second = {"quiet", "distant", "sunny", "famous", "lonely", "busy", "green", "windy"},
     .contents = {"lakes", "harbors", "rivers", "roads", "stables", "barns", "hills", "forests",
                  "valleys", "gardens", "orchards", "kitchens", "taverns", "theaters", "palaces",
                  "markets"}},
};
static const int successor_weights[SUCCESSORS] = {8, 4, 2, 1};

/* Maps 32 random bits to 0 … count - 1. */
static int scale_bits(uint32_t bits, int count)
{
    return (int)((uint64_t)bits * (uint64_t)count >> 32);
}

static int draw_successor(uint32_t bits)
{
    int total = 0, successor = 0;
    for (int i = 0; i < SUCCESSORS; i++)
        total += successor_weights[i];
    int left = scale_bits(bits, total);
    for (; left >= successor_weights[successor]; successor++)
        left -= successor_weights[successor];
    return successor;
}

/* Where a text is: the last content word, or -1 before the first. */
typedef struct position {
    uint32_t sentence;
    int content;
} position;

/* Writes one sentence as a line; returns how many tokens it has. */
static int64_t write_sentence(sli_philox_key key, sl_split split, position *now, FILE *text)
{
    const char *words[3 * LINKS];
    int count = 0;
    for (int i = 0; i < LINKS; i++) {
        uint32_t random[4] = {(uint32_t)i, now->sentence, (uint32_t)split, 0};
        sli_philox(key, random);
        if (i > 0)
            words[count++] = links[i].first[scale_bits(random[0], FILLERS)];
        int second = scale_bits(random[1], 2 * FILLERS);
        if (second < FILLERS)
            words[count++] = links[i].second[second];
        now->content = now->content < 0 ? scale_bits(random[2], CONTENTS)
                                        : (now->content + draw_successor(random[2])) % CONTENTS;
        words[count++] = links[i].contents[now->content];
    }
    now->sentence++;
    fprintf(text, "%c%s", words[0][0] - 'a' + 'A', words[0] + 1);
    for (int i = 1; i < count; i++)
        fprintf(text, " %s", words[i]);
    fputs(".\n", text);
    return count + 1;
}

/* ---- Its entropy ------------------------------------------------------------------------- */

double sli_synthetic_best_perplexity(int64_t bptt)
{
    double tokens = 2.5, total = 0, content = 0;
    for (int i = 0; i < SUCCESSORS; i++)
        total += successor_weights[i];
    for (int i = 0; i < SUCCESSORS; i++)
        content -= successor_weights[i] / total * log(successor_weights[i] / total);
    double entropy = content + log(2) + (0.5 + 0.75) * log(FILLERS);
    double unknown = log(CONTENTS) - content, missed = bptt == 0 ? 0 : bptt == 1 ? 1 : 1.5;
    return exp((entropy + (missed > 0 ? unknown * missed / (double)bptt : 0)) / tokens);
}

/* ---- Recognizing it ---------------------------------------------------------------------- */

static int find_word(const char *const *words, int count, const char *word)
{
    for (int i = 0; word && i < count; i++)
        if (words[i] && strcmp(words[i], word) == 0)
            return i;
    return -1;
}

/* Whether `line`, which is changed, is a sentence that can come next; *content moves on. */
static bool follow_sentence(char *line, int *content)
{
    size_t length = strlen(line);
    char *rest = NULL;
    if (length < 2 || strcmp(line + length - 2, ".\n") != 0 || line[0] < 'A' || line[0] > 'Z')
        return false;
    line[0] = (char)(line[0] - 'A' + 'a');
    line[length - 2] = '\0';
    const char *word = strtok_r(line, " ", &rest);
    for (int i = 0; i < LINKS; i++) {
        if (i > 0) {
            if (find_word(links[i].first, FILLERS, word) < 0)
                return false;
            word = strtok_r(NULL, " ", &rest);
        }
        if (find_word(links[i].second, FILLERS, word) >= 0)
            word = strtok_r(NULL, " ", &rest);
        int next = find_word(links[i].contents, CONTENTS, word);
        if (next < 0 || (*content >= 0 && (next - *content + CONTENTS) % CONTENTS >= SUCCESSORS))
            return false;
        *content = next;
        word = strtok_r(NULL, " ", &rest);
    }
    return !word;
}

/* A line that does not fit has no end, and is no sentence. */
static bool is_chain(const char *path)
{
    char line[LINE_BYTES];
    int descriptor, content = -1;
    uint64_t bytes;
    if (sli_file_open(path, &descriptor, &bytes) != SL_OK)
        return false;
    FILE *text = fdopen(descriptor, "r");
    if (!text) {
        close(descriptor);
        return false;
    }
    bool good = bytes > 0;
    while (good && fgets(line, sizeof line, text))
        good = follow_sentence(line, &content);
    good = good && !ferror(text);
    fclose(text);
    return good;
}

bool sli_synthetic_is_text(const char *data)
{
    bool good = true;
    for (int split = 0; good && split < SL_SPLITS; split++) {
        char *path;
        if (sl_split_path(data, (sl_split)split, &path) != SL_OK)
            return false;
        good = is_chain(path);
        free(path);
    }
    return good;
}

/* ---- Writing it -------------------------------------------------------------------------- */

static sl_status text_path(const char *directory, sl_split split, char **out)
{
    char name[16];
    snprintf(name, sizeof name, "%s.txt", sl_split_name(split));
    return sli_path_join(directory, name, out);
}

static sl_status make_directory(const char *directory)
{
    struct stat about;
    if (mkdir(directory, 0777) == 0)
        return SL_OK;
    if (errno == EEXIST && stat(directory, &about) == 0 && S_ISDIR(about.st_mode))
        return SL_OK;
    return sli_io_error(directory, "cannot be made a directory");
}

/* Neither overwrites another text nor hides one, which a corpus of other names would do to ours. */
static sl_status check_split(const char *directory, sl_split split)
{
    char *target, *path;
    SL_TRY(text_path(directory, split, &target));
    sl_status status = sl_split_path(directory, split, &path);
    if (status != SL_OK) {
        free(target);
        return status == SL_ERR_NOT_FOUND ? SL_OK : status;
    }
    if (strcmp(path, target) != 0 || !is_chain(path))
        status = sl_error(SL_ERR_INVALID,
                          "a synthetic text goes where no other text is, got %s: name another "
                          "directory",
                          path);
    free(path);
    free(target);
    return status;
}

static sl_status write_split(const char *directory, uint64_t seed, sl_split split, int64_t wanted)
{
    sli_philox_key key = sli_philox_key_make(seed, SLI_RANDOM_SAMPLE);
    position now = {.content = -1};
    char *text = NULL, *path = NULL;
    size_t bytes = 0;
    FILE *memory = open_memstream(&text, &bytes);
    for (int64_t written = 0; memory && written < wanted;)
        written += write_sentence(key, split, &now, memory);
    bool complete = memory && !ferror(memory);
    if (memory && fclose(memory) != 0)
        complete = false;
    sl_status status = complete ? text_path(directory, split, &path)
                                : sl_error(SL_ERR_MEMORY, "%s: no memory for a text of %lld tokens",
                                           directory, (long long)wanted);
    if (status == SL_OK)
        status = sli_file_write(path, text, bytes);
    free(path);
    free(text);
    return status;
}

sl_status sli_synthetic_write(const char *directory, const sli_synthetic_options *options)
{
    int64_t train = options->train_tokens ? options->train_tokens : DEFAULT_TRAIN_TOKENS;
    int64_t eval =
        options->eval_tokens ? options->eval_tokens : (train + TRAIN_TO_EVAL - 1) / TRAIN_TO_EVAL;
    if (train < 0 || eval < 0)
        return sl_error(SL_ERR_INVALID,
                        "a synthetic text's numbers of tokens must not be negative, got %lld and "
                        "%lld",
                        (long long)options->train_tokens, (long long)options->eval_tokens);
    SL_TRY(make_directory(directory));
    for (int split = 0; split < SL_SPLITS; split++)
        SL_TRY(check_split(directory, (sl_split)split));
    for (int split = 0; split < SL_SPLITS; split++)
        SL_TRY(write_split(directory, options->seed, (sl_split)split,
                           split == SL_SPLIT_TRAIN ? train : eval));
    return SL_OK;
}
