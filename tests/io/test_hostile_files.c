/* Files that are small and ask for much: reading one may take 20 times its size in memory, and time
 * in proportion to it. */
#include "io/scratch.h"

#include "io/checkpoint/format.h"
#include "support/check.h"
#include "text/vocab.h"

#include <sys/resource.h>
#include <sys/wait.h>

enum {
    TEXT_BYTES = IS_SANITIZED ? 2 << 20 : 10 << 20, /* a sanitizer's time says nothing of size */
    MOST_GROWTH = 20,
    BASE_BYTES = 2 << 20,
    MOST_SECONDS = 20,
    FEW_SECONDS = 5
};

/* ---- Texts -------------------------------------------------------------------------------- */

typedef struct text {
    char *at; /* [2 * TEXT_BYTES] */
    size_t length;
} text;

static text text_begin(const char *begin)
{
    text made = {malloc(2 * TEXT_BYTES), strlen(begin)};
    assert_non_null(made.at);
    memcpy(made.at, begin, made.length);
    return made;
}

static void text_add(text *t, const char *more, size_t length)
{
    memcpy(t->at + t->length, more, length);
    t->length += length;
}

/* `begin`, copies of `unit` with commas between them, `end`; # stands for the copy's number. */
static text repeat(const char *begin, const char *unit, const char *end)
{
    text made = text_begin(begin);
    for (int i = 0; made.length < TEXT_BYTES; i++) {
        char number[16];
        snprintf(number, sizeof number, "%07d", i);
        text_add(&made, ",", i > 0);
        for (const char *at = unit; *at; at++)
            text_add(&made, *at == '#' ? number : at, *at == '#' ? 7 : 1);
    }
    text_add(&made, end, strlen(end));
    made.at[made.length] = '\0';
    return made;
}

/* ---- Reading within bounds ---------------------------------------------------------------- */

typedef sl_status (*reading)(const text *source);

static sl_status read_header(const text *source)
{
    sli_safetensors_header header;
    sl_status status = sli_safetensors_header_parse(source->at, source->length, 0, &header);
    sli_safetensors_header_clear(&header);
    return status;
}

static sl_status read_index(const text *source)
{
    FREED char *strings = NULL;
    FREED sl_metadata *entries = NULL;
    size_t count = 0;
    return sli_safetensors_index_parse(source->at, source->length, &strings, &entries, &count);
}

static char index_path[512];

/* Of a model whose first file is not there. */
static sl_status open_index(const text *source)
{
    sl_checkpoint_reader *model;
    write_file(index_path, source->at, source->length);
    sl_status status = sl_checkpoint_open(index_path, &model);
    sl_checkpoint_close(&model);
    return status;
}

static sl_status read_cut_tensors(const text *source)
{
    sli_cut_tensors cut;
    sl_status status = sli_cut_tensors_parse(source->at, &cut);
    sli_cut_tensors_clear(&cut);
    return status;
}

static sl_status read_state(const text *source)
{
    sli_checkpoint_state state;
    sl_status status = sli_checkpoint_state_parse(source->at, source->length, &state);
    sli_checkpoint_state_clear(&state);
    return status;
}

static sl_status verify_checkpoint(const text *source)
{
    sl_checkpoint_reader *reader;
    sl_status status = sl_checkpoint_open(source->at, &reader);
    if (status == SL_OK)
        status = sl_checkpoint_verify(reader);
    sl_checkpoint_close(&reader);
    return status;
}

static sl_status read_tokenizer(const text *from)
{
    sl_vocab *vocab;
    sl_status status = sli_vocab_parse(from->at, from->length, &vocab);
    sl_vocab_destroy(&vocab);
    return status;
}

static void limit_memory(size_t more)
{
    unsigned long long pages;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%llu", &pages), 1);
    fclose(file);
    struct rlimit limit;
    limit.rlim_cur = limit.rlim_max = pages * (size_t)sysconf(_SC_PAGESIZE) + more;
    assert_int_equal(setrlimit(RLIMIT_AS, &limit), 0);
}

/* Reads it in a process of its own, which may have so much memory and time and no more. */
static sl_status read_within_bounds(const char *what, reading read, const text *source, rlim_t most)
{
    int ended;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct rlimit time = {most, most};
        setrlimit(RLIMIT_CPU, &time);
        if (!IS_SANITIZED)
            limit_memory((MOST_GROWTH - 1) * source->length +
                         BASE_BYTES); /* the text is one more */
        _exit(-read(source));
    }
    assert_int_equal(waitpid(child, &ended, 0), child);
    if (!WIFEXITED(ended))
        fail_msg("%s: did not end within %d s", what, (int)most);
    return (sl_status)-WEXITSTATUS(ended);
}

typedef struct hostile {
    const char *begin, *unit, *end;
    sl_status expected;
} hostile;

#define TENSOR "\"dtype\":\"U8\",\"data_offsets\":[0,0],\"shape\":"

