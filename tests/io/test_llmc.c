/* Model files of llm.c: their tables of tensors, and what is refused. */
#include "io/scratch.h"

#include "io/llmc/llmc.h"
#include "support/check.h"

enum { HEADER = SLI_LLMC_HEADER_BYTES / 4 };

/* channels 3, heads 1, two layers: 12 C^2 + 13 C numbers each, (5 + 4) C for both embeddings, 2 C.
 */
static const sli_llmc_sizes small = {.positions = 4,
                                     .vocab = 3,
                                     .layers = 2,
                                     .heads = 1,
                                     .channels = 3,
                                     .padded_vocab = 5,
                                     .dtype = SL_F32};

static size_t numbers_of(const sli_llmc_sizes *sizes)
{
    int64_t c = sizes->channels;
    return (size_t)(sizes->layers * (12 * c * c + 13 * c) +
                    (sizes->padded_vocab + sizes->positions + 2) * c);
}

/* A file of numbers 0, 1, 2, … behind this header, with so many bytes more or fewer. */
static const char *write_model(scratch *dir, const int32_t header[HEADER], size_t numbers, int more)
{
    int32_t *file = calloc(HEADER + numbers + 4, sizeof *file);
    assert_non_null(file);
    memcpy(file, header, SLI_LLMC_HEADER_BYTES);
    for (size_t i = 0; i < numbers; i++)
        ((float *)(void *)file)[HEADER + i] = (float)i;
    write_file(scratch_path(dir, "model.bin"), file, (size_t)((long)(HEADER + numbers) * 4 + more));
    free(file);
    return dir->path;
}

static void check_tensor(const sli_safetensors_reader *reader, const char *name, int64_t rows,
                         int64_t columns, float first)
{
    float found[64];
    const sl_safetensors_info *info = sli_safetensors_find(reader, name);
    assert_non_null(info);
    assert_int_equal(info->dims, columns ? 2 : 1);
    assert_int_equal(info->size[0], rows);
    if (columns)
        assert_int_equal(info->size[1], columns);
    assert_int_equal(info->dtype, SL_F32);
    check_ok(sli_safetensors_read(reader, info, found));
    assert_float_equal(found[0], first, 0);
}

static void file_is_a_table_of_published_names(void **state)
{
    int32_t header[HEADER];
    sli_safetensors_reader *reader;
    FREED char *config = NULL;
    sli_llmc_print_header(&small, header);
    const char *path = write_model(*state, header, numbers_of(&small), 0);
    assert_true(sli_llmc_is_file(path));
    check_ok(sli_llmc_open(path, &reader, &config));
    assert_int_equal(sli_safetensors_count(reader), 5 + 2 * 12);
    check_tensor(reader, "transformer.wte.weight", 3, 3, 0);
    check_tensor(reader, "transformer.wte.padding", 2, 3, 9);
    check_tensor(reader, "transformer.wpe.weight", 4, 3, 15);
    check_tensor(reader, "transformer.h.0.ln_1.weight", 3, 0, 27);
    check_tensor(reader, "transformer.h.1.ln_1.weight", 3, 0, 30);
    check_tensor(reader, "transformer.h.0.ln_1.bias", 3, 0, 33);
    check_tensor(reader, "transformer.h.0.attn.c_attn.weight", 9, 3, 39);
    check_tensor(reader, "transformer.h.1.attn.c_attn.weight", 9, 3, 66);
    check_tensor(reader, "transformer.h.0.mlp.c_proj.weight", 3, 12, 243);
    check_tensor(reader, "transformer.ln_f.bias", 3, 0, (float)numbers_of(&small) - 3);
    assert_non_null(strstr(config, "\"vocab_size\": 3, \"n_positions\": 4, \"n_layer\": 2"));
    sli_safetensors_close(&reader);
}

static void table_without_padding_has_no_rows_of_it(void **state)
{
    int32_t header[HEADER];
    sli_safetensors_reader *reader;
    FREED char *config = NULL;
    sli_llmc_sizes full = small;
    full.vocab = full.padded_vocab;
    sli_llmc_print_header(&full, header);
    check_ok(sli_llmc_open(write_model(*state, header, numbers_of(&full), 0), &reader, &config));
    assert_int_equal(sli_safetensors_count(reader), 4 + 2 * 12);
    check_tensor(reader, "transformer.wte.weight", 5, 3, 0);
    sli_safetensors_close(&reader);
}