static void check_all(reading read, const hostile *cases, size_t count, rlim_t most_seconds)
{
    for (size_t i = 0; i < count; i++) {
        text made = repeat(cases[i].begin, cases[i].unit, cases[i].end);
        sl_status status = read_within_bounds(cases[i].unit, read, &made, most_seconds);
        if (status != cases[i].expected)
            fail_msg("%s%s...: expected %s, got %s", cases[i].begin, cases[i].unit,
                     sl_status_name(cases[i].expected), sl_status_name(status));
        free(made.at);
    }
}

#define CHECK_ALL(read, cases) check_all(read, cases, sizeof(cases) / sizeof *(cases), MOST_SECONDS)

static void header_takes_memory_and_time_in_proportion(void **state)
{
    static const hostile cases[] = {
        {"{\"a\":[", "{}", "]}", SL_ERR_FORMAT},
        {"{\"a\":{\"b\":[", "[]", "]}}", SL_ERR_FORMAT},
        {"{\"a\":{" TENSOR "[", "0", "]}}", SL_ERR_FORMAT},
        {"{\"a\":{", "\"#\":0", "}}", SL_ERR_FORMAT},
        {"{\"__metadata__\":{", "\"#\":{}", "}}", SL_ERR_FORMAT},
        {"{\"__metadata__\":{", "\"#\":\"\"", "}}", SL_OK},
        {"{\"__metadata__\":{", "\"\\n#\":\"\"", "}}", SL_OK},
        {"{\"__metadata__\":{\"a\":\"", "\\u0041", "\"}}", SL_OK},
        {"{", "\"#\":{" TENSOR "[0]}", "}", SL_OK},
        {"{", "\"#\":{" TENSOR "[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0]}", "}", SL_OK},
        {"{", "\"a\":{" TENSOR "[0]}", "}", SL_ERR_FORMAT},
        {"{\"a\":", "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[", "}", SL_ERR_FORMAT},
    };
    CHECK_ALL(read_header, cases);
}

static void index_takes_memory_and_time_in_proportion(void **state)
{
    static const hostile cases[] = {
        {"{\"weight_map\":{", "\"#\":\"a\"", "}}", SL_OK},
        {"{\"weight_map\":{", "\"#\":\"#\"", "}}", SL_OK},
        {"{\"weight_map\":{", "\"a\":\"a\"", "}}", SL_ERR_FORMAT},
        {"{\"weight_map\":{},\"metadata\":[", "{}", "]}", SL_OK},
        {"{", "\"#\":{}", "}", SL_ERR_FORMAT},
    };
    CHECK_ALL(read_index, cases);
}

/* Names of files that differ at their ends alone; the longer ones are just below the most files
 * that there may be. To compare each with each takes more than the few seconds. */
static void files_of_an_index_take_memory_and_time_in_proportion(void **state)
{
#define LONG_NAME                                                                                  \
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
    static const hostile cases[] = {
        {"{\"weight_map\":{", "\"#\":\"a\"", "}}", SL_ERR_NOT_FOUND},
        {"{\"weight_map\":{", "\"#\":\"" LONG_NAME "#\"", "}}", SL_ERR_NOT_FOUND},
        {"{\"weight_map\":{", "\"#\":\"#\"", "}}", SL_ERR_UNSUPPORTED},
    };
    snprintf(index_path, sizeof index_path, "%s", scratch_path(*state, "a.index.json"));
    check_all(open_index, cases, sizeof cases / sizeof *cases, FEW_SECONDS);
}

static void cut_tensors_take_memory_and_time_in_proportion(void **state)
{
    static const hostile cases[] = {
        {"{", "\"#\":[1]", "}", SL_OK},
        {"{", "\"#\":{}", "}", SL_ERR_FORMAT},
        {"{\"a\":[", "1", "]}", SL_ERR_FORMAT},
        {"{\"a\":[", "[]", "]}", SL_ERR_FORMAT},
    };
    CHECK_ALL(read_cut_tensors, cases);
}

/* The same text with the checksum that it must have. */
static sl_status read_state_with_its_checksum(const text *source)
{
    char *checksum = source->at + source->length - sizeof "\"}" - SLI_CHECKSUM_BYTES + 2;
    if (read_state(source) != SL_ERR_FORMAT || !strstr(sl_error_text(), "the checksum "))
        return SL_ERR_INTERNAL;
    memcpy(checksum, strstr(sl_error_text(), "the checksum ") + 13, SLI_CHECKSUM_BYTES - 1);
    return read_state(source);
}

#define STATE                                                                                      \
    "{\"format\":\"sluice checkpoint\",\"format_version\":1,\"version\":\"1\",\"id\":\"1\","
#define STATE_END ",\"xxh128\":\"00000000000000000000000000000000\"}"
#define FILE_END  "\"bytes\":1,\"checksum\":0,\"xxh128\":\"0123456789abcdef0123456789abcdef\"}"