static void only_matrices_of_layers_are_transposed(void **state)
{
    assert_true(sli_llmc_is_transposed("transformer.h.11.attn.c_attn.weight"));
    assert_true(sli_llmc_is_transposed("h.0.mlp.c_proj.weight"));
    assert_false(sli_llmc_is_transposed("transformer.h.0.attn.c_attn.bias"));
    assert_false(sli_llmc_is_transposed("transformer.wte.weight"));
    assert_false(sli_llmc_is_transposed("transformer.h.0.ln_1.weight"));
}

static void file_of_something_else_is_not_one(void **state)
{
    write_file(scratch_path(*state, "model.bin"), "ab", 2);
    assert_false(sli_llmc_is_file(((scratch *)*state)->path));
    write_file(scratch_path(*state, "model.bin"), "abcdefgh", 8);
    assert_false(sli_llmc_is_file(((scratch *)*state)->path));
    assert_false(sli_llmc_is_file("/nowhere/model.bin"));
    assert_false(sli_llmc_is_file("/tmp"));
}

static void wrong_header_is_refused_in_one_sentence(void **state)
{
    static const struct {
        int place;
        int32_t value;
        int more;
        const char *sentence;
    } cases[] = {
        {1, 1, 0, "it is a model of llm.c in version 1, and version 3 (f32) or 5 (bf16) is read"},
        {1, -5, 0, "version -5, and version 3"},
        {2, 0, 0, "its header says max_seq_len 0, which must be 1 to 2147483647"},
        {3, -1, 0, "its header says vocab_size -1, which must be"},
        {4, 10001, 0, "its header says num_layers 10001, which must be 1 to 10000"},
        {5, 2, 0, "its header says channels 3, which must be a multiple of num_heads 2"},
        {6, 1 << 21, 0, "its header says channels 2097152, which must be 1 to 1048576"},
        {7, 2, 0, "its header says padded_vocab_size 2, less than vocab_size 3"},
        {2, 5, 0, "it was cut short, or its header is wrong"},
        {2, INT32_MAX, 0, "it was cut short, or its header is wrong"},
        {1, 5, 0, "it was added to, or its header is wrong"},
        {1, 3, -1, "it was cut short, or its header is wrong"},
        {1, 3, 4, "it was added to, or its header is wrong"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int32_t header[HEADER];
        sli_safetensors_reader *reader;
        char *config;
        sli_llmc_print_header(&small, header);
        header[cases[i].place] = cases[i].value;
        const char *path = write_model(*state, header, numbers_of(&small), cases[i].more);
        check_error(sli_llmc_open(path, &reader, &config), SL_ERR_FORMAT, cases[i].sentence);
        assert_null(reader);
        assert_null(config);
    }
}

static void truncated_header_is_refused(void **state)
{
    int32_t header[HEADER];
    sli_safetensors_reader *reader;
    char *config;
    sli_llmc_print_header(&small, header);
    write_file(scratch_path(*state, "model.bin"), header, 40);
    check_error(sli_llmc_open(((scratch *)*state)->path, &reader, &config), SL_ERR_FORMAT,
                "a model of llm.c begins with 1024 bytes, but the file has 40");
}

/* The largest sizes that a header can say have a number of bytes. */
static void largest_sizes_do_not_overflow(void **state)
{
    static const sli_llmc_sizes most = {INT32_MAX, INT32_MAX, 10000, 1 << 20,
                                        1 << 20,   INT32_MAX, SL_F32};
    int32_t header[HEADER];
    sli_safetensors_reader *reader;
    char *config;
    sli_llmc_print_header(&most, header);
    check_error(sli_llmc_open(write_model(*state, header, 0, 0), &reader, &config), SL_ERR_FORMAT,
                "has 545780525101483008: it was cut short");
}

int llmc_tests(void)
{
#define IN_SCRATCH(test) cmocka_unit_test_setup_teardown(test, scratch_create, scratch_remove)
    const struct CMUnitTest tests[] = {
        IN_SCRATCH(file_is_a_table_of_published_names),
        IN_SCRATCH(table_without_padding_has_no_rows_of_it),
        cmocka_unit_test(only_matrices_of_layers_are_transposed),
        IN_SCRATCH(file_of_something_else_is_not_one),
        IN_SCRATCH(wrong_header_is_refused_in_one_sentence),
        IN_SCRATCH(truncated_header_is_refused),
        IN_SCRATCH(largest_sizes_do_not_overflow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