static void state_takes_memory_and_time_in_proportion(void **state)
{
    static const hostile cases[] = {
        {STATE "\"run\":{},\"files\":[", "{\"name\":\"#\"," FILE_END, "]" STATE_END, SL_OK},
        {STATE "\"run\":{},\"files\":[", "{\"name\":\"a\"," FILE_END, "]" STATE_END, SL_ERR_FORMAT},
        {STATE "\"run\":{},\"files\":[", "{\"name\":\"#\",\"part\":\"#\"," FILE_END, "]" STATE_END,
         SL_OK},
        {STATE "\"files\":[],\"run\":{\"a\":[", "{}", "]}" STATE_END, SL_OK},
        {STATE "\"files\":[],\"run\":{\"a\":[", "1", "]}" STATE_END, SL_OK},
        {STATE "\"files\":[],\"run\":{", "\"#\":1", "}" STATE_END, SL_OK},
        {STATE "\"files\":[],\"run\":{},", "\"#\":{}", STATE_END, SL_OK},
    };
    CHECK_ALL(read_state_with_its_checksum, cases);
}

static void tokenizer_takes_memory_and_time_in_proportion(void **state)
{
#define MODEL                                                                                      \
    "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true},"    \
    "\"model\":{\"type\":\"BPE\","
    static const hostile cases[] = {
        {"{\"model\":[", "{}", "]}", SL_ERR_FORMAT},
        {"{\"model\":", "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[", "}", SL_ERR_FORMAT},
        {"{", "\"#\":{}", "}", SL_ERR_FORMAT},
        {"{" MODEL "\"merges\":[],\"vocab\":{", "\"#\":0", "}}}", SL_ERR_FORMAT},
        {"{" MODEL "\"merges\":[],\"vocab\":{", "\"a\":0", "}}}", SL_ERR_FORMAT},
        {"{" MODEL "\"merges\":[],\"vocab\":{", "\"\\u0123#\":1e0", "}}}", SL_ERR_FORMAT},
        {"{" MODEL "\"vocab\":{},\"merges\":[", "\"a b\"", "]}}", SL_ERR_FORMAT},
        {"{" MODEL "\"vocab\":{},\"merges\":[", "[\"#\",\"#\"]", "]}}", SL_ERR_FORMAT},
        {"{\"added_tokens\":[", "{\"id\":0,\"content\":\"#\"}", "]}", SL_ERR_FORMAT},
        {"{" MODEL "\"vocab\":{},\"merges\":[]},\"added_tokens\":[",
         "{\"id\":0,\"content\":\"#\",\"lstrip\":false,\"special\":true}", "]}", SL_ERR_FORMAT},
        {"{" MODEL
         "\"vocab\":{},\"merges\":[]},\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[",
         "{\"type\":\"NFC\"}", "]}}", SL_ERR_FORMAT},
        {"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"", "\\u0041", "\"}}}",
         SL_ERR_FORMAT},
        {"{\"model\":{\"type\":\"WordLevel\",\"vocab\":{", "\"#\":0", "}}}", SL_ERR_UNSUPPORTED},
    };
    CHECK_ALL(read_tokenizer, cases);
}

/* A file may be sparse: its size says nothing about what it took to make it. */
static void verifying_takes_no_memory_for_a_large_file(void **state)
{
    enum { LARGE = 64 << 20 };
    char *zeros = calloc(LARGE, 1);
    assert_non_null(zeros);
    const sl_safetensors_item none = {0};
    const sl_checkpoint_part part = {.name = "model", .items = &none};
    const sl_checkpoint_file file = {.name = "zeros", .data = zeros, .bytes = LARGE};
    text path = {.at = scratch_path(*state, "large")};
    check_ok(sl_checkpoint_save(path.at, &(sl_checkpoint_contents){.parts = &part,
                                                                   .part_count = 1,
                                                                   .files = &file,
                                                                   .file_count = 1,
                                                                   .state = "{}"}));
    free(zeros);
    assert_int_equal(read_within_bounds("verifying", verify_checkpoint, &path, FEW_SECONDS), SL_OK);
    scratch_remove_tree(*state, "large");
}

int hostile_files_tests(void)
{
#ifdef __SANITIZE_THREAD__
    print_message("skipped: one thread, and time that ThreadSanitizer multiplies\n");
    return 77;
#endif
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(header_takes_memory_and_time_in_proportion),
        cmocka_unit_test(tokenizer_takes_memory_and_time_in_proportion),
        cmocka_unit_test(index_takes_memory_and_time_in_proportion),
        cmocka_unit_test_setup_teardown(files_of_an_index_take_memory_and_time_in_proportion,
                                        scratch_create, scratch_remove),
        cmocka_unit_test(cut_tensors_take_memory_and_time_in_proportion),
        cmocka_unit_test(state_takes_memory_and_time_in_proportion),
        cmocka_unit_test_setup_teardown(verifying_takes_no_memory_for_a_large_file, scratch_create,
                                        scratch_remove),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
